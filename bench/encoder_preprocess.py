"""Seconds that an image takes on its way to the tower, stage by stage, apart from the tower's own."""

import statistics
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessor

from bench.encoder_work import ADAPTER, Workload
from triptych.models.images import ImageProcessor
from triptych.models.pixels import patches_of
from triptych.multimodal.canonical import to_rgb

LIMITS = {"shortest_edge": ADAPTER.limits.smallest, "longest_edge": ADAPTER.limits.largest}


def make_processor() -> ImageProcessor:
    """With the limits and the numbers of the published checkpoint, made of no file."""
    return ImageProcessor(stock_processor(), ADAPTER)


def stock_processor() -> Any:
    return Qwen2VLImageProcessor(size=LIMITS)


def preprocess_seconds(workload: Workload, device: torch.device, dtype: torch.dtype, budget: float) -> dict[str, Any]:
    """Medians for one image, on one thread of the host (torch may use more to resize).

    decode       JPEG to RGB
    resize       RGB to the pixels that are kept until the tower's batch comes
    patches      those, on the device already, to the tower's patches; ends when the device has them
    transformers RGB to float32 patches by transformers' processor, all on the host
    """
    processor, stock, item = make_processor(), stock_processor(), workload.item()
    data = picture(workload.width, workload.height)
    rgb = to_rgb(data)
    prepared = processor.pixels(rgb, item)
    pixels, rule = prepared.pixels.to(device), processor.rule.to(device)
    image = Image.fromarray(rgb)

    def on_device() -> None:
        patches_of(pixels, item.grid, rule, dtype)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    stages: dict[str, Callable[[], object]] = {
        "decode": lambda: to_rgb(data),
        "resize": lambda: processor.pixels(rgb, item),
        "patches": on_device,
        "transformers": lambda: stock(images=[image], return_tensors="pt"),
    }
    found: dict[str, Any] = {name: median_seconds(work, budget / len(stages)) for name, work in stages.items()}
    return found | {"jpeg_bytes": len(data), "pixel_bytes": prepared.pixels.numel(), "threads": torch.get_num_threads()}


def median_seconds(work: Callable[[], object], budget: float) -> float:
    """Of at least three calls, and of as many more as the budget has room for; one more before them is not counted."""
    work()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < budget:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def picture(width: int, height: int) -> bytes:
    """A JPEG file with edges, slopes and some noise, as photographs have them."""
    numbers = np.random.default_rng(0)
    coarse = numbers.integers(0, 256, (max(1, height // 24), max(1, width // 24), 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = np.clip(smooth + numbers.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()
