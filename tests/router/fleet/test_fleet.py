"""The fleet finds out who is there, who is fit, and who has become another process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.router.loopback import LoopbackWorker
from triptych.config import RouterSettings
from triptych.errors import NoWorker, WorkerLost
from triptych.journey import Endpoint, Role
from triptych.metrics import RouterMetrics
from triptych.router.fleet.fleet import Fleet
from triptych.router.fleet.link import KnownWorker
from triptych.router.fleet.link_state import LinkState

pytestmark = pytest.mark.anyio
PRINT = bytes(32)
ALL = frozenset(Role)
QUICK = RouterSettings(status_interval_seconds=0.02, stage_timeout_seconds=5)


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


def worker(name: str = "w", roles: frozenset[Role] = ALL) -> LoopbackWorker:
    return LoopbackWorker(name, roles, PRINT)


@asynccontextmanager
async def fleet_of(*workers: LoopbackWorker, patience: float = 5.0, memfd: bool = True) -> AsyncIterator[Fleet]:
    for each in workers:
        await each.start()
    fleet = Fleet(
        QUICK,
        PRINT,
        RouterMetrics(),
        [each.known for each in workers],
        media_by_memfd=memfd,
        restart_patience_seconds=patience,
    )
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.stop()
        for each in workers:
            await each.kill()


async def test_a_worker_is_ready_for_its_roles_once_it_says_so() -> None:
    async with fleet_of(worker("e", frozenset({Role.ENCODE}))) as fleet:
        await until(lambda: fleet.is_ready(Role.ENCODE))
        assert not fleet.is_ready(Role.DECODE)
        (link,) = await fleet.encoders_for([5])
        assert link.worker_id == "e"
        assert link.media_by_memfd


async def test_a_static_worker_tells_its_own_incarnation_and_roles() -> None:
    there = worker()
    await there.start()
    async with fleet_of() as fleet:
        fleet.update([KnownWorker("anyone", Endpoint(there.endpoint.address, 0))])
        await until(lambda: fleet.is_ready(Role.DECODE))
        assert fleet.links[0].endpoint == there.endpoint
        assert fleet.links[0].roles == ALL
    await there.kill()


async def test_loading_draining_and_unfit_workers_get_nothing() -> None:
    loading, draining, other = worker("loading"), worker("draining"), worker("other")
    loading.state, draining.state, other.fingerprint = "loading", "draining", bytes([1] * 32)
    async with fleet_of(loading, draining, other) as fleet:
        await until(lambda: {link.state for link in fleet.links} == {"unknown", "draining", "unfit"})
        assert not any(fleet.is_ready(role) for role in Role)
        loading.state = "ready"
        await until(lambda: fleet.is_ready(Role.PREFILL))
        assert (await fleet.prefill_for()).worker_id == "loading"
        other.state = "draining"
        await until(lambda: {link.state for link in fleet.links} == {"ready", "draining"})
        fleet.update([loading.known, draining.known])
        await other.kill()
        await until(lambda: {link.worker_id for link in fleet.links} == {"loading", "draining"})


async def test_reports_reach_the_snapshot_that_decides() -> None:
    busy, idle = worker("a"), worker("b")
    busy.queued_tokens, busy.free_blocks = 500, 10
    async with fleet_of(busy, idle) as fleet:
        await until(lambda: sum(link.takes(Role.DECODE) for link in fleet.links) == 2)
        assert (await fleet.prefill_for()).worker_id == "b"
        assert (await fleet.decode_for()).worker_id == "b"
        busy.queued_tokens, idle.queued_tokens = 0, 500
        await until(lambda: fleet.snapshot.roles[Role.PREFILL].reported.tolist() == [0, 500])
        assert (await fleet.prefill_for()).worker_id == "a"


async def test_bookings_count_until_a_report_covers_them() -> None:
    async with fleet_of(worker("a"), worker("b")) as fleet:
        await until(lambda: sum(link.takes(Role.PREFILL) for link in fleet.links) == 2)
        first = await fleet.prefill_for()
        booking = first.bookings[Role.PREFILL].add(100)
        assert (await fleet.prefill_for()) is not first
        booking.sent(asyncio.get_running_loop().time())
        await until(lambda: first.bookings[Role.PREFILL].total == 0)
        assert (await fleet.prefill_for()) is first


async def test_a_router_that_was_told_of_nobody_yet_waits_until_it_is() -> None:
    late = worker("late")
    await late.start()
    fleet = Fleet(QUICK, PRINT, RouterMetrics(), None, media_by_memfd=False, restart_patience_seconds=5.0)
    await fleet.start()
    try:
        waiting = asyncio.create_task(fleet.wait_ready(Role.DECODE))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "a request that comes ahead of the list of workers is not refused"
        fleet.update([late.known])
        await asyncio.wait_for(waiting, 5.0)
    finally:
        await fleet.stop()
        await late.kill()


async def test_a_role_nobody_ever_had_fails_at_once() -> None:
    async with fleet_of(worker("e", frozenset({Role.ENCODE}))) as fleet:
        await until(lambda: fleet.is_ready(Role.ENCODE))
        with pytest.raises(NoWorker, match="no decode worker"):
            async with asyncio.timeout(1):
                await fleet.decode_for()


async def test_a_worker_that_comes_back_is_waited_for() -> None:
    there = worker()
    async with fleet_of(there) as fleet:
        await until(lambda: fleet.is_ready(Role.DECODE))
        before = fleet.links[0].endpoint
        await there.kill()
        await until(lambda: not fleet.is_ready(Role.DECODE))
        waiting = asyncio.create_task(fleet.decode_for())
        await there.restart()
        link = await waiting
        assert link.endpoint.address == before.address
        assert link.endpoint.incarnation != before.incarnation


async def test_patience_ends() -> None:
    there = worker()
    async with fleet_of(there, patience=0.1) as fleet:
        await until(lambda: fleet.is_ready(Role.DECODE))
        await there.kill()
        await until(lambda: not fleet.is_ready(Role.DECODE))
        with pytest.raises(NoWorker, match=r"0\.1 s"):
            await fleet.decode_for()


async def test_what_is_held_on_a_worker_ends_when_another_process_takes_its_place() -> None:
    there = worker()
    async with fleet_of(there) as fleet:
        await until(lambda: fleet.is_ready(Role.DECODE))
        link = fleet.links[0]
        lost = b'triptych:worker_links_lost_total{worker_type="aggregated"} '
        assert lost + b"0.0\n" in fleet.metrics.expose()
        held = asyncio.create_task(link.hold(asyncio.sleep(60)))
        await asyncio.sleep(0)
        there.incarnation += 1  # the same address answers as someone else
        with pytest.raises(WorkerLost):
            await held
        assert link.state is LinkState.LOST
        await until(lambda: fleet.is_ready(Role.DECODE))
        assert fleet.links[0].incarnation == there.incarnation
        assert lost + b"1.0\n" in fleet.metrics.expose(), "a process is lost once"


async def test_a_cancelled_holder_is_cancelled_and_not_told_of_a_loss() -> None:
    async with fleet_of(worker()) as fleet:
        await until(lambda: fleet.is_ready(Role.DECODE))
        held = asyncio.create_task(fleet.links[0].hold(asyncio.sleep(60)))
        await asyncio.sleep(0)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held


async def test_a_worker_that_is_no_longer_named_keeps_what_it_has_and_gets_nothing_new() -> None:
    there = worker()
    async with fleet_of(there) as fleet:
        await until(lambda: fleet.is_ready(Role.DECODE))
        link = fleet.links[0]
        held = asyncio.create_task(link.hold(asyncio.sleep(0.2)))
        fleet.update([])
        assert not fleet.is_ready(Role.DECODE)
        await held
        fleet.update([there.known])
        await until(lambda: fleet.is_ready(Role.DECODE))
        assert fleet.links[0] is link


async def test_one_that_never_answered_and_is_no_longer_named_is_let_go_of() -> None:
    nobody = KnownWorker("gone", Endpoint("127.0.0.1:9", 1))
    async with fleet_of() as fleet:
        fleet.update([nobody])
        await asyncio.sleep(6 * QUICK.status_interval_seconds)
        assert [link.worker_id for link in fleet.links] == ["gone"], "it may be coming, for as long as it is named"
        fleet.update([])
        await until(lambda: not fleet.links)


async def test_a_push_of_a_new_process_replaces_the_old_one_at_once() -> None:
    old, new = worker("w"), worker("w")
    async with fleet_of(old) as fleet:
        await until(lambda: fleet.is_ready(Role.DECODE))
        before = fleet.links[0]
        await new.start()
        fleet.update([new.known])
        assert before.is_lost
        await until(lambda: fleet.is_ready(Role.DECODE))
        assert fleet.links[0].endpoint == new.endpoint
        fleet.update([new.known])  # again: nothing happens
        assert fleet.links[0].endpoint == new.endpoint
        assert not fleet.links[0].is_lost
        await new.kill()


async def test_media_go_in_chunks_where_memfd_cannot_be_read() -> None:
    elsewhere = worker()
    elsewhere.reads_memfd = False
    async with fleet_of(elsewhere) as fleet:
        await until(lambda: fleet.is_ready(Role.ENCODE))
        assert not fleet.links[0].media_by_memfd
    async with fleet_of(worker(), memfd=False) as fleet:
        await until(lambda: fleet.is_ready(Role.ENCODE))
        assert not fleet.links[0].media_by_memfd


async def test_the_cluster_is_described_in_json() -> None:
    async with fleet_of(worker("e", frozenset({Role.ENCODE}))) as fleet:
        await until(lambda: fleet.is_ready(Role.ENCODE))
        (told,) = fleet.describe()
        assert told["worker_id"] == "e"
        assert told["roles"] == ["encode"]
        assert told["state"] == "ready"
        assert told["gauges"]["kv_blocks"] == 1000
