"""Windows, limits and who is to blame: by a clock of the test's own."""

import asyncio
import random

import pytest

from tests.metrics.test_books import samples
from triptych.config import ServiceClass, Settings, SLOSettings
from triptych.errors import Cancelled, InvalidMedia, InvalidRequest, NoWorker, Overloaded
from triptych.metrics import RouterMetrics
from triptych.router.observe.rolling import NUM_PARTS, RollingCounts
from triptych.router.observe.service_levels import ServiceLevels

CLASSES = SLOSettings(
    "a",
    (
        ServiceClass("a", ttft_seconds=1.0, tpot_seconds=0.1, e2e_seconds=5.0, target=0.9, window_seconds=86400.0),
        ServiceClass("b", e2e_seconds=60.0, target=0.5),
    ),
)


class Levels:
    """With a clock that is set by hand, and what is exposed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.metrics = RouterMetrics()
        self.levels = ServiceLevels(Settings(slo=CLASSES), self.metrics, lambda: self.now)

    def told(self) -> dict[str, float]:
        self.levels.refresh()
        return samples(self.metrics.expose())


@pytest.mark.parametrize(
    ("seconds", "missed"),
    [
        ((1.0, 0.1, 5.0), []),
        ((1.01, 0.1, 5.0), ["ttft"]),
        ((0.5, 0.11, 5.01), ["tpot", "e2e"]),
    ],
)
def test_an_answer_is_attained_within_every_limit(seconds: tuple[float, float, float], missed: list[str]) -> None:
    rig = Levels()
    rig.levels.answered("a", *seconds, num_tokens=7)
    found = rig.told()
    assert found["triptych:slo_requests_total{slo=a}"] == 1
    assert found["triptych:slo_attained_tokens_total{slo=a}"] == (0 if missed else 7)
    limits = {
        limit: found.get(f"triptych:request_slo_violations_total{{limit={limit},slo=a}}", 0.0)
        for limit in ("ttft", "tpot", "e2e")
    }
    assert [limit for limit, count in limits.items() if count] == missed


@pytest.mark.parametrize(
    ("seconds", "hosts", "requests", "missed"),
    [
        ((0.9, 0.01, 2.0), 0.8, 1, []),  # in time all the same
        ((3.0, 0.01, 4.0), 2.5, 0, []),  # for them alone it was too late
        ((3.0, 0.01, 4.0), 1.5, 1, ["ttft"]),  # it would have been too late without them
        ((3.0, 0.01, 7.0), 2.5, 0, []),
        ((3.0, 0.5, 7.0), 2.5, 1, ["tpot"]),  # the pace has nothing to do with them, and is all that is held against it
    ],
)
def test_what_the_hosts_of_images_take_is_not_held_against_the_server(
    seconds: tuple[float, float, float], hosts: float, requests: int, missed: list[str]
) -> None:
    rig = Levels()
    rig.levels.answered("a", *seconds, num_tokens=7, hosts_seconds=hosts)
    found = rig.told()
    assert found["triptych:slo_requests_total{slo=a}"] == requests
    assert found["triptych:slo_window_requests{slo=a,window=5m}"] == requests
    assert found["triptych:slo_attained_requests_total{slo=a}"] == (requests if not missed else 0)
    limits = [name for name, count in found.items() if "slo_violations_total{" in name and count]
    assert limits == [f"triptych:request_slo_violations_total{{limit={limit},slo=a}}" for limit in missed]


def test_whatever_may_be_missed_is_counted_from_0_on() -> None:
    """So that the first miss is an increase, and no miss a series of its own."""
    found = Levels().told()
    told = {name: count for name, count in found.items() if "slo_violations_total{" in name and "slo=a" in name}
    limits = ("e2e", "failed", "tpot", "ttft")
    assert told == {f"triptych:request_slo_violations_total{{limit={limit},slo=a}}": 0 for limit in limits}


def test_misses_are_the_servers_own_and_refusals_for_want_of_room_among_them() -> None:
    rig = Levels()
    for error in (NoWorker("none"), Overloaded("full"), RuntimeError("a bug")):
        rig.levels.failed("a", error)
    for error in (InvalidMedia("broken"), Cancelled("left"), asyncio.CancelledError()):
        rig.levels.failed("a", error)
    assert rig.told()["triptych:request_slo_violations_total{limit=failed,slo=a}"] == 3
    assert rig.told()["triptych:slo_attainment_ratio{slo=a,window=5m}"] == 0


def test_a_short_window_forgets_what_a_long_one_still_burns_for() -> None:
    rig = Levels()
    for _ in range(10):
        rig.levels.failed("a", NoWorker("none"))
    rig.now += 2000
    for _ in range(90):
        rig.levels.answered("a", 0.1, 0.01, 1.0, 1)
    found = rig.told()
    assert found["triptych:slo_burn_rate{slo=a,window=5m}"] == 0
    assert found["triptych:slo_burn_rate{slo=a,window=1h}"] == pytest.approx(1.0)  # a tenth missed, a tenth may be
    assert found["triptych:slo_error_budget_remaining_ratio{slo=a}"] == pytest.approx(0.0)
    assert found["triptych:slo_goodput_requests_per_second{slo=a,window=5m}"] == pytest.approx(90 / 300)
    assert found["triptych:slo_goodput_requests_per_second{slo=a,window=1h}"] == pytest.approx(90 / 2000)  # since start
    assert "triptych:slo_burn_rate{slo=b,window=5m}" not in found  # of nothing there is no share
    assert found["triptych:slo_error_budget_remaining_ratio{slo=b}"] == 1


def test_the_class_is_the_headers_else_the_keys_else_the_default() -> None:
    choose = Levels().levels.choose
    assert [choose("b", "a").name, choose("", "b").name, choose("").name] == ["b", "b", "a"]
    with pytest.raises(InvalidRequest, match=r"x-triptych-slo.*'c' is not one of a, b"):
        choose("c", "a")


def test_a_window_counts_as_a_list_of_all_that_happened_would() -> None:
    chance = random.Random(11)
    window, now, happened = RollingCounts(600.0), 5.0e6, list[tuple[float, bool]]()
    for _ in range(1500):
        now += chance.choice((0.0, 0.5, 7.0, 31.0, 900.0 if chance.random() < 0.01 else 0.1))
        good = chance.random() < 0.7
        window.add(now, good)
        happened.append((now, good))
        total, goods = window.counts(now)
        within = [fine for at, fine in happened if now - at <= 600.0]
        also = [fine for at, fine in happened if now - at <= 600.0 * (1 + 1 / NUM_PARTS)]
        assert len(within) <= total <= len(also)
        assert sum(within) <= goods <= sum(also)
    assert window.counts(now + 700) == (0, 0)
