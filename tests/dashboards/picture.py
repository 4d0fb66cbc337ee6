"""docs/dashboard.png: some panels of the boards, drawn from what their own queries find in a live cluster.

`python -m tests.dashboards.picture` makes it: a cluster under load, Prometheus, and no Grafana.
"""

import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot
from PIL import Image

from tests.dashboards.boards import Target, filled, targets
from tests.dashboards.live import Live, live_cluster
from tests.dashboards.prometheus import Series

OUTPUT = Path(__file__).parents[2] / "docs" / "dashboard.png"
LOAD_SECONDS = 45.0
WINDOW_SECONDS = 6.0  # that rates are taken over
COLUMNS, COLORS = 3, 64
FEW_LINES, MOST_LINES = 4, 8
# (board, row, panel): one for each subject, as they stand on the boards.
SHOWN = (
    ("triptych-slo", "Service levels", "Goodput against all"),
    ("triptych-slo", "Service levels", "Limits missed"),
    ("triptych-slo", "Latency", "Time to first token"),
    ("triptych-slo", "Latency", "Time to first token, all of them"),
    ("triptych-stages", "Where the time goes", "Seconds by stage"),
    ("triptych-stages", "3 Encoder: wait, preprocess, encode", "Preprocess"),
    ("triptych-stages", "3 Encoder: wait, preprocess, encode", "Vision tower"),
    ("triptych-stages", "7 Decode", "Sequences"),
    ("triptych-stages", "7 Decode", "KV blocks in use"),
    ("triptych-cluster", "Faults, retries, restarts", "Workers by state"),
    ("triptych-cluster", "Faults, retries, restarts", "Retries"),
    ("triptych-cluster", "Transport, by pair of tiers", "Seconds of a copy"),
)
_UNITS = {"s": "s", "reqps": "requests/s", "percentunit": "share", "ops": "/s", "Bps": "bytes/s", "short": ""}


@dataclass(frozen=True)
class Drawing:
    """A panel with what its queries have found."""

    title: str
    kind: str  # Grafana's type of the panel, or `areas`
    unit: str
    lines: Sequence[tuple[str, Series]]


def drawings(live: Live) -> list[Drawing]:
    """The panels of SHOWN, over all that was seen."""
    chosen: dict[tuple[str, str, str], list[Target]] = {}
    for target in targets():
        chosen.setdefault((target.board, target.row, target.panel), []).append(target)
    made = []
    for key in SHOWN:
        lines = [
            (_named(target.legend, series), series)
            for target in chosen[key]
            for series in live.prometheus.between(filled(target.expr, WINDOW_SECONDS), live.began, live.ended)
        ]
        first = chosen[key][0]
        title = f"{first.row}: {first.panel}"
        made.append(Drawing(title, "areas" if first.is_stacked else first.kind, first.unit, lines))
    return made


def _named(legend: str, series: Series) -> str:
    return re.sub(r"{{(\w+)}}", lambda name: series.labels.get(name[1], ""), legend)


def draw(panels: Sequence[Drawing], path: Path) -> None:
    rows = math.ceil(len(panels) / COLUMNS)
    pyplot.rcParams.update({"font.size": 7, "axes.titlesize": 8, "axes.titleweight": "bold"})
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(12, 2.3 * rows), layout="constrained")
    start = min(point[0] for panel in panels for _, series in panel.lines for point in series.points)
    for panel, axis in zip(panels, np.ravel(axes), strict=False):
        _draw_one(panel, axis, start)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    # Few colours are enough for lines, and a third of the bytes.
    Image.open(path).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def _draw_one(panel: Drawing, axis: Any, start: float) -> None:
    axis.set_title(panel.title, loc="left")
    axis.set_ylabel(_UNITS.get(panel.unit, panel.unit))
    axis.set_xlabel("s", loc="right")
    axis.grid(alpha=0.3)
    if panel.kind == "heatmap":
        _draw_heatmap(panel, axis, start)
        return
    # The ones with most in them. A legend has room for few, and of many none for what never was.
    told = [line for line in panel.lines if len(panel.lines) <= FEW_LINES or _weight(line[1])]
    lines = sorted(told, key=lambda line: -_weight(line[1]))[:MOST_LINES]
    if not lines:
        return
    times = sorted({time for _, series in lines for time, _ in series.points})
    values = np.array([_at(series, times) for _, series in lines])
    names = [name for name, _ in lines]
    moments = np.array(times) - start
    if panel.kind == "areas":
        axis.stackplot(moments, np.nan_to_num(values), labels=names, alpha=0.8)
    else:
        for name, line in zip(names, values, strict=True):
            axis.plot(moments, line, label=name, linewidth=1.2)
    axis.set_ylim(0, 1.45 * axis.dataLim.y1 or 1)  # room for the legend
    axis.legend(fontsize=5.5, loc="upper left", framealpha=0.6, ncols=3 if len(names) > FEW_LINES else 2)


def _draw_heatmap(panel: Drawing, axis: Any, start: float) -> None:
    """Buckets from below; what Prometheus tells of each includes all that are smaller."""
    bounds = sorted((float(series.labels["le"]), series) for _, series in panel.lines)
    times = sorted({time for _, series in bounds for time, _ in series.points})
    within = np.array([np.nan_to_num(_at(series, times)) for _, series in bounds])
    counts = np.diff(within, axis=0, prepend=0.0)
    used = [index for index, row in enumerate(counts) if row.any()]
    low, high = used[0], used[-1] + 1
    axis.pcolormesh(np.array(times) - start, range(low, high), counts[low:high], cmap="Blues", shading="nearest")
    axis.set_yticks(range(low, high), [f"{bound:g}" for bound, _ in bounds[low:high]])
    axis.grid(visible=False)


def _weight(series: Series) -> float:
    return max((value for _, value in series.points if math.isfinite(value)), default=0.0)


def _at(series: Series, times: Sequence[float]) -> list[float]:
    values = dict(series.points)
    return [values.get(time, math.nan) for time in times]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, live_cluster(Path(folder), LOAD_SECONDS) as live:
        draw(drawings(live), OUTPUT)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
