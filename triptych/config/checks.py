"""What a setting must be, said in one sentence with its name, the value met and what would do."""

import ipaddress
import math
from typing import Any

from triptych.errors import ConfigError


def require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}, expected {wanted}")


def require_positive(table: str, settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(0 < value < math.inf, f"{table}.{name}", value, "above 0 and finite")


def require_network(name: str, cidr: str) -> None:
    try:
        ipaddress.ip_network(cidr)
    except ValueError as error:
        raise ConfigError(f"{name} has {cidr!r}, expected a network as 127.0.0.0/8: {error}") from None


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    require(value in choices, name, value, "one of " + ", ".join(choices))
