"""NVIDIA's compute-sanitizer over our kernels: python -m tests.gpu.sanitize [memcheck] [racecheck].

memcheck finds reads and writes outside of allocations, misaligned ones, and errors of the runtime; racecheck finds
shared memory that one thread reads and another writes without a barrier between. Every tensor has an allocation of its
own, with room behind it that belongs to nobody. What is run is in sanitized_kernels.py.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
TOOLS: Mapping[str, Sequence[str]] = {
    "memcheck": ("--tool", "memcheck", "--padding", "4096"),
    "racecheck": ("--tool", "racecheck"),
}
_FOUND = 86  # status where the tool has found errors
_SECONDS = 500.0
_SUMMARY = re.compile(r"SUMMARY: .*")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one tool says of one run."""

    tool: str
    found: bool  # errors
    worked: bool  # the kernels were run to their end, or to the error that was found
    summary: str
    output: str


def sanitizer() -> str | None:
    """Where the tool is, or None."""
    return shutil.which("compute-sanitizer") or next((place for place in PLACES if Path(place).is_file()), None)


def kernels(names: Sequence[str] = (), under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the kernels of these names, all of ours if none, below a tool's command."""
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [*under, sys.executable, "-m", "tests.gpu.sanitized_kernels", *names]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS, errors="replace"
    )


def sanitize(tool: str, names: Sequence[str] = ()) -> Verdict:
    """Raises RuntimeError where there is no compute-sanitizer."""
    path = sanitizer()
    if path is None:
        raise RuntimeError(f"no compute-sanitizer on the PATH or in {', '.join(PLACES)}")
    done = kernels(names, (path, *TOOLS[tool], "--error-exitcode", str(_FOUND)))
    output = done.stdout + done.stderr
    summaries = _SUMMARY.findall(output)
    found = done.returncode == _FOUND
    worked = found or (done.returncode == 0 and bool(summaries))
    return Verdict(tool, found, worked, summaries[-1] if summaries else "", output)


def main(tools: Sequence[str]) -> int:
    plain = kernels()  # compiles them, which a tool would slow down
    print(plain.stdout or plain.stderr)
    verdicts = [sanitize(tool) for tool in tools or TOOLS]
    for verdict in verdicts:
        clean = "clean" if verdict.worked and not verdict.found else "NOT CLEAN"
        print(f"{verdict.tool}: {clean}: {verdict.summary}")
        if clean != "clean":
            print(verdict.output[-4000:])
    return 1 if plain.returncode or any(verdict.found or not verdict.worked for verdict in verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
