"""API keys: who is behind one, and what they may do.

A file has one table for each key:

    [[keys]]
    tenant = "alice"
    sha256 = "9f86d0…"           # of the key; `triptych keys new alice` prints key and table
    requests_per_minute = 60     # optional, as the following; 0: no limit
    tokens_per_minute = 0        # prompt and answer together
    max_concurrent = 8
    role = "admin"               # may ask what operators ask
    slo = "batch"                # class of service of requests that name none themselves

Several keys of one tenant, as while one is replaced by the next, share its limits.

Digests are plain SHA-256. Slow ones such as bcrypt protect what people make up; our keys are 256 random bits, which
nobody guesses at any speed, and a slow digest would cost every request tens of milliseconds. Keys that people made up
do not belong here. A key is found by its digest in a dict: how long that takes depends on digests alone, of which
nobody can choose even the beginning without having found a matching key by chance.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.config import RouterSettings, SLOSettings
from triptych.config.toml import toml_tables
from triptych.errors import ConfigError
from triptych.router.edge.limits import Limits

DEFAULT_TENANT = "default"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_KNOWN = {"tenant", "sha256", "role", "slo", *_LIMITS}
_HASHED = "sha256:"


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of one key; never the key."""

    tenant: str
    sha256: str
    limits: Limits = field(default_factory=Limits)
    is_admin: bool = False
    slo: str = ""  # class of service; empty: the server's default

    def __post_init__(self) -> None:
        if not _TENANT.fullmatch(self.tenant):
            raise ConfigError(f"tenant {self.tenant!r} is not 1 to 64 of A-Z a-z 0-9 . _ @ -")
        if not _DIGEST.fullmatch(self.sha256):
            raise ConfigError(f"the sha256 of {self.tenant}'s key is not 64 of 0-9 a-f")


class KeyRing:
    """Some keys, found by what a client presents. Without any, everybody is let in."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        """Raises ConfigError for keys that contradict each other."""
        self._keys: dict[str, Key] = {}
        limits_by_tenant: dict[str, Limits] = {}
        for key in keys:
            if self._keys.setdefault(key.sha256, key) != key:
                raise ConfigError(f"one key is both {self._keys[key.sha256].tenant}'s and {key.tenant}'s")
            if limits_by_tenant.setdefault(key.tenant, key.limits) != key.limits:
                raise ConfigError(f"the keys of {key.tenant} have different limits; a tenant's keys share them")
        self.limits_by_tenant: Mapping[str, Limits] = limits_by_tenant

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: bytes) -> Key | None:
        return self._keys.get(hashlib.sha256(presented).hexdigest())


class KeyFile:
    """The ring that settings and the file make; looks again whether the file has changed when asked to."""

    def __init__(self, settings: RouterSettings, slo: SLOSettings | None = None) -> None:
        """slo: the classes of service that keys may have; None: any

        Raises ConfigError for a file that cannot be read, or keys that cannot be meant.
        """
        self._slo = slo
        self._fixed = _fixed_keys(settings)
        self._path = Path(settings.api_keys_file) if settings.api_keys_file else None
        self._seen = self._stamp()
        self.ring = KeyRing([*self._fixed, *self._read()])

    @property
    def changes(self) -> bool:
        """Whether it ever can."""
        return self._path is not None

    def reload(self) -> bool:
        """Whether there is a new ring. Touches the disk.

        Raises ConfigError, once for each change, and keeps the old ring.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        self.ring = KeyRing([*self._fixed, *self._read()])
        return True

    def _stamp(self) -> tuple[int, ...]:
        """Equal as long as the file is. A file that is replaced while it is read is read again."""
        if self._path is None:
            return ()
        try:
            stat = self._path.stat()
        except OSError:
            return ()
        return (stat.st_mtime_ns, stat.st_ino, stat.st_size)

    def _read(self) -> Sequence[Key]:
        if self._path is None:
            return []
        try:
            keys = read_keys(self._path.read_bytes())
            for key in keys:
                if key.slo and self._slo is not None:
                    self._slo.of(key.slo)
            return keys
        except OSError as error:
            raise ConfigError(f"cannot read keys from {self._path}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from error


def read_keys(data: bytes) -> Sequence[Key]:
    """The keys of a file. Raises ConfigError; it never quotes what may be a key."""
    tables = toml_tables(data)
    unknown = sorted(tables.keys() - {"keys"})
    entries = tables.get("keys", [])
    if unknown or not isinstance(entries, list):
        raise ConfigError(f"{(unknown or ['keys'])[0]!r} is not a list of tables [[keys]]")
    return [_key(entry, number) for number, entry in enumerate(entries)]


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def toml_of(key: Key) -> str:
    """The key's table, as `read_keys` reads it."""
    numbers = {name: getattr(key.limits, name) for name in _LIMITS}
    lines = ["[[keys]]", f'tenant = "{key.tenant}"', f'sha256 = "{key.sha256}"']
    lines += [f"{name} = {number}" for name, number in numbers.items() if number]
    lines += ['role = "admin"'] if key.is_admin else []
    lines += [f'slo = "{key.slo}"'] if key.slo else []
    return "\n".join(lines) + "\n"


def _key(entry: Any, number: int) -> Key:
    where = f"keys[{number}]"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is no table")
    unknown = sorted(entry.keys() - _KNOWN)
    if unknown:
        raise ConfigError(f"{where} has an unknown entry {unknown[0]!r}; known: {', '.join(sorted(_KNOWN))}")
    for name in ("tenant", "sha256", *(["slo"] if "slo" in entry else [])):
        if not isinstance(entry.get(name), str):
            raise ConfigError(f"{where} needs a text {name!r}")
    role = entry.get("role", "user")
    if role not in ("user", "admin"):
        raise ConfigError(f"{where}: role is {role!r}, expected 'user' or 'admin'")
    for name in _LIMITS:
        value = entry.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{where}: {name} is {value!r}, expected 0 (no limit) or more")
    limits = Limits(**{name: entry.get(name, 0) for name in _LIMITS})
    return Key(entry["tenant"], entry["sha256"].lower(), limits, role == "admin", entry.get("slo", ""))


def _fixed_keys(settings: RouterSettings) -> Sequence[Key]:
    keys = [Key(DEFAULT_TENANT, digest_of(settings.api_key), is_admin=True)] if settings.api_key else []
    for entry in settings.api_keys:
        tenant, equals, key = entry.partition("=")
        if not equals or not key:
            raise ConfigError("router.api_keys has an entry that is not NAME=KEY, or NAME=sha256:DIGEST")
        hashed = key.removeprefix(_HASHED).lower() if key.startswith(_HASHED) else digest_of(key)
        keys.append(Key(tenant, hashed))
    return keys
