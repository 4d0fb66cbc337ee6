"""Weights from disk into a module, tensor by tensor: only those it has parameters for are read.

A module is built without memory first, so that its parameters are allocated once, in the dtype and on the device they
are used in. What is mapped to read a file is unmapped when the file is done.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from triptych.errors import ConfigError
from triptych.models.checkpoint import weight_map

log = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)

_OBSOLETE = "rotary_emb.inv_freq"  # stored by old releases; recomputed from the config


def build_empty(make: Callable[[], Module], dtype: torch.dtype, device: torch.device) -> Module:
    """The module with allocated, unset parameters; buffers that no checkpoint stores are computed."""
    with torch.device("meta"):
        module = make().to(dtype)
    module.to_empty(device=device)
    for part in module.modules():
        if part._non_persistent_buffers_set:
            _recompute_buffers(part, device)
    return module.requires_grad_(False).eval()


def read_weights(module: nn.Module, folder: Path, prefixes: Mapping[str, Sequence[str]]) -> int:
    """Sets every parameter from the checkpoint in the folder; returns the bytes read.

    prefixes: start of parameter names -> what checkpoints may write instead, longest first; every name has one start
    Raises ConfigError naming a tensor that is missing, of another shape, or that the module has no place for.
    """
    files = weight_map(folder)
    parameters = dict(module.named_parameters())
    stored: dict[str, str] = {}
    for start, alternatives in prefixes.items():
        endings = [name.removeprefix(start) for name in parameters if name.startswith(start)]
        if endings:
            prefix = max(alternatives, key=lambda each: sum(each + ending in files for ending in endings))
            _check_names(prefix, endings, files, folder)
            stored |= {start + ending: prefix + ending for ending in endings}
    assert stored.keys() == parameters.keys(), parameters.keys() - stored.keys()
    num_bytes = 0
    chosen = sorted({files[name] for name in stored.values()})
    for number, file in enumerate(chosen, start=1):
        log.info("reading %s (%d of %d)", file.name, number, len(chosen))
        wanted = {name: source for name, source in stored.items() if files[source] == file}
        num_bytes += _read_file(file, wanted, parameters)
    log.info("read %d tensors, %.1f MB, of %s", len(stored), num_bytes / 1e6, folder)
    return num_bytes


def _check_names(prefix: str, endings: Sequence[str], files: Mapping[str, Path], folder: Path) -> None:
    """What is stored under the prefix must be what the config makes of it: half a model answers fluently, too."""
    for ending in endings:
        if prefix + ending not in files:
            raise ConfigError(f"{folder} has no tensor {prefix}{ending}")
    known = {prefix + ending for ending in endings}
    for name in files:
        if name.startswith(prefix) and name not in known and not name.endswith(_OBSOLETE):
            raise ConfigError(f"{folder} has a tensor {name} that its config has no place for")


def _read_file(file: Path, wanted: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> int:
    """Copies the tensors of one file into their parameters; returns their bytes."""
    num_bytes = 0
    try:
        with safe_open(file, framework="pt", device="cpu") as weights:
            for name, source in wanted.items():
                tensor = weights.get_tensor(source)
                if tensor.shape != parameters[name].shape:
                    found, made = tuple(tensor.shape), tuple(parameters[name].shape)
                    raise ConfigError(f"{file}: {source} is {found}, the config makes it {made}")
                parameters[name].data.copy_(tensor)
                num_bytes += tensor.numel() * tensor.itemsize
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    return num_bytes


def _recompute_buffers(part: nn.Module, device: torch.device) -> None:
    """Rotary frequencies and the like: functions of the config alone, in the dtype their module chooses."""
    fresh = type(part)(part.config)
    for name, buffer in fresh.named_buffers(recurse=False):
        setattr(part, name, buffer.to(device))
