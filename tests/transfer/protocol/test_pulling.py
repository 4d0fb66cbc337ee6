import random
from collections.abc import Callable

import pytest

from tests.transfer.protocol.claims import OWNER, claim
from triptych.errors import Cancelled, ClaimExpired, TransferFailed, TriptychError, WorkerLost, WrongIncarnation
from triptych.transfer.protocol.pulling import (
    AwaitReady,
    ClaimedUnits,
    Connect,
    Deliver,
    Fail,
    FreeDestination,
    HoldDestination,
    PullActions,
    PullMachine,
    PullState,
    Release,
    StartCopy,
    Verify,
)

CLAIM = claim(1)
UNITS = ClaimedUnits("kv arena 2", (7, 3), (5, 6))
RELEASE, DELIVER = Release(OWNER, CLAIM), Deliver(CLAIM)
HOLD, FREE = HoldDestination(CLAIM), FreeDestination(CLAIM)


def machine(checksum: bytes = b"") -> PullMachine:
    return PullMachine(CLAIM, OWNER, deadline=10.0, checksum=checksum)


def copying(checksum: bytes = b"") -> PullMachine:
    pull = machine(checksum)
    assert pull.begin(0.0) == (Connect(OWNER),)
    assert pull.connected(0.1, "shm", UNITS) == (AwaitReady("shm"),)
    assert pull.ready(0.2) == (StartCopy("shm"),)
    return pull


def failure(actions: PullActions) -> tuple[type[TriptychError], str]:
    (fail,) = [action for action in actions if isinstance(action, Fail)]
    return fail.kind, fail.reason


def test_a_pull_releases_its_claim_as_soon_as_the_copy_has_ended() -> None:
    pull = copying()
    assert pull.copied(0.3, (5, 6)) == (RELEASE, DELIVER)
    assert pull.state is PullState.LANDED
    pull.check()


def test_the_owner_does_not_wait_for_our_checksum() -> None:
    pull = copying(b"sum")
    assert pull.copied(0.3, (5, 6)) == (RELEASE, Verify())
    assert pull.summed(0.4, b"sum") == (DELIVER,)
    assert copying(b"sum").copied(0.3, (5, 6), b"sum") == (RELEASE, DELIVER)


def test_bytes_with_another_checksum_are_not_delivered() -> None:
    pull = copying(b"\x01")
    pull.copied(0.3, (5, 6))
    assert failure(pull.summed(0.4, b"\x02")) == (TransferFailed, "the copy has checksum 02, the owner's is 01")
    assert pull.summed(0.5, b"\x01") == ()


def test_a_word_that_is_not_the_claims_expires_it() -> None:
    actions = copying(b"sum").copied(0.3, (5, 9), b"sum")
    assert actions[0] == RELEASE
    kind, reason = failure(actions)
    assert kind is ClaimExpired
    assert reason == ("1 of 2 units of kv arena 2 were freed or overwritten: unit 3 has generation 9, the claim 6")


def test_words_that_are_missing_expire_it_too() -> None:
    kind, reason = failure(copying().copied(0.3, (5,)))
    assert (kind, reason) == (ClaimExpired, "1 words came for 2 units of kv arena 2")


def test_what_the_owner_refuses_is_told_in_its_own_kind_and_given_back() -> None:
    pull = machine()
    pull.begin(0.0)
    assert pull.refused(0.1, WrongIncarnation, "another") == (RELEASE, Fail(CLAIM, WrongIncarnation, "another"))
    pull.check()


def test_an_overdue_copy_holds_its_destination_and_its_claim_until_it_ends() -> None:
    pull = copying()
    assert pull.tick(9.9) == ()
    hold, fail = pull.tick(10.0)
    assert (hold, failure((fail,))) == (HOLD, (TransferFailed, "the pull is overdue while copying"))
    assert pull.state is PullState.QUARANTINED
    pull.check()
    assert pull.cancelled(10.1) == pull.tick(11.0) == pull.peer_lost(12.0, "dead") == ()
    assert pull.copy_ended(60.0) == (FREE, RELEASE)
    assert pull.state is PullState.FAILED
    pull.check()


@pytest.mark.parametrize(
    "end",
    [
        lambda pull: pull.copied(20.0, (5, 6)),
        lambda pull: pull.copied(20.0, (0, 0)),
        lambda pull: pull.copy_failed(20.0, "link down"),
    ],
)
def test_a_copy_that_was_given_up_ends_however_it_ends(end: Callable[[PullMachine], PullActions]) -> None:
    pull = copying()
    pull.tick(10.0)
    assert pull.copy_failed(10.5, "still there", ended=False) == ()
    assert end(pull) == (FREE, RELEASE)
    assert end(pull) == ()


