"""Faults injected between the tiers show in the answers, or in what the first token's distribution is.

Where each is injected, and that all checks of ours stay on and pass, is told in spoil.py; which questions a fault must
change, in cases.py: by what the pictures show. Figures about answers rest on those of 200 questions each that are right
without the fault, and are held to the bounds as they are. First tokens are compared on 16 questions of every family
that has pictures: all in all 99 in 100 must differ by more than the tolerance, and no family may have
so few that a true share of 0.99 would give them once in 100 runs of this test. `python -m tests.tiny_vl.measure_faults`
does the same on 200 of every family.
"""

from collections.abc import Iterator

import pytest

from tests.tiny_vl.measure_faults import NOISE, ON_PLACES, FaultBench, caught
from tests.tiny_vl.spoil import Fault
from tests.tiny_vl.spoilt_cluster import SpoiltCluster
from tools.tiny_vl.intervals import complaints, merged

MODEL = "tiny-vl"
SAMPLES, PER_FAMILY = 200, 16


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    cluster = SpoiltCluster(MODEL, tmp_path_factory.mktemp("workers"))
    yield FaultBench(cluster, MODEL, SAMPLES, PER_FAMILY)
    cluster.stop()


def test_without_a_fault_nothing_differs_by_more_than_noise(bench: FaultBench) -> None:
    for family, values in bench.first_tokens(Fault.NONE).items():
        assert max(values) < NOISE, family


def test_swapped_images_change_the_answers_that_should_change(bench: FaultBench) -> None:
    tally = bench.swapped()
    assert tally.total >= 0.9 * SAMPLES
    assert tally.share >= 0.95, tally


def test_a_dropped_image_changes_the_answers_that_should_change(bench: FaultBench) -> None:
    tally = bench.dropped()
    assert tally.total >= 0.9 * SAMPLES
    assert tally.share >= 0.95, tally


@pytest.mark.parametrize("fault", ON_PLACES)
def test_what_is_in_another_place_changes_answers_about_letter_grids(bench: FaultBench, fault: Fault) -> None:
    tally = bench.letter_grid("grid-dense", fault)
    assert tally.share >= 0.8, tally


@pytest.mark.parametrize("fault", ON_PLACES)
def test_what_is_in_another_place_changes_first_tokens_in_every_family(bench: FaultBench, fault: Fault) -> None:
    tallies = caught(bench.first_tokens(fault))
    assert merged(tallies.values()).share >= 0.99, tallies
    assert not complaints({family: {family: tally} for family, tally in tallies.items()})
