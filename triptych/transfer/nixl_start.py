"""Whether this worker has NIXL, and why not where it has none. An optional dependency: absence is never an error."""

import importlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from triptych.config import TransferSettings
from triptych.errors import TransferFailed
from triptych.journey import ID_BYTES, ClaimId
from triptych.transfer.cuda_events import bind_context
from triptych.transfer.leases import LeaseTable
from triptych.transfer.net_devices import devices_at
from triptych.transfer.nixl_agent import NixlAgent

log = logging.getLogger(__name__)

_NOTICE_SECONDS = 0.01
_IDLE_SECONDS = 0.1
_STARTING = threading.Lock()  # the environment is the whole process's


def start_nixl(settings: TransferSettings, device: torch.device | None = None, host: str = "") -> NixlAgent | None:
    """This worker's agent; None, with the reason in the log, where settings or the host have none.

    device: where the worker's slabs will lie; None for the CPU
    host:   the address that the worker keeps to; empty: none
    """
    if "nixl" not in settings.transports:
        log.info("nixl is not used: transfer.transports names %s", ", ".join(settings.transports))
        return None
    # UCX looks for GPUs as it starts, by the thread's context; else it would reach their memory by way of the host.
    if device is not None:
        bind_context(device)
    try:
        return make_agent(settings, host)
    except TransferFailed as error:
        log.info("nixl is not used: %s", error.message)
        return None


def make_agent(settings: TransferSettings, host: str = "") -> NixlAgent:
    """An agent of this process. Raises TransferFailed with the reason why there is none.

    host: as in start_nixl
    """
    # UCX and NIXL read the environment: most of it once, when they are loaded, the rest for each agent.
    # Where UCX sees no NVLink, as in a container with one GPU, it reads device memory by way of the host: a thousandth
    # of the rate. Reading it directly works wherever handles open, which it asks besides.
    os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")
    # A UCX without CUDA does not know that name and says so; and it would say so, as anything, on standard output,
    # which is for a worker's one line.
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # losses of peers are ours to tell, as ordinary outcomes
    devices = settings.nixl_interface or os.environ.get("UCX_NET_DEVICES", "") or devices_at(host)
    bindings = _bindings()
    with _STARTING, _environment({"UCX_NET_DEVICES": devices, "UCX_TLS": settings.nixl_tls}):
        try:
            return NixlAgent(bindings)
        except Exception as error:
            raise TransferFailed(f"no NIXL agent can be made: {error}") from error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """What is not empty stands in the environment meanwhile. Processes started later have interfaces of their own."""
    before = {name: os.environ.get(name) for name, value in values.items() if value}
    os.environ.update({name: value for name, value in values.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _bindings() -> Any:
    try:
        return importlib.import_module("nixl_cu13._bindings")
    except ImportError as error:
        raise TransferFailed(f"{error}; it comes with triptych's extra `nixl`") from error


def _claims_in(notices: Sequence[bytes]) -> list[ClaimId]:
    """A notice has one claim's id behind the other."""
    return [
        ClaimId(notice[begin : begin + ID_BYTES]) for notice in notices for begin in range(0, len(notice), ID_BYTES)
    ]


class NoticeTaker:
    """Ends the claims whose readers said over NIXL that they have them; `Release` of the same may come besides."""

    def __init__(self, agent: NixlAgent, leases: LeaseTable) -> None:
        self._agent = agent
        self._leases = leases
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nixl-notices", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopping.wait(_NOTICE_SECONDS if len(self._leases) else _IDLE_SECONDS):
            try:
                self._leases.release(_claims_in(self._agent.notices()), by_notice=True)
            except TransferFailed as error:
                log.warning("no notices over NIXL: %s", error.message)
                return
