"""Releases and renewals, with owners that are functions: they answer, refuse, or hang."""

import threading
import time
from collections.abc import Callable, Sequence

from triptych.errors import WorkerLost, WrongIncarnation
from triptych.journey import ClaimId, Endpoint, new_claim_id
from triptych.services.claim_post import ClaimPost
from triptych.transfer.faults import Faults
from triptych.transfer.leases import LeaseTable

SECONDS = 5.0  # for what must not hang
NEAR, FAR = Endpoint("127.0.0.1:7001", 1), Endpoint("127.0.0.1:7002", 2)
REQUEST = bytes(16)


class _Owners:
    """What the post has sent, by owner, and what each owner answers."""

    def __init__(self) -> None:
        self.released: dict[Endpoint, list[list[ClaimId]]] = {NEAR: [], FAR: []}
        self.renewed: dict[Endpoint, list[list[ClaimId]]] = {NEAR: [], FAR: []}
        self.gone: list[ClaimId] = []
        self.errors: list[Exception] = []
        self.hangs: dict[Endpoint, threading.Event] = {}
        self.table: LeaseTable | None = None
        self.post = ClaimPost(self._release, self._renew, Faults())

    def _release(self, owner: Endpoint, claims: Sequence[ClaimId], seconds: float) -> None:
        self.released[owner].append(list(claims))
        self._answer(owner)

    def _renew(
        self, owner: Endpoint, claims: Sequence[ClaimId], lease_seconds: float, seconds: float
    ) -> Sequence[ClaimId]:
        self.renewed[owner].append(list(claims))
        self._answer(owner)
        return self.table.renew(claims, lease_seconds) if self.table is not None else self.gone

    def _answer(self, owner: Endpoint) -> None:
        if owner in self.hangs:
            self.hangs[owner].wait(SECONDS)
        if self.errors:
            raise self.errors.pop(0)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def test_a_pull_that_queues_for_five_leases_does_not_lose_its_claim() -> None:
    owners, ended = _Owners(), threading.Event()
    owners.table = LeaseTable()
    claim = owners.table.grant(REQUEST, 0.3, ended.set)
    owners.post.keep(NEAR, claim, 0.3)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        owners.table.sweep()
        time.sleep(0.01)
    assert not ended.is_set()
    owners.post.release(NEAR, claim)
    _until(lambda: owners.released[NEAR] == [[claim]])
    assert len(owners.post) == 0
    count = len(owners.renewed[NEAR])
    time.sleep(0.4)
    assert len(owners.renewed[NEAR]) == count, "what was given back is not renewed"
    owners.post.close(SECONDS)


def test_a_lease_of_next_to_nothing_is_renewed_no_more_often_than_one_of_a_tenth_of_a_second() -> None:
    owners = _Owners()
    owners.post.keep(NEAR, new_claim_id(), 1e-4)
    time.sleep(0.5)
    assert 1 <= len(owners.renewed[NEAR]) <= 20
    owners.post.close(SECONDS)


def test_claims_of_one_owner_go_in_one_message() -> None:
    owners, claims = _Owners(), [new_claim_id() for _ in range(5)]
    for claim in claims:
        owners.post.keep(NEAR, claim, 0.3)
    _until(lambda: bool(owners.renewed[NEAR]))
    assert sorted(owners.renewed[NEAR][0]) == sorted(claims)
    owners.post.close(SECONDS)


def test_an_owner_that_hangs_holds_up_neither_renewals_nor_releases_of_others() -> None:
    owners, mine, its = _Owners(), new_claim_id(), new_claim_id()
    owners.hangs[FAR] = threading.Event()
    owners.post.keep(FAR, its, 0.15)
    owners.post.release(FAR, new_claim_id())
    _until(lambda: bool(owners.renewed[FAR] or owners.released[FAR]))
    owners.post.keep(NEAR, mine, 0.15)
    _until(lambda: len(owners.renewed[NEAR]) >= 3)
    owners.post.release(NEAR, mine)
    _until(lambda: owners.released[NEAR] == [[mine]])
    owners.hangs[FAR].set()
    owners.post.close(SECONDS)


