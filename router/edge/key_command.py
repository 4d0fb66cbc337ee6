"""`triptych keys new NAME`: a fresh key, and what the server is to know of it."""

import argparse
import secrets
import sys

from triptych.config import load_settings
from triptych.errors import ConfigError
from triptych.router.edge.auth import Key, digest_of, toml_of
from triptych.router.edge.limits import Limits

_NUM_BYTES = 32


def run(arguments: argparse.Namespace) -> int:
    """The key alone goes to stderr, so that what is appended to a file by `>>` never holds it.

    Raises ConfigError for a class of service that the server would refuse the file for.
    """
    if arguments.slo:
        _require_class(arguments)
    key = "tp-" + secrets.token_urlsafe(_NUM_BYTES)
    limits = Limits(arguments.requests_per_minute, arguments.tokens_per_minute, arguments.max_concurrent)
    entry = toml_of(Key(arguments.name, digest_of(key), limits, arguments.admin, arguments.slo))
    print(f"The key, told this once: {key}\nFor the file of router.api_keys_file:", file=sys.stderr, flush=True)
    print(entry)
    return 0


def _require_class(arguments: argparse.Namespace) -> None:
    try:
        load_settings(arguments.config).slo.of(arguments.slo)
    except ConfigError as error:
        if arguments.config is not None:
            raise
        raise ConfigError(f"{error.message}; where the server has others, name its file with --config") from error
