"""Boards as they are committed, and their queries as Grafana would send them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
_ALL = {"cluster": ".*", "worker_type": ".*", "worker": ".*", "slo": ".*"}


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    board: str
    row: str
    panel: str
    kind: str  # Grafana's type of the panel
    expr: str
    legend: str
    unit: str
    is_stacked: bool

    def __str__(self) -> str:
        return f"{self.board} / {self.row} / {self.panel}: {self.legend}"


@cache
def boards() -> dict[str, Mapping[str, Any]]:
    """By uid."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def targets() -> Iterator[Target]:
    for uid, board in boards().items():
        row = ""
        for panel in board["panels"]:
            if panel["type"] == "row":
                row = panel["title"]
            for each in panel.get("targets", ()):
                looks = panel["fieldConfig"]["defaults"]
                yield Target(
                    *(uid, row, panel["title"], panel["type"], each["expr"], each["legendFormat"], looks["unit"]),
                    is_stacked="stacking" in looks.get("custom", {}),
                )


def filled(expr: str, seconds: float, **chosen: str) -> str:
    """With values for Grafana's variables: all clusters and workers, unless others are chosen, and so long a window."""
    values = {**_ALL, **chosen, "__rate_interval": f"{seconds:.0f}s", "__range": f"{seconds:.0f}s"}
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expr)
