"""Reading the checkpoint's JSON: values of the right kind, or an error that names them. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triptych.errors import ConfigError


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; ConfigError where it is missing, unreadable or no object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds a {type(value).__name__}, expected an object")
    return value


def read_optional_json(file: Path) -> dict[str, Any]:
    """As `read_json`, empty where there is no such file."""
    return read_json(file) if file.is_file() else {}


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
