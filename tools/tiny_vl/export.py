"""The trained model as a folder that transformers and triptych load like any other Qwen2.5-VL."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny_vl import checkpoint
from tools.tiny_vl.config import MAX_BYTES, MAX_PARAMETERS, Geometry, model_config
from tools.tiny_vl.options import Parser, folder
from tools.tiny_vl.parameters import Layout
from tools.tiny_vl.tokenizer import build_tokenizer, save_processor
from tools.tiny_vl.words import vocabulary


class TooLarge(Exception):
    """The model would not do as package data: make it smaller."""


def write_model(folder: Path, geometry: Geometry, flat: Tensor, tokenizer: Tokenizer) -> None:
    """Write config, processor and weights, rounded to bfloat16, language model and tower in a file each.

    flat: [num_all] float32, laid out as Layout.of(geometry) says
    Raises TooLarge beyond MAX_PARAMETERS or MAX_BYTES.
    """
    weights = {
        name: view.detach().cpu().to(torch.bfloat16).contiguous().clone()
        for name, view in Layout.of(geometry).views(flat).items()
    }
    total = sum(weight.numel() for weight in weights.values())
    size = sum(weight.nbytes for weight in weights.values())
    if total > MAX_PARAMETERS or size > MAX_BYTES:
        raise TooLarge(f"{total} parameters, {size} bytes; expected at most {MAX_PARAMETERS} and {MAX_BYTES}")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", model_config(geometry))
    _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 2, "use_cache": True})
    save_processor(folder, tokenizer)
    place_by_name: dict[str, str] = {}
    for number, part in enumerate(("model.", "visual."), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        shard = {name: weight for name, weight in sorted(weights.items()) if name.startswith(part)}
        save_file(shard, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # package data is for every user
        place_by_name |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_parameters": total, "total_size": size}, "weight_map": place_by_name}
    _write_json(folder / "model.safetensors.index.json", index)


def main(arguments: list[str] | None = None) -> int:
    """Write the model of a training run's latest state."""
    parser = Parser(prog="python -m tools.tiny_vl export", description=main.__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder that train saves to")
    parser.add_argument("--output", type=folder, required=True, help="folder to write the model to")
    options = parser.parse_args(arguments)
    try:
        saved = checkpoint.load(options.state)
    except checkpoint.StateUnreadable as error:
        parser.error(str(error))
    if saved is None:
        parser.error(f"no saved state in {options.state}")
    step, tensors, facts = saved
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts["geometry"].items()
    }
    geometry = Geometry(**values)
    write_model(options.output, geometry, tensors["weights"], build_tokenizer(vocabulary(), geometry.vocabulary))
    print(f"model of step {step} written to {options.output}")
    return 0


def _write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
