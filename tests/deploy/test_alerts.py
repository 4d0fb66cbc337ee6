"""Prometheus' rules: its own checker and unit tests, and that each alert is tested and says what to do.

What is expected of each rule stands in alerts/*.test.yml.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.dashboards.names import labels_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = sorted(FOLDER.glob("*.rules.yml"))
CASES = sorted((Path(__file__).parent / "alerts").glob("*.test.yml"))
RUNBOOK = ROOT / "docs" / "operations.md"
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def promtool(*arguments: str | Path) -> str:
    """What it says of rules that must be right."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not here; Debian has it in the package prometheus")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def rules() -> tuple[dict[str, Any], ...]:
    return tuple(
        rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
    )


def alerts() -> Iterator[dict[str, Any]]:
    return (rule for rule in rules() if "alert" in rule)


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "rules", "--lint-fatal", *RULES)
    promtool("check", "config", FOLDER / "prometheus.yml")


def test_rules_fire_when_they_should_and_only_then() -> None:
    assert promtool("test", "rules", *CASES).count("SUCCESS") == len(CASES)


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = [
        case
        for path in CASES
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fires == {rule["alert"] for rule in alerts()}


def test_every_alert_leads_to_what_to_do() -> None:
    headings = {
        line.removeprefix("### ").lower() for line in RUNBOOK.read_text().splitlines() if line.startswith("### ")
    }
    for rule in alerts():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
        assert anchor in headings
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_rules_ask_for_metrics_that_there_are() -> None:
    for rule in rules():
        for name in re.findall(r"\btriptych:(\w+)", rule["expr"]):
            labels_of(_SUFFIX.sub("", name))
