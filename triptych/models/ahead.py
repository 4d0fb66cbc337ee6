"""python -m triptych.models.ahead MODEL PART: compiles what a worker of this model will run, before there is a worker.

Compiled kernels lie in Triton's cache on disk. So a process that runs each of them once, while others are still being
started, saves the workers the time: they find them there. PART is `decoder` or `tower`; two processes compile side by
side. Each runs a model of this geometry with a single layer and random weights, so that whatever the loader chooses and
tries is what is compiled. Whatever goes wrong here costs that time and nothing else.
Where the GPU has little memory to spare nothing is done.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from triptych.config import LanguageSettings
from triptych.journey import Grid
from triptych.models.base import PagedInputs
from triptych.models.card import ModelCard, load_card
from triptych.models.config_values import read_json
from triptych.models.folder import CONFIG_FILE, resolve_folder
from triptych.models.loading import load_image_processor, load_language, load_tower

log = logging.getLogger(__name__)

PARTS = ("decoder", "tower")
_GRIDS = (Grid(1, 16, 16), Grid(1, 8, 12))
_LEAST_FREE_BYTES = 24 << 30  # of the GPU: on a small one the workers' memory comes first
_TOKENS = (40, 1)  # a prompt and a branch in one step
_BLOCKS = 8


def make_shallow(source: Path, folder: Path) -> None:
    """Makes the folder one of the same model with one layer, and a tower of two blocks, one of each kind.

    All but config.json are links to the source's files.
    """
    config: dict[str, Any] = read_json(source / CONFIG_FILE)
    for text in (config, config.get("text_config")):
        if isinstance(text, dict) and "num_hidden_layers" in text:
            text["num_hidden_layers"] = 1
            if "layer_types" in text:
                text["layer_types"] = text["layer_types"][:1]
    vision = config.get("vision_config")
    if isinstance(vision, dict):
        vision |= {"depth": 2, "fullatt_block_indexes": [1]}
    for file in source.iterdir():
        if file.name != CONFIG_FILE:
            (folder / file.name).symlink_to(file.resolve())
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def run(card: ModelCard, part: str, device: torch.device, dtype: str, settings: LanguageSettings) -> None:
    """Loads the part and runs it once. Waits for the device."""
    with torch.inference_mode():
        if part == "decoder":
            _run_decoder(card, device, dtype, settings)
        else:
            _run_tower(card, device, dtype)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _run_decoder(card: ModelCard, device: torch.device, dtype: str, settings: LanguageSettings) -> None:
    model = load_language(card, device, dtype, settings)
    size = settings.block_size
    slab = torch.zeros(model.kv.slab_shape(_BLOCKS, size), dtype=model.kv.dtype, device=device)
    blocks = -(-max(_TOKENS) // size)
    at = torch.cat([torch.arange(count) for count in _TOKENS])
    tables = torch.arange(2 * blocks).view(2, blocks)
    rows = torch.repeat_interleave(torch.arange(2), torch.tensor(_TOKENS))
    inputs = PagedInputs(
        positions=at.expand(3, -1).contiguous().to(device),
        slots=(tables[rows, at // size] * size + at % size).to(device),
        query_lengths=_TOKENS,
        kv_lengths=_TOKENS,
        block_tables=tables.to(device),
        logits_at=torch.tensor([_TOKENS[0] - 1, sum(_TOKENS) - 1]).to(device),
    )
    model.forward(model.embed(torch.zeros(sum(_TOKENS), dtype=torch.int64, device=device)), inputs, slab)


def _run_tower(card: ModelCard, device: torch.device, dtype: str) -> None:
    tower = load_tower(card, device, dtype)
    rule = load_image_processor(card).rule
    pixels = [
        torch.zeros(3, grid.h * rule.patch, grid.w * rule.patch, dtype=torch.uint8, device=device) for grid in _GRIDS
    ]
    tower.encode(tower.patches(pixels, _GRIDS), _GRIDS)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or the embedded model's name")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--block-size", type=int, default=LanguageSettings().block_size)
    parser.add_argument("--attention", default=LanguageSettings().attention)
    arguments = parser.parse_args(words)
    settings = LanguageSettings(block_size=arguments.block_size, attention=arguments.attention)
    device = torch.device(arguments.device)
    try:
        if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < _LEAST_FREE_BYTES:
            return 0
        with tempfile.TemporaryDirectory() as folder:
            make_shallow(resolve_folder(arguments.model, log.debug), Path(folder))
            card = load_card(folder, arguments.dtype, load_format="dummy")
            run(card, arguments.part, device, arguments.dtype, settings)
    except Exception as error:  # a worker that fails of the same will tell more
        print(f"the {arguments.part}'s kernels are not compiled ahead of the workers: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what there is to be warned of concerns the workers, which will do so
    sys.exit(main())
