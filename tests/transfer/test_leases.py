import heapq
import logging
import random
import threading
import time
from collections.abc import Callable

import pytest

from triptych.errors import InvalidRecord, InvariantViolation
from triptych.journey import ClaimId, RequestId, new_claim_id, new_request_id
from triptych.transfer.leases import LeaseTable

REQUEST = new_request_id()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ends:
    """Counts how often each claim's end was announced."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def of(self, name: str) -> Callable[[], None]:
        def on_end() -> None:
            self.counts[name] = self.counts.get(name, 0) + 1

        return on_end


def test_a_claim_ends_at_its_deadline_not_before() -> None:
    clock, ends = Clock(), Ends()
    table = LeaseTable(clock)
    table.grant(REQUEST, 10, ends.of("claim"))
    clock.now += 9.9
    assert table.sweep() == 0
    assert len(table) == 1
    clock.now += 0.1
    assert table.sweep() == 1
    assert ends.counts == {"claim": 1}
    assert len(table) == 0
    assert table.expired == 1


def test_a_released_claim_ends_once_and_a_late_release_is_counted() -> None:
    clock, ends = Clock(), Ends()
    table = LeaseTable(clock)
    claim = table.grant(REQUEST, 10, ends.of("claim"))
    assert table.release([claim]) == 1
    assert table.release([claim, claim]) == 0
    clock.now += 100
    assert table.sweep() == 0
    assert ends.counts == {"claim": 1}
    assert (table.late_releases, table.unknown_releases, table.expired) == (2, 0, 0)


@pytest.mark.parametrize("notice_first", [True, False])
def test_a_notice_and_the_release_of_the_same_reader_are_one_release_whichever_comes_first(notice_first: bool) -> None:
    table = LeaseTable()
    claim = table.grant(REQUEST, 10.0, Ends().of("claim"))
    assert table.release([claim], by_notice=notice_first) == 1
    assert table.release([claim], by_notice=not notice_first) == 0
    assert (table.released, table.late_releases, table.unknown_releases) == (1, 0, 0)
    table.check()


def test_a_release_after_expiry_is_late_and_one_of_a_stranger_unknown() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    claim = table.grant(REQUEST, 1, lambda: None)
    clock.now += 2
    table.sweep()
    table.release([claim, new_claim_id()])
    assert (table.late_releases, table.unknown_releases) == (1, 1)


def test_renewing_counts_from_now_and_never_shortens() -> None:
    clock, ends = Clock(), Ends()
    table = LeaseTable(clock)
    claim = table.grant(REQUEST, 10, ends.of("claim"))
    clock.now += 8
    assert table.renew([claim], 10) == []
    assert table.renew([claim], 1) == []
    clock.now += 9.9
    assert table.sweep() == 0
    clock.now += 0.1
    assert table.sweep() == 1


def test_renewing_names_the_claims_that_are_gone() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    released, overdue, alive = (table.grant(REQUEST, seconds, lambda: None) for seconds in (10, 5, 20))
    stranger = new_claim_id()
    table.release([released])
    clock.now += 6  # past its deadline, though no sweep has come by
    assert table.renew([released, alive, overdue, stranger], 10) == [released, overdue, stranger]
    assert table.sweep() == 1


def test_a_request_takes_its_own_claims_along() -> None:
    ends = Ends()
    table = LeaseTable(Clock())
    other = new_request_id()
    for name in ("first", "second"):
        table.grant(REQUEST, 10, ends.of(name))
    table.grant(other, 10, ends.of("other"))
    assert table.release_request(REQUEST) == 2
    assert table.release_request(REQUEST) == 0
    assert ends.counts == {"first": 1, "second": 1}
    assert len(table) == 1


def test_an_end_may_use_the_table() -> None:
    """Were on_end called under the lock, this would hang."""
    table = LeaseTable(Clock())

    def end_the_others() -> None:
        table.check()
        table.release_request(REQUEST)

    outer = table.grant(REQUEST, 10, end_the_others)
    table.grant(REQUEST, 10, lambda: None)
    assert table.release([outer]) == 1
    assert len(table) == 0


def test_an_end_that_raises_does_not_keep_the_others_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    clock, ends = Clock(), Ends()
    table = LeaseTable(clock)

    def broken() -> None:
        raise RuntimeError("cannot free")

    table.grant(REQUEST, 1, broken)
    table.grant(REQUEST, 2, ends.of("next"))
    clock.now += 3
    with caplog.at_level(logging.ERROR):
        assert table.sweep() == 2
    assert ends.counts == {"next": 1}
    assert table.failed_ends == 1
    assert "cannot free" in caplog.text


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_lease_without_a_real_duration_is_refused(seconds: float) -> None:
    table = LeaseTable(Clock())
    claim = table.grant(REQUEST, 1, lambda: None)
    with pytest.raises(InvalidRecord):
        table.grant(REQUEST, seconds, lambda: None)
    with pytest.raises(InvalidRecord):
        table.renew([claim], seconds)
    table.check()
    assert len(table) == 1


def test_tombstones_are_bounded_in_number_and_age() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    first = [table.grant(REQUEST, 1, lambda: None) for _ in range(9000)]
    table.release_request(REQUEST)
    table.check()
    table.release(first)
    assert table.late_releases + table.unknown_releases == 9000
    assert 0 < table.late_releases < 9000
    late = table.late_releases
    clock.now += 1000
    table.sweep()
    table.release(first)
    assert table.late_releases == late  # all forgotten by now


def test_released_long_leases_do_not_pile_up() -> None:
    table = LeaseTable(Clock())
    for _ in range(20_000):
        table.release([table.grant(REQUEST, 3600, lambda: None)])
    table.check()  # bounds the entries of claims that are gone


def test_a_sweep_costs_what_has_expired_not_what_lives() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    for _ in range(50_000):
        table.grant(REQUEST, 3600, lambda: None)
    began = time.perf_counter()
    for _ in range(1000):
        table.sweep()
    assert time.perf_counter() - began < 0.5  # scanning 50,000 leases 1,000 times takes seconds


def test_check_finds_broken_bookkeeping() -> None:
    def broken(break_it: Callable[[LeaseTable, ClaimId], object]) -> None:
        table = LeaseTable(Clock())
        claim = table.grant(REQUEST, 10, lambda: None)
        table.check()
        break_it(table, claim)
        with pytest.raises(InvariantViolation):
            table.check()

    broken(lambda table, claim: table._heap.clear())
    broken(lambda table, claim: heapq.heappush(table._heap, (0.0, claim)))
    broken(lambda table, claim: table._claims_by_request.clear())
    broken(lambda table, claim: table._claims_by_request.setdefault(new_request_id(), set()))
    broken(lambda table, claim: setattr(table._leases[claim], "deadline", 0.0))
    broken(lambda table, claim: table._tombstones.__setitem__(claim, 0.0))


@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_random_steps_keep_every_promise(seed: int) -> None:
    """Against a plain dictionary of deadlines: who lives, who is gone, and that each end comes once."""
    chance, clock = random.Random(seed), Clock()
    table, ends = LeaseTable(clock), Ends()
    requests = [RequestId(bytes([index]) * 16) for index in range(12)]
    deadlines: dict[ClaimId, float] = {}
    owners: dict[ClaimId, RequestId] = {}
    granted: list[ClaimId] = []

    def some_claims() -> list[ClaimId]:
        return chance.sample(granted[-60:], min(len(granted), chance.randrange(4)))

    def grant() -> None:
        request, seconds = chance.choice(requests), chance.choice([0.5, 3, 30])
        claim = table.grant(request, seconds, ends.of(str(len(granted))))
        granted.append(claim)
        deadlines[claim], owners[claim] = clock.now + seconds, request

    def renew() -> None:
        claims, seconds = some_claims(), chance.choice([0.1, 5, 40])
        gone = [claim for claim in claims if deadlines.get(claim, 0) <= clock.now]
        assert table.renew(claims, seconds) == gone
        for claim in set(claims) - set(gone):
            deadlines[claim] = max(deadlines[claim], clock.now + seconds)

    def release() -> None:
        claims = some_claims()
        assert table.release(claims) == sum(deadlines.pop(claim, None) is not None for claim in claims)

    def release_request() -> None:
        request = chance.choice(requests)
        held = [claim for claim in deadlines if owners[claim] == request]
        assert table.release_request(request) == len(held)
        for claim in held:
            del deadlines[claim]

    def sweep() -> None:
        overdue = [claim for claim, deadline in deadlines.items() if deadline <= clock.now]
        assert table.sweep() == len(overdue)
        for claim in overdue:
            del deadlines[claim]

    def pass_time() -> None:
        clock.now += chance.random() * 2

    for _ in range(10_000):
        chance.choices([grant, renew, release, release_request, sweep, pass_time], [8, 4, 4, 1, 3, 4])[0]()
        table.check()
        assert len(table) == len(deadlines)
    assert sorted(ends.counts.values()) == [1] * (len(granted) - len(deadlines))


def test_threads_that_end_the_same_claims_end_each_once() -> None:
    table, ends, lock = LeaseTable(), Ends(), threading.Lock()
    claims: list[ClaimId] = []

    def counted(name: str) -> Callable[[], None]:
        def on_end() -> None:
            with lock:
                ends.counts[name] = ends.counts.get(name, 0) + 1

        return on_end

    for index in range(3000):
        claims.append(table.grant(REQUEST, 0.02, counted(str(index))))
    threads = [threading.Thread(target=table.release, args=(claims,)) for _ in range(2)]
    threads += [threading.Thread(target=lambda: [table.sweep() for _ in range(200)]) for _ in range(2)]
    threads += [threading.Thread(target=table.release_request, args=(REQUEST,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends.counts == {str(index): 1 for index in range(3000)}
    table.check()


def test_the_claims_of_a_request_end_in_the_order_of_their_grants() -> None:
    """Not in that of their random ids: what they free would be reused in another order in every run."""
    ids = iter([ClaimId(bytes([number]) * 16) for number in (9, 3, 200, 1, 77)])
    table, request, ended = LeaseTable(Clock(), lambda: next(ids)), new_request_id(), []
    granted = [table.grant(request, 5.0, lambda number=number: ended.append(number)) for number in range(5)]
    assert [claim[0] for claim in granted] == [9, 3, 200, 1, 77]
    table.release_request(request)
    assert ended == [0, 1, 2, 3, 4]
