"""What is looked at beside a workload: the GPU, the CPU time of every process of the server, its /metrics."""

import os
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

_QUERY = ("utilization.gpu", "utilization.memory", "memory.used", "power.draw", "clocks.sm")
_INTERVAL_MS = 200
_STOP_SECONDS = 5.0
_METRICS_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"^(triptych:\w+)(\{[^}]*\})? (\S+)$")
_LEFT_OUT = ("_bucket", "_created")


class GpuWatch:
    """Asks nvidia-smi five times a second while the block lasts; without one, `summary` is empty."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._text = ""

    def __enter__(self) -> "GpuWatch":
        command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits", "-i", "0"]
        try:
            self._process = subprocess.Popen(
                [*command, "-lms", str(_INTERVAL_MS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._text, _ = self._process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._text, _ = self._process.communicate()

    def summary(self) -> dict[str, Any]:
        return gpu_summary(self._text.splitlines())


def gpu_summary(lines: Sequence[str]) -> dict[str, Any]:
    """Mean and largest of each number that nvidia-smi was asked for; lines that are not whole are left out."""
    rows = [[field.strip() for field in line.split(",")] for line in lines]
    numbers = [list(map(float, row)) for row in rows if len(row) == len(_QUERY) and all(map(_is_number, row))]
    if not numbers:
        return {}
    columns = dict(zip(_QUERY, zip(*numbers, strict=True), strict=True))
    found = {name: {"mean": round(statistics.mean(column), 1), "max": max(column)} for name, column in columns.items()}
    return {"samples": len(numbers), **found}


def cpu_seconds_by_process(root: int) -> dict[str, float]:
    """CPU seconds so far of the process and everything below it, summed by what the processes call themselves."""
    children: dict[int, list[int]] = defaultdict(list)
    facts: dict[int, tuple[str, float]] = {}
    for pid, parent, name, seconds in _processes():
        children[parent].append(pid)
        facts[pid] = (name, seconds)
    found: dict[str, float] = defaultdict(float)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children[pid]
        if pid in facts:
            name, seconds = facts[pid]
            found[name] += seconds
    return dict(found)


def _processes() -> Iterator[tuple[int, int, str, float]]:
    """pid, parent, name, CPU seconds of every process that can be read."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        fields = stat.rpartition(")")[2].split()
        yield int(folder.name), int(fields[1]), _name(words, stat), (int(fields[11]) + int(fields[12])) / _TICKS


def _name(words: Sequence[bytes], stat: str) -> str:
    """`ray::WorkerActor` for an actor; of others the program, or the script that an interpreter runs."""
    texts = [word.decode(errors="replace") for word in words if word]
    if texts and texts[0].startswith("ray::"):
        return texts[0].split()[0]
    scripts = [Path(text).name for text in texts[1:4] if text.endswith(".py")]
    return scripts[0] if scripts else stat[stat.index("(") + 1 : stat.rindex(")")]


def read_metrics(url: str) -> dict[str, float]:
    """Every sample of /metrics but buckets, by name and labels."""
    text = httpx.get(f"{url}/metrics", timeout=_METRICS_SECONDS, trust_env=False).raise_for_status().text
    return samples(text)


def samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and not match[1].endswith(_LEFT_OUT):
            found[match[1].removeprefix("triptych:") + (match[2] or "")] = float(match[3])
    return found


def changes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What differs, as the difference; a mean for each histogram that has grown, in place of its sum."""
    found = {name: value - before.get(name, 0.0) for name, value in after.items()}
    found = {name: value for name, value in found.items() if value}
    for name in [name for name in found if "_sum" in name]:
        count = found.get(name.replace("_sum", "_count"))
        if count:
            found[name.replace("_sum", "_mean")] = found.pop(name) / count
    return {name: round(value, 6) for name, value in found.items()}


def differences(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each has grown by, those below a hundredth left out."""
    grown = {name: round(value - before.get(name, 0.0), 2) for name, value in after.items()}
    return {name: value for name, value in sorted(grown.items(), key=lambda item: -item[1]) if value >= 0.01}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
