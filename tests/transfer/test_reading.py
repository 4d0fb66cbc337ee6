"""When a claim goes back to its owner: once, and behind the last read. With copies that hang, as a device's can."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.transfer.neighbours import CPU, HERE, OWNER, blocks_ref, fill, rows_ref
from triptych.config import TransferSettings
from triptych.errors import Cancelled, ClaimExpired, InternalError, TransferFailed, TriptychError, WorkerLost
from triptych.journey import ClaimId, EmbeddingRef, Endpoint, Int64Array
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.checksum import checksum
from triptych.transfer.local import LocalMapping
from triptych.transfer.plan import plan_rows
from triptych.transfer.protocol.pulling import PullMachine
from triptych.transfer.pull import CopyAbandoned, HostCopier, Pull
from triptych.transfer.quarantine import Quarantine
from triptych.transfer.reader import Reader
from triptych.transfer.reading import Reading
from triptych.transfer.slab import Slab, create_slab

SETTINGS = TransferSettings(copy_timeout_seconds=10.0)


class _Returns:
    """Claims that were given back."""

    def __init__(self) -> None:
        self.claims: list[tuple[Endpoint, ClaimId]] = []

    def __call__(self, owner: Endpoint, claim: ClaimId) -> None:
        self.claims.append((owner, claim))


class _Errand:
    """Rows out of a slab of this process, and what the reading said on the way."""

    def __init__(self, slab: Slab, ref: EmbeddingRef, into: Tensor) -> None:
        self._slab, self._ref, self._into = slab, ref, into
        self.log: list[str] = []

    def open(self, limit: float) -> Sequence[Pull]:
        self.log.append("open")
        return [plan_rows(self._ref, LocalMapping(self._slab), self._into)]

    def close(self) -> None:
        self.log.append("close")

    def begin(self, pulls: Sequence[Pull]) -> None:
        self.log.append("begin")

    def copied(self, pulls: Sequence[Pull]) -> None:
        self.log.append("copied")

    def delivered(self, pulls: Sequence[Pull], seconds: float) -> None:
        self.log.append("delivered")

    def checksum(self) -> bytes:
        return checksum(self._into)


class _Device(HostCopier):
    """A copier whose copies end when they are let, or fail as told."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        if self._error is not None:
            raise self._error
        return super().copy(pull, deadline)


class _Rig:
    def __init__(self, error: BaseException | None = None, generation: int = 1) -> None:
        self.slab = create_slab("embedding", 1, 4096, 4, CPU)
        fill(self.slab, range(4), 1)
        self.into = torch.zeros(4, 128, dtype=torch.int64)
        self.ref = rows_ref(generation, 4, 128)
        self.errand, self.returns, self.quarantine = _Errand(self.slab, self.ref, self.into), _Returns(), Quarantine()
        self.copier = _Device(error)
        self.wanted: Callable[[], bool] = lambda: True

    def read(self, checksum: bytes = b"") -> None:
        machine = PullMachine(self.ref.claim_id, self.ref.owner, float("inf"), checksum)
        reading = Reading(
            *(machine, self.errand, lambda source: self.copier, self.quarantine, self.returns),
            is_wanted=lambda: self.wanted(),
        )
        try:
            reading.run()
        finally:
            machine.check()

    @property
    def num_returned(self) -> int:
        assert set(self.returns.claims) <= {(self.ref.owner, self.ref.claim_id)}
        return len(self.returns.claims)


def test_a_claim_goes_back_once_and_its_memory_is_let_go_of_before() -> None:
    rig = _Rig()
    rig.read()
    assert rig.errand.log == ["open", "begin", "copied", "close", "delivered"]
    assert rig.num_returned == 1
    assert (rig.into == 1).all()


def test_a_copy_that_was_given_up_keeps_claim_and_destination_until_it_ends() -> None:
    over = threading.Event()
    rig = _Rig(CopyAbandoned("overdue", over.is_set))
    with pytest.raises(TransferFailed, match="overdue"):
        rig.read()
    assert rig.quarantine.writes_into(rig.into)
    assert (rig.num_returned, "close" in rig.errand.log) == (0, False)
    over.set()
    assert not rig.quarantine.writes_into(rig.into)
    assert (rig.num_returned, rig.errand.log[-1]) == (1, "close")
    rig.quarantine.let_go()
    assert rig.num_returned == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TransferFailed("broken"), TransferFailed), (WorkerLost("gone"), WorkerLost), (OSError("?"), OSError)],
)
def test_a_copy_that_fails_gives_the_claim_back_and_its_own_error_is_raised(
    error: BaseException, kind: type[BaseException]
) -> None:
    rig = _Rig(error)
    with pytest.raises(kind) as met:
        rig.read()
    assert met.value is error
    assert (rig.num_returned, rig.errand.log[-1]) == (1, "close")


def test_a_claim_that_has_expired_goes_back_too() -> None:
    rig = _Rig(generation=2)
    with pytest.raises(ClaimExpired, match="unit 0 has generation 1, the claim 2"):
        rig.read()
    assert (rig.num_returned, "delivered" in rig.errand.log) == (1, False)


def test_the_owner_does_not_wait_for_the_checksum() -> None:
    rig = _Rig()
    with pytest.raises(TransferFailed, match="checksum"):
        rig.read(checksum=b"\x00" * 16)
    assert (rig.num_returned, rig.errand.log[-1]) == (1, "close")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_pull_that_is_not_wanted_any_more_begins_no_further_step(steps: int) -> None:
    rig, asked = _Rig(), list[int]()

    def wanted() -> bool:
        asked.append(1)
        return len(asked) <= steps

    rig.wanted = wanted
    with pytest.raises(Cancelled):
        rig.read()
    assert [entry for entry in rig.errand.log if entry != "close"] == ["open", "begin"][:steps]
    assert rig.num_returned == 1
    assert (rig.into == 0).all()


def _refuse(error: BaseException) -> Callable[[Endpoint], Sequence[ArenaInfo]]:
    def connect(endpoint: Endpoint) -> Sequence[ArenaInfo]:
        raise error

    return connect


@pytest.mark.parametrize("error", [WorkerLost("gone"), InternalError("?"), OSError("?")])
def test_a_claim_whose_owner_cannot_be_met_is_given_back_all_the_same(error: BaseException) -> None:
    returns = _Returns()
    reader = Reader(_refuse(error), HERE, {}, CPU, SETTINGS, give_back=returns)
    ref = rows_ref(1, 4, 128)
    with pytest.raises(TriptychError):
        reader.read_rows(ref, torch.zeros(4, 128, dtype=torch.int64))
    assert returns.claims == [(OWNER, ref.claim_id)]


def test_every_claim_that_is_read_goes_back_once_also_when_it_does_not_fit() -> None:
    slab, returns = create_slab("kv", 2, 4096, 8, CPU), _Returns()
    fill(slab, range(8), 1)
    reader = Reader(lambda endpoint: [slab.describe()], HERE, {}, CPU, SETTINGS, give_back=returns)
    into = torch.zeros(8, 4096, dtype=torch.uint8)
    refs = [blocks_ref([(block, 1)]) for block in range(4)]
    reader.read_blocks(refs[0], into, [0])
    with pytest.raises(TransferFailed, match="names KV blocks 9"):
        reader.read_blocks(refs[1], into, [9])
    with pytest.raises(TransferFailed, match="names 2"):
        reader.read_blocks(refs[2], into, [1, 2])
    with pytest.raises(Cancelled):
        reader.read_blocks(refs[3], into, [3], is_wanted=lambda: False)
    assert [claim for _, claim in returns.claims] == [ref.claim_id for ref in refs]
