"""Holds a dashboard's JSON against the types of one release of Grafana, as grafana-foundation-sdk has them."""

import enum
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def parsed(told: Mapping[str, Any]) -> Dashboard:
    """Every part of it as the type that Grafana has for it; what no type knows is left out."""
    register_default_plugins()
    return Dashboard.from_json(dict(told))


def faults(value: object, hint: object = Any, path: str = "") -> Iterator[str]:
    """Where a value is not what the type says: kind, one of an enumeration, elements, fields."""
    if isinstance(value, dict):  # the library parses most parts, but not all
        value = next((part.from_json(value) for part in _parts(hint) if hasattr(part, "from_json")), value)
    if not _fits(value, hint):
        yield f"{path} is {value!r}, expected {hint}"
    elif isinstance(value, list):
        element = next((part for part in _parts(hint) if typing.get_origin(part) is list), None)
        inner = typing.get_args(element)[0] if element is not None else Any
        for index, each in enumerate(value):
            yield from faults(each, inner, f"{path}[{index}]")
    elif (fields := _fields(type(value))) is not None:
        for name, wanted in fields.items():
            yield from faults(getattr(value, name), wanted, f"{path}.{name}")


def _fields(kind: type) -> Mapping[str, object] | None:
    """Of one of the library's types, by attribute; None for anything else."""
    return typing.get_type_hints(kind) if kind.__module__.startswith("grafana_foundation_sdk.models") else None


def _parts(hint: object) -> tuple[object, ...]:
    """The alternatives of a union."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _fits(value: object, hint: object) -> bool:
    return any(_fits_one(value, part) for part in _parts(hint))


def _fits_one(value: object, hint: object) -> bool:
    if hint is Any or hint is object:
        return True
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    kind = origin or hint
    assert isinstance(kind, type), hint
    if issubclass(kind, enum.Enum):
        return value in [member.value for member in kind]
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
