"""A worker's NIXL agent: memory registered once, neighbours joined once, READs that are never let go of early.

Only what is bound to C++ is used, never the helpers that pickle descriptors: those are made of addresses, lengths and
device numbers.

Measured of nixl 1.5.1 with UCX, between processes of one host and over TCP; the code below leans on each:
- A progress thread without a delay burns a core while idle; with 100 µs it sleeps on UCX's events (1 % of a core), and
  an owner over TCP needs one, since its side of a READ is software.
- A READ that was released in flight still lands once its owner goes on, and so does one whose peer was removed. So
  nothing is released before it ended, and no peer is removed under a READ.
- A stopped owner holds a READ for good; a killed one ends it at once with an exception from polling. So does a dead
  connection, after UCX's keepalive.
- What lost its connection must be removed before it can be joined again; a new process under an old name is refused. So
  each agent has a name of its own.
- Metadata that cannot be loaded may leave half a peer behind, which must be removed.
- One lock for all threads (strict) is faster than NIXL's readers' lock, under which polling threads starve progress.
"""

import logging
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.arena import ArenaInfo, NixlInfo
from triptych.transfer.slab import Slab

log = logging.getLogger(__name__)

_PROGRESS_MICROSECONDS = 100

Result = TypeVar("Result")


class Take(NamedTuple):
    """What a READ brings, one piece behind the other, and where to.

    pieces: [pieces, 2] int64 offsets from the slab's first byte, and lengths
    target: [bytes] uint8 that the pieces fill from its beginning
    """

    pieces: Int64Array
    target: Tensor


@dataclass(slots=True)
class _Remote:
    """A neighbour's agent that is joined. Under the agent's lock."""

    users: int = 0  # open mappings, and READs that have not ended
    broken: bool = False  # its connection was lost


