"""Weights from disk into tensors that are there already: only those that have a place are read.

A module is built without memory first, so that its parameters are allocated once, in the dtype and on the device they
are used in. Files are read side by side; what is mapped to read a file is unmapped when the file is done.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from triptych.errors import ConfigError
from triptych.models.card import ModelCard
from triptych.models.checkpoint import weight_map
from triptych.models.dummy import draw_weights

log = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)

_OBSOLETE = "rotary_emb.inv_freq"  # stored by old releases; recomputed from the config
_MOST_THREADS = 8  # behind which disks are the slower part


def build_empty(make: Callable[[], Module], dtype: torch.dtype, device: torch.device) -> Module:
    """The module with allocated, unset parameters; buffers that no checkpoint stores are computed."""
    with torch.device("meta"):
        module = make().to(dtype)
    module.to_empty(device=device)
    for part in module.modules():
        if part._non_persistent_buffers_set:
            _recompute_buffers(part, device)
    return module.requires_grad_(False).eval()


def fill_module(module: nn.Module, card: ModelCard, prefixes: Mapping[str, Sequence[str]]) -> None:
    """As `fill`, every parameter of the module."""
    fill({name: parameter.data for name, parameter in module.named_parameters()}, card, prefixes)


@torch.no_grad()
def fill(places: Mapping[str, Tensor], card: ModelCard, prefixes: Mapping[str, Sequence[str]]) -> None:
    """Sets every tensor by its name: from the card's checkpoint, or at random where the card says so.

    prefixes: start of names -> what checkpoints may write instead, longest first; every name has one start
    Raises ConfigError naming a tensor that is missing, of another shape, or that there is no place for.
    """
    if card.load_format == "dummy":
        draw_weights(places)
    else:
        _read_tensors(places, card.folder, prefixes)


def _read_tensors(places: Mapping[str, Tensor], folder: Path, prefixes: Mapping[str, Sequence[str]]) -> None:
    files = weight_map(folder)
    stored: dict[str, str] = {}
    for start, alternatives in prefixes.items():
        endings = [name.removeprefix(start) for name in places if name.startswith(start)]
        if endings:
            prefix = max(alternatives, key=lambda each: sum(each + ending in files for ending in endings))
            _check_names(prefix, endings, files, folder)
            stored |= {start + ending: prefix + ending for ending in endings}
    assert stored.keys() == places.keys(), places.keys() - stored.keys()
    sources: dict[Path, dict[str, Tensor]] = {}
    for name, source in stored.items():
        sources.setdefault(files[source], {})[source] = places[name]
    read = partial(_read_file, _Progress(len(sources)))
    with ThreadPoolExecutor(min(_MOST_THREADS, len(sources)), "read-weights") as threads:
        num_bytes = sum(threads.map(read, sources, sources.values()))
    log.info("read %d tensors, %.1f MB, of %s", len(stored), num_bytes / 1e6, folder)


class _Progress:
    """Says how many files are done."""

    def __init__(self, num_files: int) -> None:
        self._num_files = num_files
        self._done = 0
        self._lock = threading.Lock()

    def finished(self, file: Path) -> None:
        with self._lock:
            self._done += 1
            log.info("%s is read (%d of %d)", file.name, self._done, self._num_files)


def _check_names(prefix: str, endings: Sequence[str], files: Mapping[str, Path], folder: Path) -> None:
    """What is stored under the prefix must be what the config makes of it: half a model answers fluently, too."""
    for ending in endings:
        if prefix + ending not in files:
            raise ConfigError(f"{folder} has no tensor {prefix}{ending}")
    known = {prefix + ending for ending in endings}
    for name in files:
        if name.startswith(prefix) and name not in known and not name.endswith(_OBSOLETE):
            raise ConfigError(f"{folder} has a tensor {name} that its config has no place for")


def _read_file(progress: _Progress, file: Path, places: Mapping[str, Tensor]) -> int:
    """Copies tensors of one file, by their stored names, to their places; returns their bytes."""
    num_bytes = 0
    try:
        with torch.no_grad(), safe_open(file, framework="pt", device="cpu") as weights:
            for source, place in places.items():
                tensor = weights.get_tensor(source)
                if tensor.shape != place.shape:
                    found, made = tuple(tensor.shape), tuple(place.shape)
                    raise ConfigError(f"{file}: {source} is {found}, the config makes it {made}")
                place.copy_(tensor)
                num_bytes += tensor.numel() * tensor.itemsize
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    progress.finished(file)
    return num_bytes


def _recompute_buffers(part: nn.Module, device: torch.device) -> None:
    """Rotary frequencies and the like: functions of the config alone, in the dtype their module chooses."""
    fresh = type(part)(part.config)
    for name, buffer in fresh.named_buffers(recurse=False):
        setattr(part, name, buffer.to(device))