def test_a_release_that_is_not_answered_is_sent_again_but_not_for_ever() -> None:
    owners, claim = _Owners(), new_claim_id()
    owners.errors = [WorkerLost("?")] * 9
    owners.post.release(NEAR, claim)
    _until(lambda: len(owners.released[NEAR]) == 3)
    time.sleep(0.1)
    assert owners.released[NEAR] == [[claim]] * 3
    owners.post.close(SECONDS)


def test_another_process_at_the_address_is_asked_once() -> None:
    owners, claim = _Owners(), new_claim_id()
    owners.errors = [WrongIncarnation("another"), WrongIncarnation("another")]
    owners.post.keep(NEAR, claim, 0.15)
    _until(lambda: len(owners.post) == 0)
    owners.post.release(NEAR, claim)
    _until(lambda: not owners.errors)
    time.sleep(0.1)
    assert (len(owners.renewed[NEAR]), len(owners.released[NEAR])) == (1, 1)
    owners.post.close(SECONDS)


def test_a_renewal_that_is_lost_is_sent_again_within_the_lease() -> None:
    owners, claim = _Owners(), new_claim_id()
    owners.errors = [WorkerLost("?"), WorkerLost("?")]
    began = time.monotonic()
    owners.post.keep(NEAR, claim, 1.2)
    _until(lambda: len(owners.renewed[NEAR]) == 3)
    assert time.monotonic() - began < 1.2
    owners.post.close(SECONDS)


def test_claims_that_are_gone_are_renewed_no_longer() -> None:
    owners, claim = _Owners(), new_claim_id()
    owners.gone = [claim]
    owners.post.keep(NEAR, claim, 0.15)
    _until(lambda: len(owners.post) == 0)
    assert owners.renewed[NEAR] == [[claim]]
    owners.post.close(SECONDS)


def test_closing_sends_what_was_given_back_before_and_takes_no_more() -> None:
    owners, claim = _Owners(), new_claim_id()
    owners.post.release(NEAR, claim)
    owners.post.close(SECONDS)
    assert owners.released[NEAR] == [[claim]]
    owners.post.release(FAR, claim)
    owners.post.keep(FAR, claim, 1.0)
    assert owners.released[FAR] == []


def test_thousands_of_claims_come_and_go_on_few_threads() -> None:
    owners, before = _Owners(), threading.active_count()
    claims = [new_claim_id() for _ in range(3000)]
    for claim in claims:
        owners.post.keep(NEAR, claim, 30.0)
        owners.post.release(NEAR, claim)
    assert threading.active_count() <= before + 1
    owners.post.close(SECONDS)
    assert sorted(claim for sent in owners.released[NEAR] for claim in sent) == sorted(claims)
    assert owners.renewed[NEAR] == []


def test_a_claim_is_somebodys_to_give_back_while_it_is_kept() -> None:
    owners, claim = _Owners(), new_claim_id()
    assert not owners.post.keeps(NEAR, claim)
    owners.post.keep(NEAR, claim, 30.0)
    assert owners.post.keeps(NEAR, claim)
    assert not owners.post.keeps(FAR, claim)
    owners.post.release(NEAR, claim)
    assert not owners.post.keeps(NEAR, claim)
    owners.post.close(SECONDS)


def test_an_answer_that_nobody_foresaw_does_not_silence_what_comes_after() -> None:
    owners = _Owners()
    owners.errors = [ValueError("a trailer that is no message"), ValueError("another")]
    owners.post.release(NEAR, new_claim_id())
    _until(lambda: len(owners.released[NEAR]) == 1)
    owners.post.keep(NEAR, new_claim_id(), 0.06)
    _until(lambda: len(owners.renewed[NEAR]) == 2)
    owners.post.release(NEAR, new_claim_id())
    _until(lambda: len(owners.released[NEAR]) == 2)
    owners.post.close(SECONDS)
