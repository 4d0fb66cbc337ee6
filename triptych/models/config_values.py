"""Reading the checkpoint's JSON: values of the right kind, or an error that names them. No torch."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from triptych.errors import ConfigError


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; ConfigError where it is missing, unreadable or no object."""
    try:
        with open_regular(file) as stream:
            value = json.loads(stream.read().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds a {type(value).__name__}, expected an object")
    return value


def read_optional_json(file: Path) -> dict[str, Any]:
    """As `read_json`, empty where there is no such file."""
    return read_json(file) if file.exists() else {}


def open_regular(file: Path) -> BinaryIO:
    """The file, open for reading; ConfigError where it is none, OSError where it cannot be opened.

    What is looked at is what was opened, without waiting for it: whoever opens a FIFO waits until somebody writes.
    """
    stream = open(file, "rb", opener=_open_at_once)  # noqa: SIM115  # it is the caller's
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise ConfigError(f"{file} is no regular file; a model's files have to be")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def whole_number(values: Mapping[str, Any], name: str, at_least: int = 1) -> int:
    """`values[name]`, checked; ConfigError names it."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {at_least}")
    return value


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's part of `config.json`; older checkpoints keep it at the top."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config
