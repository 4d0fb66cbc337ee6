"""Preprocessing beside a GPU: the same patches to the bit, JPEG files nearly so, no device that waits for a thread."""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from tests.engine_encoder.rig import Front, item_of, picture, running
from tests.engine_encoder.test_encoder_trace import Record, waits
from tests.engine_encoder.test_gpu_jpeg import jpeg, photo
from tests.gpu.gpu_neighbour import sleep_on_device
from triptych.config import EncoderSettings
from triptych.journey import Grid
from triptych.loadgen.provenance import provenance
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_image_processor, load_tower
from triptych.models.pixels import patches_of
from triptych.multimodal.canonical import to_rgb
from triptych.multimodal.sniff import sniff
from triptych.services.encoder.gpu_jpeg import GpuJpeg, choose_gpu_jpeg
from triptych.services.encoder.prepare import Preparer

pytestmark = pytest.mark.gpu

TRACE = "GPU_ENCODER_TRACE"  # environment variable: where to write what the device and the threads did
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
GRIDS = (Grid(1, 4, 6), Grid(1, 2, 2), Grid(1, 34, 46))
STEP_SECONDS = 0.02
SLEEP_KERNEL = "spin"  # part of the name of what `sleep_on_device` launches
MARK = "clocks of host and profiler"


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return load_card("tiny-vl", "float32")


@pytest.fixture(scope="module")
def tower(card: ModelCard) -> VisionTower:
    return load_tower(card, GPU, "float32")


@pytest.fixture(scope="module")
def decoder() -> GpuJpeg:
    found = GpuJpeg.probe(GPU)
    if found is None:
        pytest.skip("this torchvision decodes no JPEG on the GPU")
    return found


def noise(seed: int, grid: Grid) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, grid.h * 14, grid.w * 14), generator=generator, dtype=torch.uint8)


class Slow(Front):
    """Keeps the device busy for a while before it reads a batch's pixels."""

    seconds = STEP_SECONDS

    def patches(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
        sleep_on_device(self.seconds)
        return super().patches(pixels, grids)


class Watching(Front):
    """Remembers where pixels lay when they came."""

    def __init__(self, tower: VisionTower) -> None:
        super().__init__(tower)
        self.places: list[str] = []

    def patches(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
        self.places += [each.device.type if each.device.type != "cpu" else _kind(each) for each in pixels]
        return super().patches(pixels, grids)


def _kind(pixels: Tensor) -> str:
    return "pinned" if pixels.is_pinned() else "pageable"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", [Tensor.contiguous, Tensor.pin_memory, Tensor.cuda], ids=["", "pinned", "gpu"])
def test_patches_are_those_of_the_cpu_to_the_bit(
    card: ModelCard, dtype: str, place: Callable[[Tensor], Tensor]
) -> None:
    rule = load_image_processor(card).rule
    pixels = [noise(seed, grid) for seed, grid in enumerate(GRIDS)]
    expected = [patches_of(each, grid, rule, getattr(torch, dtype)) for each, grid in zip(pixels, GRIDS, strict=True)]
    made = load_tower(card, GPU, dtype).patches([place(each) for each in pixels], GRIDS)
    torch.cuda.synchronize()
    assert torch.equal(made.cpu(), torch.cat(expected))


def test_making_patches_never_makes_the_host_wait(tower: VisionTower) -> None:
    pixels = [noise(seed, grid).pin_memory() for seed, grid in enumerate(GRIDS)]
    tower.patches(pixels, GRIDS)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tower.patches(pixels, GRIDS)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_pixels_reach_the_device_loop_pinned(card: ModelCard, tower: VisionTower) -> None:
    watching = Watching(tower)
    with running(card, watching, Preparer(card)) as rig:
        assert all(wish.ref for wish in [rig.wish(picture(seed)) for seed in range(6)])
    assert watching.places == ["pinned"] * 6


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": "4:4:4"}, {"progressive": True}], ids=["4:2:0", "4:4:4", "progressive"]
)
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_jpeg_files_are_decoded_nearly_as_on_the_cpu(
    decoder: GpuJpeg, options: dict[str, object], orientation: int, record_property: Callable[[str, object], None]
) -> None:
    data = jpeg(photo(1, 1280, 720), orientation, **options)
    with decoder.stream():
        planes = decoder.decode(data, sniff(data))
    assert planes is not None
    assert planes.device == GPU
    apart = np.abs(planes.permute(1, 2, 0).cpu().numpy().astype(int) - to_rgb(data).astype(int))
    record_property("p99_steps_of_256", float(np.percentile(apart, 99)))
    record_property("mean_steps_of_256", float(apart.mean()))
    assert np.percentile(apart, 99) <= 3
    assert apart.mean() <= 0.5


def test_grey_files_are_decoded_too(decoder: GpuJpeg) -> None:
    data = jpeg(photo(1).convert("L"))
    with decoder.stream():
        planes = decoder.decode(data, sniff(data))
    if planes is not None:  # else the CPU does it, which is as good
        apart = np.abs(planes.permute(1, 2, 0).cpu().numpy().astype(int) - to_rgb(data).astype(int))
        assert apart.mean() <= 0.5


def test_resized_pixels_are_nearly_those_of_the_cpu(card: ModelCard, decoder: GpuJpeg) -> None:
    on_gpu, on_cpu = Preparer(card, decoder), Preparer(card)
    data = jpeg(photo(2, 1000, 700), 6)
    item = item_of(card, data)
    found, expected = on_gpu(data, item), on_cpu(data, item)
    assert found.pixels.device == GPU
    assert (found.grid, found.rows) == (expected.grid, expected.rows)
    assert (found.pixels.cpu().int() - expected.pixels.int()).abs().float().mean().item() <= 0.5


def test_files_that_it_does_not_take_have_the_very_pixels_of_the_cpu(card: ModelCard, decoder: GpuJpeg) -> None:
    for data in (jpeg(photo(3).convert("CMYK")), picture(3)):
        item = item_of(card, data)
        assert torch.equal(Preparer(card, decoder)(data, item).pixels, Preparer(card)(data, item).pixels)


def test_many_threads_decode_the_same_pictures_over_and_over(card: ModelCard, decoder: GpuJpeg) -> None:
    prepare = Preparer(card, decoder)
    files = [jpeg(photo(seed, 300 + 20 * seed, 200)) for seed in range(8)]
    alone = [prepare(data, item_of(card, data)).pixels.cpu() for data in files]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda data: prepare(data, item_of(card, data)).pixels.cpu(), files * 8))
    assert all(torch.equal(a, b) for a, b in zip(alone * 8, together, strict=True))


