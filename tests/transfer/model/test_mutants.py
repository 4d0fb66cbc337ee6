"""Each planted fault is noticed: a model test that cannot fail proves nothing."""

import inspect
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.transfer.model import mutants
from tests.transfer.model.faults import NONE, ROUGH, SLOW, Rates
from tests.transfer.model.oracle import Broken
from tests.transfer.model.planted import Planted
from tests.transfer.model.world import Simulation
from triptych.errors import InvariantViolation

_STEPS = 4000
_SEEDS = range(16)
# Units are half written for a long time, and refs come when their lease is over.
_HALF_WRITTEN = replace(SLOW, dawdle=0.4, linger=0.05, leave=0.02)
# Copies rest in their middle while their claims end.
_HALF_READ = replace(SLOW, dawdle=0.0, linger=0.3, straggle=0.7, leave=0.01)

# mutant, the world it is planted in, whether there are checksums, what must be said of it
CASES: list[tuple[type[Planted], Rates, bool, str]] = [
    (mutants.GenerationCheckedBeforeTheCopy, _HALF_READ, False, "takes wrong bytes for right"),
    (mutants.GenerationNotChecked, _HALF_READ, False, "takes wrong bytes for right"),
    (mutants.StampBehindTheBytes, _HALF_WRITTEN, False, "takes wrong bytes for right"),
    (mutants.ChecksumNotChecked, ROUGH, True, "takes wrong bytes for right"),
    (mutants.StartedBeforeTheLastPull, SLOW, False, "takes wrong bytes for right|pulls write for a request"),
    (mutants.ReleaseBeforeTheCopyHasEnded, ROUGH, False, "gives a claim back under its own copy"),
    (mutants.ReleaseUnderAnAbandonedCopy, ROUGH, False, "gives a claim back under its own copy"),
    (mutants.QuarantineIgnored, ROUGH, False, "gives a claim back under its own copy"),
    (mutants.ReleasedTwice, ROUGH, True, "gives a claim back twice"),
    (mutants.DestinationNeverFreed, ROUGH, False, "is not idle"),
    (mutants.DestinationFreedUnderACopy, ROUGH, False, "while a copy still writes into it"),
    (mutants.BlocksFreedUnderAPull, ROUGH, False, "while a copy still writes into it"),
    (mutants.MappingClosedUnderACopy, ROUGH, False, "closes memory that its own copy reads"),
    (mutants.DoubleReleaseCountedTwice, ROUGH, False, "ended one claim twice"),
    (mutants.OneClaimForAllReaders, ROUGH, False, "under a claim"),
    (
        mutants.LeaseOnTheReadersClock,
        ROUGH,
        False,
        "before its lease was over|holds for a while yet|longer than it may",
    ),
    (mutants.RenewalShortens, ROUGH, False, "before its lease was over|holds for a while yet"),
    (mutants.SweptByTrafficAlone, ROUGH, False, "longer than it may"),
    (mutants.NoTombstones, ROUGH, False, "releases of unknown claims"),
    (mutants.AnyIncarnationAnswers, ROUGH, False, "unknown claims|knows nothing of|gone which holds|is not idle"),
    (mutants.NobodyRenews, NONE, False, "ended by sweep"),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Broken promises are raised out of callbacks, which the lease table logs at length."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("mutant", "rates", "checksums", "said"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_planted_fault_is_noticed(mutant: type[Planted], rates: Rates, checksums: bool, said: str) -> None:
    with pytest.raises((Broken, InvariantViolation), match=said):
        _run_all(_SEEDS, rates, mutant, checksums)


def test_every_planted_fault_has_a_case() -> None:
    planted = {each for _, each in inspect.getmembers(mutants, inspect.isclass) if issubclass(each, Planted)}
    assert planted - {Planted} == {case[0] for case in CASES}


@pytest.mark.parametrize(
    "rates", [ROUGH, _HALF_READ, _HALF_WRITTEN, NONE], ids=["rough", "half-read", "half-written", "none"]
)
def test_the_same_worlds_are_whole_without_it(rates: Rates) -> None:
    for checksums in (False, True):
        _run_all(_SEEDS[:3], rates, Planted, checksums)


def _run_all(seeds: range, rates: Rates, planted: type[Planted], checksums: bool) -> None:
    for seed in seeds:
        _run(seed, rates, planted(), checksums)


def _run(seed: int, rates: Rates, planted: Planted, checksums: bool) -> None:
    simulation = Simulation(seed, rates, planted, checksums, seconds_between=None if rates is not NONE else 1.0)
    if rates is NONE:
        simulation.fill_landing()
        simulation.timeline.run_until(4.0)
        simulation.finish()
        swept = simulation.oracle.counts["ended by sweep"]
        simulation.oracle.hold(not swept, f"{swept} claims that somebody waited for were ended by sweep")
        return
    simulation.run(_STEPS)
    simulation.settle()
