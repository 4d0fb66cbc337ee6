"""Weights on disk: which safetensors file holds which tensor, told by headers alone. No torch.

[u64 length of the header][header: JSON, name -> dtype, shape, data_offsets][data]
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import ConfigError
from triptych.models.config_values import open_regular, read_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One stored tensor."""

    dtype: str  # as the format names it: F32, BF16, ...
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WeightsHeader:
    """What one safetensors file says about itself."""

    raw: bytes
    entries: Mapping[str, TensorEntry]


def weights_files(folder: Path) -> tuple[Path, ...]:
    """The checkpoint's safetensors files by name; ConfigError names the one that is missing."""
    if (folder / INDEX_FILE).is_file():
        files = sorted(set(weight_map(folder).values()))
    elif (folder / SINGLE_FILE).is_file():
        files = [folder / SINGLE_FILE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} holds no safetensors, expected {SINGLE_FILE} or {INDEX_FILE}")
    for file in files:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file} is no regular file; a model's files have to be")
        if not file.is_file():
            raise ConfigError(f"{file} is missing; {INDEX_FILE} names it")
    return tuple(files)


def weight_map(folder: Path) -> dict[str, Path]:
    """Tensor name to its file. With an index, files that hold nothing wanted need not be there."""
    if (folder / INDEX_FILE).is_file():
        names = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
            raise ConfigError(f"{folder / INDEX_FILE} has no weight_map from tensor names to files")
        return {name: folder / Path(file).name for name, file in names.items()}
    return {name: file for file in weights_files(folder) for name in read_header(file).entries}


def read_header(file: Path) -> WeightsHeader:
    """Names, types and shapes in one file; ConfigError where it is cut short or no safetensors file."""
    try:
        with open_regular(file) as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            raw = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
            size = stream.seek(0, 2)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    try:
        header = json.loads(raw)
        entries = {name: _entry(facts) for name, facts in header.items() if name != "__metadata__"}
        data_bytes = max((facts["data_offsets"][1] for facts in header.values() if "data_offsets" in facts), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ConfigError(f"{file} is no safetensors file: {error!r}") from error
    expected = _LENGTH_BYTES + length + data_bytes
    if size != expected:
        raise ConfigError(f"{file} has {size} bytes, its header tells of {expected}: incomplete download?")
    return WeightsHeader(raw, entries)


def _entry(facts: Mapping[str, Any]) -> TensorEntry:
    begin, end = facts["data_offsets"]
    return TensorEntry(str(facts["dtype"]), tuple(int(side) for side in facts["shape"]), int(end) - int(begin))
