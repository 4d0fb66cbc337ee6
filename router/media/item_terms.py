"""What a request says about its images beside their bytes. Every bit of it is part of what an item is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from blake3 import blake3

from triptych.errors import InvalidRequest
from triptych.models.adapter import Adapter
from triptych.multimodal.digest import encode_canonical
from triptych.router.media.names import Namespace

SALT_DOMAIN = "triptych.salt.v1"
OPTIONS_PARAM = "mm_processor_kwargs"
MOST_OPTIONS = 16
_LARGEST_OPTION = 1 << 62


@dataclass(frozen=True, slots=True)
class ItemTerms:
    """options:    of the model's image processor; unknown ones are refused
    cache_salt: rows and KV are shared only between requests of the same salt
    names:      whose uuids its images go by
    """

    options: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    cache_salt: bytes = b""
    names: Namespace = ("", "")

    def options_with(self, detail: Mapping[str, int]) -> Mapping[str, int]:
        """For one image. detail: what its `detail` stands for, which never makes an image larger than `options` do."""
        if not detail:
            return self.options
        options = dict(self.options)
        for name, value in detail.items():
            options[name] = max(min(value, options.get(name, value)), options.get("min_pixels", 1))
        return options


NO_TERMS = ItemTerms()


def terms_of(
    asked: Mapping[str, Any] | None, salt: str | None, tenant: str, adapter: Adapter, *, isolate: bool
) -> ItemTerms:
    """Of a request's `mm_processor_kwargs` and `cache_salt`. Raises InvalidRequest.

    isolate: whether tenants that choose the same salt, or none, are kept apart
    """
    options = _options(asked or {}, adapter)
    return ItemTerms(options, _salt(tenant if isolate else "", salt or ""), (tenant, salt or ""))


def _options(asked: Mapping[str, Any], adapter: Adapter) -> Mapping[str, int]:
    known = adapter.option_names
    if len(asked) > MOST_OPTIONS:
        raise InvalidRequest(f"{OPTIONS_PARAM} has {len(asked)} entries, expected {_list(known)}", param=OPTIONS_PARAM)
    strange = sorted(str(name)[:40] for name in asked if name not in known)
    if strange:
        raise InvalidRequest(
            f"{OPTIONS_PARAM} has {', '.join(map(repr, strange))}; this model takes {_list(known)}",
            param=f"{OPTIONS_PARAM}.{strange[0]}",
        )
    for name, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST_OPTION:
            raise InvalidRequest(
                f"{OPTIONS_PARAM}.{name} is no whole number above 0 that can be one of pixels",
                param=f"{OPTIONS_PARAM}.{name}",
            )
    return MappingProxyType(dict(asked))


def _salt(tenant: str, salt: str) -> bytes:
    """None where there is neither; else one that no other pair has."""
    if not tenant and not salt:
        return b""
    return bytes(blake3(encode_canonical([SALT_DOMAIN, tenant, salt])).digest())


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