def test_a_read_that_cannot_be_aborted_is_quarantined_and_one_that_ended_is_not() -> None:
    hold, fail = copying().copy_failed(1.0, "no answer", ended=False)
    assert (hold, failure((fail,))) == (HOLD, (TransferFailed, "no answer"))
    assert copying().copy_failed(1.0, "lost", WorkerLost) == (RELEASE, Fail(CLAIM, WorkerLost, "lost"))


@pytest.mark.parametrize("events", [0, 1, 2])
def test_a_cancel_ahead_of_the_copy_ends_it_at_once(events: int) -> None:
    pull = machine()
    steps: list[Callable[[], PullActions]] = [
        lambda: pull.begin(0.0),
        lambda: pull.connected(0.0, "shm", UNITS),
    ]
    for step in steps[:events]:
        step()
    release, fail = pull.cancelled(1.0)
    assert release == RELEASE
    assert failure((fail,))[0] is Cancelled
    assert pull.begin(2.0) == pull.connected(2.0, "shm", UNITS) == pull.ready(2.0) == ()


def test_a_copy_is_not_started_after_the_deadline() -> None:
    pull = machine()
    pull.begin(0.0)
    assert failure(pull.connected(10.0, "shm", UNITS))[0] is TransferFailed
    pull = machine()
    pull.begin(0.0)
    pull.connected(0.0, "shm", UNITS)
    assert failure(pull.ready(10.0))[0] is TransferFailed
    assert failure(machine().begin(10.0))[0] is TransferFailed


def test_an_owner_that_dies_behind_its_last_byte_does_no_harm() -> None:
    pull = copying(b"sum")
    pull.copied(0.3, (5, 6))
    assert pull.peer_lost(0.4, "dead") == ()
    assert pull.summed(0.5, b"sum") == (DELIVER,)


def test_events_that_come_twice_or_out_of_order_change_nothing() -> None:
    pull = machine()
    assert pull.ready(0.0) == pull.copied(0.0, (5, 6)) == pull.copy_ended(0.0) == pull.summed(0.0, b"") == ()
    pull.begin(0.0)
    assert pull.begin(0.0) == pull.ready(0.0) == ()
    pull = copying()
    assert pull.connected(0.3, "nixl", UNITS) == pull.ready(0.3) == pull.refused(0.3, WorkerLost, "") == ()
    assert pull.path == "shm"
    pull.copied(0.3, (5, 6))
    assert pull.copied(0.4, (5, 6)) == pull.cancelled(0.4) == pull.tick(99.0) == ()


@pytest.mark.parametrize("seed", range(200))
def test_any_storm_of_events_releases_once_after_the_last_read_and_answers_once(seed: int) -> None:
    chance, now = random.Random(seed), 0.0
    pull = PullMachine(CLAIM, OWNER, 5.0, chance.choice([b"", b"sum"]))
    events: list[Callable[[float], PullActions]] = [
        pull.begin,
        lambda now: pull.connected(now, "shm", UNITS),
        lambda now: pull.refused(now, WorkerLost, "gone"),
        pull.ready,
        lambda now: pull.copied(now, chance.choice([(5, 6), (5, 6), (5, 7)]), chance.choice([None, b"sum", b"no"])),
        lambda now: pull.summed(now, chance.choice([b"sum", b"no"])),
        lambda now: pull.copy_failed(now, "?", ended=chance.random() < 0.5),
        pull.copy_ended,
        lambda now: pull.peer_lost(now, "?"),
        pull.cancelled,
        pull.tick,
    ]
    weights = [3, 3, 1, 3, 3, 3, 1, 1, 0.3, 0.3, 1]
    done: list[object] = []
    is_reading = False
    for _ in range(60):
        now += chance.random() * 0.3
        for action in chance.choices(events, weights)[0](now):
            is_reading |= isinstance(action, StartCopy)
            if isinstance(action, Deliver | Verify | FreeDestination) or action == RELEASE:
                is_reading = False  # events that say the copy has ended are the only way here
            done.append(action)
        assert is_reading == pull.may_write
        assert not (is_reading and RELEASE in done)
        pull.check()
    pull.cancelled(now)
    pull.copy_ended(now)
    assert pull.is_over
    pull.check()
    assert done.count(RELEASE) <= 1
    assert sum(isinstance(action, Deliver | Fail) for action in done) <= 1
    assert done.count(HOLD) >= done.count(FREE)
