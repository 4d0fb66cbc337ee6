"""The committed dashboards: what the generator makes, and what Grafana's types allow."""

import copy
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tests.dashboards.boards import FOLDER, boards, targets
from tests.dashboards.grafana_types import faults, parsed
from tools.dashboards.boards import BOARDS
from tools.dashboards.build import dashboard_json
from tools.dashboards.panel import Panel, Query
from tools.dashboards.promql import series
from triptych.metrics import (
    DERIVED_METRICS,
    PAIR_METRICS,
    ROUTER_METRICS,
    SLO_METRICS,
    WORKER_GAUGES,
    WORKER_HISTOGRAMS,
)

PROVISIONING = Path(__file__).parents[2] / "deploy" / "grafana" / "provisioning"


def panels(board: Any) -> list[Any]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_generator_makes() -> None:
    """If not: python -m tools.dashboards"""
    made = {f"{board.uid}.json": dashboard_json(board) for board in BOARDS}
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == made


@pytest.mark.parametrize("uid", sorted(boards()))
def test_grafanas_types_know_every_field_and_allow_its_value(uid: str) -> None:
    told = boards()[uid]
    dashboard = parsed(told)
    assert json.loads(json.dumps(dashboard, cls=JSONEncoder)) == told
    assert list(faults(dashboard)) == []


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("type",), 7),
        (("gridPos", "w"), "12"),
        (("options", "legend", "displayMode"), "tabel"),
        (("titel",), "Sequences"),
    ],
)
def test_grafanas_types_find_what_is_wrong(where: tuple[str, ...], value: object) -> None:
    spoilt: Any = copy.deepcopy(boards()["triptych-slo"])
    *path, last = where
    place = next(panel for panel in panels(spoilt) if panel["type"] == "timeseries")
    for step in path:
        place = place[step]
    place[last] = value
    try:
        dashboard = parsed(spoilt)
    except (TypeError, AttributeError, ValueError):
        return
    assert json.loads(json.dumps(dashboard, cls=JSONEncoder)) != spoilt or list(faults(dashboard))


@pytest.mark.parametrize("uid", sorted(boards()))
def test_panels_lie_side_by_side_with_numbers_of_their_own(uid: str) -> None:
    everything = boards()[uid]["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        cell
        for where in (panel["gridPos"] for panel in everything)
        for cell in itertools.product(
            range(where["x"], where["x"] + where["w"]), range(where["y"], where["y"] + where["h"])
        )
    ]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < 24 for x, _ in cells)


def test_every_panel_says_how_to_read_it_and_what_to_do() -> None:
    for board in boards().values():
        for panel in panels(board):
            read, _, act = panel["description"].partition("\n\n**What to do:** ")
            assert read, panel["title"]
            assert act, panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_a_panel_without_words_or_with_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="how to read it"):
        Panel("Empty", "", "Nothing.", "short", (Query("1", ""),))
    with pytest.raises(KeyError, match="no_such_metric"):
        series("no_such_metric")
    with pytest.raises(ValueError, match="has no label stage"):
        series("kv_blocks", stage="encode")


def test_a_panel_with_more_queries_than_are_drawn_is_refused() -> None:
    queries = tuple(Query(str(number), "") for number in range(9))
    with pytest.raises(ValueError, match="'Full' has 9 queries, at most 8"):
        Panel("Full", "Read it.", "Do it.", "short", queries)
    assert Panel("Full", "Read it.", "Do it.", "short", queries[:8]).queries == queries[:8]


def test_every_query_of_a_panel_is_drawn() -> None:
    told = [(panel.title, len(panel.queries)) for board in BOARDS for row in board.rows for panel in row.panels]
    drawn = [(panel["title"], len(panel["targets"])) for board in BOARDS for panel in panels(boards()[board.uid])]
    assert drawn == told


def test_queries_use_only_variables_that_their_board_has() -> None:
    for board in boards().values():
        known = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval", "__range"}
        for panel in panels(board):
            for target in panel["targets"]:
                assert set(re.findall(r"\$(\w+)", target["expr"])) <= known, panel["title"]


def test_rates_are_taken_of_counters_alone() -> None:
    """Nothing that dcgm-exporter has here is one; of ours the list tells."""
    exprs = [target.expr for target in targets()]
    rated = {name for expr in exprs for name in re.findall(r"(?:rate|increase)\((\w[\w:]*)\{", expr)}
    counters = {each.name for each in (*ROUTER_METRICS, *SLO_METRICS, *DERIVED_METRICS) if each.kind == "counter"}
    counters |= {each.exposed_name for each in WORKER_GAUGES if each.kind == "counter"}
    listed = (*ROUTER_METRICS, *WORKER_HISTOGRAMS, *PAIR_METRICS)
    histograms = {each.name for each in listed if each.kind == "histogram"}
    counters |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    assert rated
    assert sorted(rated - counters) == []


def test_provisioning_names_what_there_is() -> None:
    source = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert source["type"] == "prometheus"
    provider = yaml.safe_load((PROVISIONING / "dashboards" / "triptych.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == "$DASHBOARDS"
    manual = (PROVISIONING.parents[2] / "docs" / "observability.md").read_text()
    assert "DASHBOARDS=" in manual
    assert "PROMETHEUS_URL=" in manual
