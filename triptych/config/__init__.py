"""Settings: one frozen object per process. File, then environment, then flags; a typed value comes out.

A TOML file has one table per dataclass below (`[serve]`, `[router]`, `[encoder]`, `[language]`, `[transfer]`, `[slo]`,
`[observe]`);
`TRIPTYCH_ROUTER_PORT=9000` overrides `[router] port`; command-line flags override both. Unknown names are errors.
"""

import dataclasses
import difflib
import os
import secrets
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from triptych.config.observe import ObserveSettings
from triptych.config.router import RouterSettings
from triptych.config.serve import PLACEMENTS, TOPOLOGIES, ServeSettings
from triptych.config.sizes import CPU_KV_BYTES, GIB, MIB
from triptych.config.slo import ServiceClass, SLOSettings
from triptych.config.toml import toml_tables
from triptych.config.workers import ATTENTIONS, TRANSPORTS, EncoderSettings, LanguageSettings, TransferSettings
from triptych.errors import ConfigError

__all__ = [
    "ATTENTIONS",
    "CLIENT_KEY_VARIABLE",
    "CPU_KV_BYTES",
    "GIB",
    "MIB",
    "PLACEMENTS",
    "TOPOLOGIES",
    "TRANSPORTS",
    "EncoderSettings",
    "LanguageSettings",
    "ObserveSettings",
    "RouterSettings",
    "SLOSettings",
    "ServeSettings",
    "ServiceClass",
    "Settings",
    "TransferSettings",
    "load_settings",
    "settings_as_values",
    "with_secret",
]


CLIENT_KEY_VARIABLE = "TRIPTYCH_API_KEY"  # what clients of a server present; no setting of one


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a process may want to know; handed down, never looked up."""

    serve: ServeSettings = field(default_factory=ServeSettings)
    router: RouterSettings = field(default_factory=RouterSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    language: LanguageSettings = field(default_factory=LanguageSettings)
    transfer: TransferSettings = field(default_factory=TransferSettings)
    slo: SLOSettings = field(default_factory=SLOSettings)
    observe: ObserveSettings = field(default_factory=ObserveSettings)


Table = TypeVar("Table")


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Defaults, overridden by file, then environment (TRIPTYCH_TABLE_NAME), then flags ({"table.name": value}).

    Raises ConfigError naming the setting, the value met and what would do.
    """
    values = _read_file(file) if file is not None else {}
    known = {f"{table}.{name}" for table, kind in _tables().items() for name in _fields(kind)}
    values |= _read_environment(os.environ if environment is None else environment, known)
    values |= {key: value for key, value in (flags or {}).items() if value is not None}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; {_suggestion(unknown[0], known)}")
    return Settings(**{table: _build(table, kind, values) for table, kind in _tables().items()})


def with_secret(settings: Settings) -> Settings:
    """The settings of a cluster that is being started: with a secret of its own, unless they name one."""
    if settings.serve.cluster_secret:
        return settings
    serve = dataclasses.replace(settings.serve, cluster_secret=secrets.token_hex(32))
    return dataclasses.replace(settings, serve=serve)


def settings_as_values(settings: Settings) -> dict[str, Any]:
    """The same as JSON values, that `load_settings` takes as flags; for a process that is to have the same settings."""
    return {
        f"{table}.{name}": value
        for table, entries in dataclasses.asdict(settings).items()
        for name, value in entries.items()
    }


def _tables() -> dict[str, type]:
    hints = typing.get_type_hints(Settings)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(Settings)}


def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        tables = toml_tables(file.read_bytes())
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(f"cannot read settings from {file}: {error}") from error
    values: dict[str, Any] = {}
    for table, entries in tables.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{file}: {table!r} stands outside a table; known tables: {', '.join(_tables())}")
        values |= {f"{table}.{name}": value for name, value in entries.items()}
    return values


def _read_environment(environment: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """What TRIPTYCH_* variables say; a misspelt one must not pass for one that was obeyed."""
    key_by_variable = {"TRIPTYCH_" + key.replace(".", "_").upper(): key for key in known}
    given = {name: value for name, value in environment.items() if name.startswith("TRIPTYCH_")}
    given.pop(CLIENT_KEY_VARIABLE, None)
    unknown = sorted(given.keys() - key_by_variable.keys())
    if unknown:
        raise ConfigError(f"unknown environment variable {unknown[0]}; {_suggestion(unknown[0], key_by_variable)}")
    return {key_by_variable[name]: value for name, value in given.items()}


def _suggestion(name: str, known: Collection[str]) -> str:
    """The nearest known names, or where to find them all."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "triptych/config/ lists all of them"


def _build(table: str, kind: type[Table], values: Mapping[str, Any]) -> Table:
    chosen = {
        name: _convert(f"{table}.{name}", hint, values[f"{table}.{name}"])
        for name, hint in _fields(kind).items()
        if f"{table}.{name}" in values
    }
    return kind(**chosen)


def _convert(key: str, hint: Any, value: Any) -> Any:
    """The value as the field's type; text (environment) is parsed, anything else must fit as it is."""
    if typing.get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ConfigError(f"{key} is {_shown(key, value)}, expected a list, as [{_shown(key, value)}]")
        inner = typing.get_args(hint)[0]
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            return tuple(_table_of(key, inner, part) for part in parts)
        return tuple(
            _convert(key, inner, part.strip() if isinstance(part, str) else part) for part in parts if part != ""
        )
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    try:
        if hint is bool and isinstance(value, str):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[value.lower()]
        if hint is bool and not isinstance(value, bool):
            raise ValueError
        if hint in (int, float) and isinstance(value, bool):
            raise ValueError
        if hint is str and not isinstance(value, str):
            raise ValueError
        if hint is int and not isinstance(value, str) and int(value) != value:
            raise ValueError
        return hint(value)
    except (KeyError, OverflowError, TypeError, ValueError):
        raise ConfigError(f"{key} is {_shown(key, value)}, expected {hint.__name__}") from None


def _table_of(key: str, kind: type[Any], value: Any) -> Any:
    """One of a list of tables, `[[table.name]]` in a file."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is a list of tables, which a file of settings has as [[{key}]]")
    known = {entry.name for entry in dataclasses.fields(kind)}
    unknown = sorted(value.keys() - known)
    if unknown:
        raise ConfigError(f"{key} has an unknown setting {unknown[0]!r}; it knows {', '.join(sorted(known))}")
    missing = {entry.name for entry in dataclasses.fields(kind) if entry.default is dataclasses.MISSING} - value.keys()
    if missing:
        raise ConfigError(f"{key} lacks {', '.join(sorted(missing))}")
    hints = _fields(kind)
    return kind(**{name: _convert(f"{key}.{name}", hints[name], entry) for name, entry in value.items()})


def _shown(key: str, value: Any) -> str:
    table, name = key.split(".")[:2]
    is_secret = not next(entry.repr for entry in dataclasses.fields(_tables()[table]) if entry.name == name)
    return f"of type {type(value).__name__}" if is_secret else repr(value)