def test_decoded_pixels_stay_until_a_late_device_has_read_them(
    card: ModelCard, tower: VisionTower, decoder: GpuJpeg
) -> None:
    """Their memory comes from the threads' streams, which go on decoding while the tower is still to read it."""
    files = [jpeg(photo(seed, 224, 224)) for seed in range(60)]
    settings = EncoderSettings(max_items_per_batch=4, preprocess_threads=4)
    with running(card, tower, Preparer(card, decoder), settings=settings, arena_rows=60 * 64, checksums=False) as rig:
        expected = [rig.rows(rig.wish(data).ref) for data in files]  # one at a time
    slow = Slow(tower)
    with running(card, slow, Preparer(card, decoder), settings=settings, arena_rows=60 * 64, checksums=False) as rig:
        wishes = [rig.wish(data) for data in files]
        for wish, alone in zip(wishes, expected, strict=True):
            rows = rig.rows(wish.ref)
            assert ((rows - alone).abs().max() / alone.abs().max()).item() <= 1e-3


def test_sixteen_bits_choose_the_gpu_and_more_do_not(decoder: GpuJpeg) -> None:
    assert choose_gpu_jpeg("auto", GPU, torch.bfloat16) is not None
    assert choose_gpu_jpeg("auto", GPU, torch.float32) is None
    assert choose_gpu_jpeg("on", GPU, torch.float32) is not None


def test_the_device_never_waits_for_preprocessing_while_it_has_work(
    card: ModelCard, tower: VisionTower, record_property: Callable[[str, object], None]
) -> None:
    """By the profiler's times of what ran on the device, beside the host's of what was prepared when."""
    record, slow = Record(), Slow(tower)
    settings = EncoderSettings(max_items_per_batch=4)
    files = [jpeg(photo(seed, 1280, 720)) for seed in range(200)]
    # Nobody gives rows back here, so all of them need a place.
    arena_rows = sum(item_of(card, data).rows for data in (*files, picture(0)))
    with (
        profiled() as ran,
        running(card, slow, Preparer(card), arena_rows, settings, checksums=False) as rig,
    ):
        assert rig.wish(picture(0)).ref  # what is slow but once
        rig.engine.trace = record
        slow.batches.clear()
        assert all(wish.ref for wish in [rig.wish(data) for data in files])
        torch.cuda.synchronize()
    steps = steps_of(ran)[-len(slow.batches) :]
    batch_sizes = [len(batch) for batch in slow.batches]
    late = waits(Record({"preprocess": record.spans["preprocess"], "encode": steps}), batch_sizes)
    prepared = record.spans["preprocess"]
    record_property("preprocess_seconds", max(end for _, end in prepared) - min(begin for begin, _ in prepared))
    record_property("worst_wait_ms", 1000 * max(late))
    if os.environ.get(TRACE):
        write_trace(Path(os.environ[TRACE]), prepared, steps, batch_sizes, late)
    assert max(late) < 0.005 + STEP_SECONDS


Span = tuple[float, float]


@contextmanager
def profiled() -> Iterator[list[tuple[str, Span]]]:
    """Filled at the end: name and span, on time.monotonic, of all that ran on the device meanwhile."""
    ran: list[tuple[str, Span]] = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        began = time.monotonic()
        with record_function(MARK):
            pass
        yield ran
    events = profiler.events()
    assert events is not None
    offset = began - next(event.time_range.start for event in events if event.name == MARK) / 1e6
    ran += [
        (event.name, (event.time_range.start / 1e6 + offset, event.time_range.end / 1e6 + offset))
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def steps_of(ran: Sequence[tuple[str, Span]]) -> list[Span]:
    """Each batch's time on the device: from its sleep to the last thing before the next one's."""
    ordered = sorted(ran, key=lambda each: each[1])
    begins = [at for at, (name, _) in enumerate(ordered) if SLEEP_KERNEL in name]
    parts = [ordered[begin:end] for begin, end in itertools.pairwise([*begins, len(ordered)])]
    return [(part[0][1][0], max(end for _, (_, end) in part)) for part in parts]


def write_trace(
    path: Path, prepared: Sequence[Span], steps: Sequence[Span], batch_sizes: Sequence[int], late: Sequence[float]
) -> None:
    start = min(begin for begin, _ in prepared)
    spans = {
        name: [[round(1000 * (begin - start), 3), round(1000 * (end - start), 3)] for begin, end in sorted(each)]
        for name, each in (("preprocess_ms", prepared), ("device_steps_ms", steps))
    }
    made = {
        "what": "threads that prepare 1280x720 JPEG files beside a device that takes steps of at least 20 ms",
        **provenance(),
        "gpu": torch.cuda.get_device_name(),
        "worst_wait_ms": round(1000 * max(late), 3),
        "batch_sizes": list(batch_sizes),
        **spans,
    }
    path.write_text(json.dumps(made) + "\n")
