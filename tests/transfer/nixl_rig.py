"""Owners in processes of their own that are reached over NIXL alone, by TCP, and readers with an agent of their own."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.neighbours import CPU, HERE, OWNER, Neighbour, fill
from triptych.config import TransferSettings
from triptych.journey import ClaimId, Endpoint, RequestId
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.leases import Claimed, LeaseTable
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_start import NoticeTaker, start_nixl
from triptych.transfer.pull import HostCopier, IsWanted
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab, create_slab
from triptych.transfer.staging import STAGING_UNIT_BYTES, Packed, Prepared, Staging

STAGING_ARENA = 3

# Over TCP an owner's process takes part in every READ; memory of one host would be read past a stopped one.
TCP = TransferSettings(transports=("nixl",), nixl_tls="tcp", nixl_pack_below_bytes=0)


class _Owning:
    """What an owner's process has besides its slab. One in each such process."""

    def __init__(self, slab: Slab, settings: TransferSettings) -> None:
        agent = start_nixl(settings)
        assert agent is not None
        self.agent = agent
        self.slab = slab
        self.leases = LeaseTable()
        self.notices = NoticeTaker(agent, self.leases)
        num_units = max(1, settings.nixl_staging_bytes // STAGING_UNIT_BYTES)
        self.staging_slab = create_slab("staging", STAGING_ARENA, STAGING_UNIT_BYTES, num_units, CPU)
        slabs = {slab.describe().id: slab}
        self.staging = Staging(slabs, self.leases, HostCopier(), self.staging_slab)
        for each in (slab, self.staging_slab):
            agent.describe(each)

    def arenas(self) -> list[ArenaInfo]:
        return [self.agent.describe(each) for each in (self.slab, self.staging_slab)]


_here: list[_Owning] = []


def _join(slab: Slab, _published: Any, settings: TransferSettings) -> list[ArenaInfo]:
    _here.append(_Owning(slab, settings))
    return _here[0].arenas()


def _grant(slab: Slab, _published: Any, units: tuple[int, ...], seconds: float) -> ClaimId:
    covers = Claimed(slab.describe().id, units, slab.record_event())
    return _here[0].leases.grant(RequestId(bytes(20)), seconds, lambda: None, covers)


def _prepare(_slab: Slab, _published: Any, claim: ClaimId, pack: bool, deadline: float) -> Packed | Exception | None:
    try:
        return _here[0].staging.prepare(claim, pack, deadline)
    except Exception as error:
        return error


def _release(_slab: Slab, _published: Any, claim: ClaimId) -> None:
    _here[0].leases.release([claim])


def _sweep(_slab: Slab, _published: Any) -> int:
    return _here[0].leases.sweep()


def _counts(_slab: Slab, _published: Any) -> dict[str, int]:
    leases, staging = _here[0].leases, _here[0].staging
    leases.check()
    return {
        "live": len(leases),
        "late": leases.late_releases,
        "released": leases.released,
        "packs": staging.num_packs(),
        "idle": int(staging.idle()),
    }


def _fill_numbered(slab: Slab, _published: Any) -> None:
    """Each unit stamped with its own number and 1, and filled with its number."""
    for unit in range(slab.num_units):
        slab.stamp([unit], [unit + 1])
        slab.data[unit * slab.unit_bytes : (unit + 1) * slab.unit_bytes] = unit % 251


ACTIONS = {
    "join": _join,
    "grant": _grant,
    "prepare": _prepare,
    "release": _release,
    "sweep": _sweep,
    "counts": _counts,
    "fill_numbered": _fill_numbered,
}


class NixlOwner(Neighbour):
    """A process with a slab, a staging slab, claims, and an agent that has all of it registered."""

    def __init__(
        self, kind: str, unit_bytes: int, num_units: int, settings: TransferSettings = TCP, published: Any = None
    ) -> None:
        super().__init__(kind, unit_bytes, num_units, published, actions=ACTIONS)
        self.arenas: list[ArenaInfo] = self.ask("join", settings)

    def prepare(self, _owner: Endpoint, claim: ClaimId, pack: bool, deadline: float) -> Prepared | None:
        """As rpc Prepare does it."""
        answer = self.ask("prepare", claim, pack, deadline)
        if isinstance(answer, Exception):
            raise answer
        return Prepared(self.arenas[1], answer) if answer is not None else None

    def stand_still(self) -> None:
        """Returns once every thread has stopped: until then its agent may still serve."""
        os.kill(self.process.pid or 0, signal.SIGSTOP)
        end = time.monotonic() + 10
        while any(state != "T" for state in self._states()):
            assert time.monotonic() < end, "it did not stop"
            time.sleep(0.01)

    def _states(self) -> list[str]:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]

    def go_on(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGCONT)


@contextmanager
def reading(
    owners: dict[Endpoint, NixlOwner] | NixlOwner, settings: TransferSettings = TCP
) -> Iterator[tuple[Reader, NixlAgent]]:
    """A reader of these owners, with an agent of its own."""
    by_endpoint = {OWNER: owners} if isinstance(owners, NixlOwner) else owners
    pytest.importorskip("nixl_cu13")
    agent = start_nixl(settings)
    assert agent is not None, "nixl is installed and does not start"

    def prepare(owner: Endpoint, claim: ClaimId, pack: bool, deadline: float, _: IsWanted) -> Prepared | None:
        return by_endpoint[owner].prepare(owner, claim, pack, deadline)

    reader = Reader(lambda endpoint: by_endpoint[endpoint].arenas, HERE, {}, CPU, settings, nixl=agent, prepare=prepare)
    try:
        yield reader, agent
    finally:
        reader.close()
        agent.close()


__all__ = ["TCP", "NixlOwner", "fill", "reading"]
