"""Reading what people have written as TOML: tables, or one error that says why there are none."""

import tomllib
from typing import Any

from triptych.errors import ConfigError


def toml_tables(data: bytes) -> dict[str, Any]:
    """The tables of a file. Raises ConfigError for whatever is none, in words that quote nothing of it.

    TOML is UTF-8 whatever the locale says, and a mark in front, as some editors put it, is no part of it.
    """
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"no UTF-8: {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"no TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists in lists in lists
        raise ConfigError(f"no TOML that can be meant: {str(error).partition(';')[0]}") from None
