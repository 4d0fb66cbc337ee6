"""The embedded model over HTTP on three tiers: 300 fresh questions of all families, held to the bounds.

A sample this small cannot tell a point or two, so it fails the model only for what a model exactly at its bounds would
do less than once in 100 runs: too few right of all, too few in one family, or too few of one kind (intervals.py has the
rule, test_intervals.py what it lets pass). The seed is fixed: the same model gives the same verdict every time.
"""

from collections.abc import Iterator

import pytest

from tests.processes import ProcessCluster
from tests.tiny_vl.sample_plan import planned
from tests.tiny_vl.spoilt_cluster import TABLES, settings_of
from tools.tiny_vl.exam import Asking, ask_all, draw_question
from tools.tiny_vl.families import FAMILIES
from tools.tiny_vl.intervals import Tally, complaints
from tools.tiny_vl.table import markdown

SEED = 40_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = ProcessCluster(settings_of("tiny-vl"), tmp_path_factory.mktemp("workers"), TABLES)
    yield cluster.url
    cluster.stop()


def test_the_embedded_model_answers_fresh_questions_of_every_family(url: str) -> None:
    asked = list(planned())
    assert len(asked) == 300
    questions = (draw_question(kind.name, SEED, index) for kind, index in asked)
    tallies: dict[str, dict[str, Tally]] = {family: {} for family in FAMILIES}
    for (kind, _), reply in zip(asked, ask_all(url, questions, Asking(in_flight=32)), strict=True):
        before = tallies[kind.family].get(kind.name, Tally(0, 0, kind.bound))
        tallies[kind.family][kind.name] = Tally(before.right + reply.is_right, before.total + 1, kind.bound)
    found = complaints(tallies)
    assert not found, "\n".join([*found, markdown(tallies)])