class NixlAgent:
    """One agent of this process. Thread-safe."""

    def __init__(self, bindings: Any) -> None:
        self.name = f"triptych-{os.getpid()}-{secrets.token_hex(8)}"
        self._bindings = bindings
        config = bindings.nixlAgentConfig()
        config.useProgThread, config.useListenThread = True, False
        config.pthrDelay = _PROGRESS_MICROSECONDS
        config.syncMode = bindings.NIXL_THREAD_SYNC_STRICT
        self._agent = bindings.nixlAgent(self.name, config)
        self._backend = self._agent.createBackend("UCX", {})
        self._lock = threading.Lock()
        self._registered: dict[int, Tensor] = {}  # by address; held as long as NIXL knows the memory
        self._num_reads = 0
        self._remotes: dict[str, _Remote] = {}

    # ------------------------------------------------------------------------------------------------ memory

    def describe(self, slab: Slab) -> ArenaInfo:
        """What `slab.describe` tells, and how it is reached over NIXL; registers the slab if it was not.

        Raises TransferFailed when it cannot be registered.
        """
        info = slab.describe()
        address = slab.data.data_ptr() - info.data_offset
        with self._lock:
            if address not in self._registered:
                self._register(address, info.num_bytes, slab.data)
            metadata = self._call("telling what is registered", self._agent.getLocalMD)
        device = slab.device.index or 0
        return replace(info, nixl=NixlInfo(self.name, metadata, address, device, slab.device.type == "cuda"))

    def register(self, memory: Tensor) -> None:
        """Lets READs land in a contiguous tensor, which is kept until `close`. Raises TransferFailed."""
        with self._lock:
            self._register(memory.data_ptr(), memory.numel() * memory.element_size(), memory)

    def _register(self, address: int, num_bytes: int, memory: Tensor) -> None:
        kind, device = self._kind(memory.device.type == "cuda"), memory.device.index or 0
        descriptors = self._bindings.nixlRegDList(kind, [(address, num_bytes, device, "")])
        self._call(f"registering {num_bytes} bytes", lambda: self._agent.registerMem(descriptors, [self._backend]))
        self._registered[address] = memory

    # ------------------------------------------------------------------------------------------------ neighbours

    def join(self, info: NixlInfo) -> None:
        """The neighbour's agent becomes reachable, until as many `leave`. Raises TransferFailed."""
        with self._lock:
            remote = self._remotes.get(info.agent)
            if remote is not None and remote.broken:
                raise TransferFailed(f"the connection to NIXL agent {info.agent} was lost, and reads of it still run")
            if remote is None:
                self._load(info)
                remote = self._remotes[info.agent] = _Remote()
            remote.users += 1

    def leave(self, name: str) -> None:
        """One use less of a joined neighbour; the last one removes it."""
        with self._lock:
            remote = self._remotes[name]
            remote.users -= 1
            if not remote.users:
                del self._remotes[name]
                self._remove(name)

    def _load(self, info: NixlInfo) -> None:
        try:
            found = self._call("joining a neighbour", lambda: self._agent.loadRemoteMD(info.metadata))
        except TransferFailed:
            self._remove(info.agent)
            raise
        name = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        if name != info.agent:
            self._remove(name)
            raise TransferFailed(f"the metadata is of NIXL agent {name}, the owner is {info.agent}")

    def _remove(self, name: str) -> None:
        try:
            self._agent.invalidateRemoteMD(name)
        except Exception as error:  # unknown by now, or half known: gone is all that matters
            log.debug("removing NIXL agent %s: %s", name, error)

    # ------------------------------------------------------------------------------------------------ reading

    def read(self, source: NixlInfo, takes: Sequence[Take], notice: bytes = b"") -> "NixlRead":
        """Starts reading pieces of a joined neighbour's memory into registered memory of one kind; in no set order.

        notice: what the owner's agent is told once the last byte has been read; empty: nothing
        Raises TransferFailed. Whatever else happens shows by polling what comes back.
        """
        pieces = np.concatenate([take.pieces for take in takes]) if len(takes) > 1 else takes[0].pieces
        into = np.concatenate([_addresses(take) for take in takes])
        target = takes[0].target.device
        remote = self._list(source.address + pieces[:, 0], pieces[:, 1], source.device, source.vram)
        local = self._list(into, pieces[:, 1], target.index or 0, target.type == "cuda")
        with self._lock:
            known = self._remotes.get(source.agent)
            if known is None or known.broken:
                raise TransferFailed(f"NIXL agent {source.agent} is not connected")
            known.users += 1
            self._num_reads += 1
        try:
            return NixlRead(self, source.agent, self._start(source.agent, local, remote, notice), takes)
        except BaseException:
            self._end_read(source.agent)
            raise

    def _start(self, name: str, local: Any, remote: Any, notice: bytes) -> int:
        operation, backends = self._bindings.NIXL_READ, [self._backend]
        make = self._agent.createXferReq
        handle: int = self._call("preparing a read", lambda: make(operation, local, remote, name, notice, backends))
        try:
            self._call("reading", lambda: self._agent.postXferReq(handle, notice))
        except TransferFailed:
            self._free(handle)
            self._mark_broken(name)
            raise
        return handle

    def _list(self, addresses: Int64Array, lengths: Int64Array, device: int, on_gpu: bool) -> Any:
        rows = np.empty((lengths.size, 3), dtype=np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = addresses, lengths, device
        return self._bindings.nixlXferDList(self._kind(on_gpu), rows)

    def finished(self, handle: int) -> bool:
        """Whether a READ is done. Raises TransferFailed once it never will be; nothing is written any more then."""
        status = self._call("reading", lambda: self._agent.getXferStatus(handle))
        return bool(status == self._bindings.NIXL_SUCCESS)

    def end(self, handle: int, name: str, *, well: bool) -> None:
        """Gives back what a READ of that neighbour held, now that it ended."""
        self._free(handle)
        if not well:
            self._mark_broken(name)
        self._end_read(name)

    def _end_read(self, name: str) -> None:
        self.leave(name)
        with self._lock:
            self._num_reads -= 1

    def _free(self, handle: int) -> None:
        try:
            self._agent.releaseXferReq(handle)
        except Exception as error:
            log.warning("a NIXL read that ended cannot be freed: %s", error)

    def _mark_broken(self, name: str) -> None:
        with self._lock:
            self._remotes[name].broken = True

    # ------------------------------------------------------------------------------------------------ the rest

    def notices(self) -> list[bytes]:
        """What readers told since the last call. Raises TransferFailed."""
        told = self._call("asking for notices", lambda: self._agent.getNotifs({}, [self._backend]))
        return [notice for notices in told.values() for notice in notices]

    def close(self) -> None:
        """Ends the agent, unless READs still run: they need it, and go with the process. Closing again does nothing."""
        with self._lock:
            if self._num_reads:
                log.warning("%d NIXL reads have not ended; their memory is kept", self._num_reads)
                return
            self._agent = None  # every later call is refused by `_call`
            self._registered.clear()

    def _kind(self, on_gpu: bool) -> Any:
        return self._bindings.VRAM_SEG if on_gpu else self._bindings.DRAM_SEG

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        """NIXL's own exceptions have no base of their own; whatever it raises is an ordinary outcome."""
        try:
            return call()
        except Exception as error:
            raise TransferFailed(f"NIXL: {what} failed: {error}") from error


class NixlRead:
    """A READ on its way. Poll it until it ended, whoever waits or not; its targets are in use until then."""

    def __init__(self, agent: NixlAgent, remote: str, handle: int, takes: Sequence[Take]) -> None:
        self._agent = agent
        self._remote = remote
        self._handle = handle
        self._takes = takes
        self._lock = threading.Lock()
        self._outcome: bool | TransferFailed = False

    def done(self) -> bool:
        """Whether the bytes are there. Raises TransferFailed once they will not come; nothing is written then."""
        with self._lock:
            if self._outcome is False:
                self._poll()
            if isinstance(self._outcome, TransferFailed):
                raise self._outcome
            return self._outcome

    def ended(self) -> bool:
        """Whether nothing is written any more, well or not."""
        try:
            return self.done()
        except TransferFailed:
            return True

    def _poll(self) -> None:
        try:
            self._outcome = self._agent.finished(self._handle)
        except TransferFailed as error:
            self._outcome = error
        if self._outcome is not False:
            self._agent.end(self._handle, self._remote, well=self._outcome is True)


def _addresses(take: Take) -> Int64Array:
    """[pieces] int64 where each piece goes. Raises TransferFailed where they do not fit."""
    lengths = take.pieces[:, 1]
    ends = np.cumsum(lengths)
    if int(ends[-1]) > take.target.numel():
        raise TransferFailed(f"{int(ends[-1])} bytes to be read into {take.target.numel()}")
    addresses: Int64Array = take.target.data_ptr() + ends - lengths
    return addresses
