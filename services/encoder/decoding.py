"""Where strangers' images are decoded: in processes that may be lost, or on the caller's thread."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from triptych.errors import ConfigError
from triptych.multimodal.canonical import UInt8Array, write_planes
from triptych.multimodal.header import MediaHeader
from triptych.services.encoder.decode_pool import DecodePool

log = logging.getLogger(__name__)


class Decoder(Protocol):
    """Called from several threads at once."""

    def planes(self, data: bytes, header: MediaHeader) -> AbstractContextManager[UInt8Array]:
        """Canonical RGB [3, height, width] of the image that `header` announces, there until the context is left.

        Raises InvalidMedia where it cannot be decoded.
        """

    def await_started(self) -> None:
        """Raises ConfigError where it cannot be had."""

    def gauges(self) -> Mapping[str, float]: ...

    def close(self) -> None:
        """Frees what it holds; who waits for it is told Cancelled."""


class OnThreads:
    """A Decoder: on the thread that asks. A file that makes the decoder crash takes this process along."""

    @contextlib.contextmanager
    def planes(self, data: bytes, header: MediaHeader) -> Iterator[UInt8Array]:
        """As Decoder.planes."""
        planes = np.empty((3, header.height, header.width), np.uint8)
        write_planes(data, header, planes)
        yield planes

    def await_started(self) -> None:
        """There is nothing to start."""

    def gauges(self) -> Mapping[str, float]:
        return {"encoder_decode_processes": 0.0, "encoder_decode_lost_total": 0.0}

    def close(self) -> None:
        """Nothing is held."""


def choose_decoder(setting: str, threads: int) -> Decoder:
    """What `encoder.decode_isolation` asks for, for so many threads; processes begin to start.

    auto: processes, where the system has memory to share with them. Raises ConfigError for `processes` where not.
    """
    if setting == "threads":
        return OnThreads()
    if hasattr(os, "memfd_create"):
        return DecodePool(threads)
    if setting == "processes":
        raise ConfigError("encoder.decode_isolation is processes, which needs memfd, as Linux has it: expected threads")
    log.warning("images are decoded in this process, which a broken file may end: this system has no memfd")
    return OnThreads()
