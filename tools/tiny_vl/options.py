"""Values on the tools' command lines, checked before anything runs; what is wrong with one is said in one line."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit


class Parser(argparse.ArgumentParser):
    """One line about what is wrong, and exit code 2; --help has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def whole(least: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers from `least` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
        return value

    return parse


def seconds(text: str) -> float:
    """A type for argparse: a length of time, endless too."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def server_url(text: str) -> str:
    """A type for argparse: a server's address; the /v1 that `triptych serve` prints behind it may be there or not."""
    expected = "expected one such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(text)
        named = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no address ({error}), {expected}") from None
    path = parts.path.rstrip("/")
    if parts.scheme not in ("http", "https") or not named or path not in ("", "/v1") or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text} is not a server's address, {expected}")
    return f"{parts.scheme}://{parts.netloc}"


def result_file(text: str) -> Path:
    """A type for argparse: a file to be written, in a folder that is there."""
    file = Path(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{file} is a folder, expected a file")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{file.parent} is not a folder")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{file} cannot be written")
    return file


def folder(text: str) -> Path:
    """A type for argparse: a folder to write to, there or to be made."""
    wanted = Path(text)
    there = next(each for each in (wanted, *wanted.absolute().parents) if each.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file, expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{there} cannot be written to")
    return wanted
