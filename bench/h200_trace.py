"""From a worker's trace to what its GPU did: kernels by time, how long it was busy, and what it waited between.

A trace is what torch's profiler exports (Chrome's format): events with a category, a beginning and a duration in
microseconds. Kernels, copies and fills of all streams count as work of the GPU.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_MOST_KERNELS = 25
_MOST_GAPS = 10
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel, copy or fill; times in microseconds."""

    name: str
    begin: float
    end: float
    stream: int


def read_trace(path: Path) -> list[Work]:
    """What ran on the device, by its beginning; from a .json or .json.gz file."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return works(json.loads(data)["traceEvents"])


def works(events: Iterable[Mapping[str, Any]]) -> list[Work]:
    found = [
        Work(
            str(event["name"])[:_LONGEST_NAME],
            float(event["ts"]),
            float(event["ts"]) + float(event["dur"]),
            int(event.get("args", {}).get("stream", 0)),
        )
        for event in events
        if event.get("cat") in _ON_DEVICE and "dur" in event
    ]
    return sorted(found, key=lambda work: work.begin)


def summary(found: Sequence[Work]) -> dict[str, Any]:
    """JSON-ready: seconds traced and busy, each stream's share, kernels by time, the longest gaps with both ends."""
    if not found:
        return {"traced_seconds": 0.0}
    begin, end = found[0].begin, max(work.end for work in found)
    span = max(end - begin, 1e-9)
    busy, gaps = _busy_and_gaps(found)
    by_stream: dict[int, float] = defaultdict(float)
    by_name: dict[str, list[float]] = defaultdict(list)
    for work in found:
        by_stream[work.stream] += work.end - work.begin
        by_name[work.name].append(work.end - work.begin)
    kernels = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:_MOST_KERNELS]
    return {
        "traced_seconds": round(span / 1e6, 6),
        "busy_share": round(busy / span, 4),
        "share_by_stream": {str(stream): round(time / span, 4) for stream, time in sorted(by_stream.items())},
        "kernels": [[name, len(times), round(sum(times) / 1e3, 3)] for name, times in kernels],
        "longest_gaps_ms": [[round(length / 1e3, 3), before, after] for length, before, after in gaps[:_MOST_GAPS]],
    }


def _busy_and_gaps(found: Sequence[Work]) -> tuple[float, list[tuple[float, str, str]]]:
    """Microseconds in which anything ran, and the times nothing did: longest first, with the work before and after."""
    busy, gaps = 0.0, []
    last = found[0]
    reached = last.begin
    for work in found:
        if work.begin > reached:
            gaps.append((work.begin - reached, last.name, work.name))
        busy += max(0.0, work.end - max(work.begin, reached))
        if work.end > reached:
            reached, last = work.end, work
    return busy, sorted(gaps, key=lambda gap: -gap[0])
