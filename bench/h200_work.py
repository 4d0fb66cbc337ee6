"""What bench/h200.py runs: each workload as the load generator's arguments, its goals, and vLLM's figures beside them.

vLLM's figures: vLLM 0.25.0 on one H200, the same geometry in bfloat16 with random weights, FA3, its default compilation
and CUDA graphs, by the same load generator on the server's own machine. Where two runs were made both stand here.
"split" is its encoder in a process of its own on the same GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOPOLOGIES = ("epd", "e+p+d")  # columns of the goals


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure of a part and the bound it has to keep, for each topology."""

    name: str
    unit: str
    path: tuple[str, ...]  # where the figure stands in the part's entry, as `means` makes it
    at_most: bool
    bounds: tuple[float, float]  # epd, e+p+d
    vllm: str
    vllm_split: str = "–"
    scale: float = 1.0  # from the figure's own unit to `unit`
    digits: int = 1

    def bound(self, topology: str) -> float:
        return self.bounds[TOPOLOGIES.index(topology)]

    def holds(self, value: float, topology: str) -> bool:
        return value <= self.bound(topology) if self.at_most else value >= self.bound(topology)


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of one workload that are judged together, one for each seed."""

    name: str
    what: str
    arguments: tuple[str, ...]
    seeds: tuple[int, ...]
    goals: tuple[Goal, ...]
    expected_seconds: float  # of all runs; a part that would not end before the time is up is left for the next call
    rate: tuple[float, float] | None = None  # Poisson arrivals per second in epd and e+p+d; else the arguments say
    counts_router: bool = False  # the router's CPU time per request is one of its figures
    profiled: tuple[str, ...] = ()  # arguments that override its own where it is profiled

    def command(self, topology: str, seed: int) -> list[str]:
        paced = [] if self.rate is None else ["--rate", f"{self.rate[TOPOLOGIES.index(topology)]:g}"]
        return ["run", *self.arguments, *paced, "--seed", str(seed), "--raw"]


START = "start"
START_GOAL = Goal("cold to ready", "s", ("seconds",), True, (45, 60), "122", "68 + 111", digits=1)

_W1 = ("--size", "1280x720", "--max-tokens", "1", "--requests", "10", "--concurrency", "1", "--warmup", "1")
_W2 = ("--images", "4", "--size", "1280x720", "--text-tokens", "64", "--max-tokens", "64")
_W3 = ("--images", "1", "--size", "640x480", "--max-tokens", "256", "--requests", "192", "--concurrency", "64")
_W2_CLOSED = (*_W2, "--requests", "96", "--concurrency", "16")

_TTFT_MS = ("ttft_s", "p50")


def _w1(images: int, bounds: tuple[float, float], vllm: str, split: str) -> Part:
    goal = Goal("TTFT p50", "ms", _TTFT_MS, True, bounds, vllm, split, scale=1e3, digits=0)
    what = f"latency, {images} image{'s' if images > 1 else ''}"
    arguments, longer = ("--images", str(images), *_W1), ("--requests", "60")
    return Part(f"w1-{images}", what, arguments, (100 + images,), (goal,), 10 + 2 * images, profiled=longer)


PARTS: Sequence[Part] = (
    _w1(1, (70, 80), "144, 127", "166"),
    _w1(4, (260, 290), "538, 469", "573"),
    _w1(8, (480, 540), "1076, 947", "1107"),
    Part(
        "w2",
        "mixed",
        _W2_CLOSED,
        (200, 210),
        (
            Goal("rate", "req/s", ("req_per_s",), False, (5.0, 4.4), "3.55, 3.80", "3.75, 3.46", digits=2),
            Goal("TPOT p90", "ms", ("tpot_ms", "p90"), True, (40, 20), "54, 53", "27, 20"),
            Goal("router CPU", "CPU-s/req", ("router_cpu_per_request",), True, (0.025, 0.025), "–", digits=4),
        ),
        80,
        counts_router=True,
    ),
    Part(
        "w3",
        "decode",
        _W3,
        (300,),
        (
            Goal("rate", "tok/s", ("output_tok_per_s",), False, (6500, 6000), "5496, 5677", digits=0),
            Goal("TPOT p50", "ms", ("tpot_ms", "p50"), True, (6.3, float("inf")), "7.1, 7.5", digits=2),
        ),
        40,
    ),
    Part(
        "w4",
        "repeat",
        (*_W2_CLOSED, "--same-image"),
        (400,),
        (Goal("rate", "req/s", ("req_per_s",), False, (38, 34), "23.3, 22.8", digits=1),),
        30,
    ),
    Part(
        "w5",
        "goodput",
        (*_W2, "--requests", "60", "--slo-ttft", "1.5", "--slo-tpot", "0.05"),
        (7000, 8000, 9000),
        (Goal("attainment", "", ("slo", "attainment"), False, (0.9, 0.9), "0.9 at 3.0/s", "0.9 at 2.6/s", digits=3),),
        110,
        rate=(4.0, 3.4),
    ),
)

# A dry run: every part, with so little to do that a CPU is done in seconds. Later flags override earlier ones.
DRY = {
    "w1": ("--size", "84x56", "--requests", "2"),
    "w2": ("--size", "84x56", "--requests", "4", "--concurrency", "2", "--max-tokens", "4"),
    "w3": ("--size", "56x56", "--requests", "4", "--concurrency", "4", "--max-tokens", "8"),
    "w4": ("--size", "84x56", "--requests", "4", "--concurrency", "2", "--max-tokens", "4"),
    "w5": ("--size", "84x56", "--requests", "4", "--max-tokens", "4"),
}


def dry(part: Part) -> Part:
    """The part with next to nothing to do, once."""
    arguments = (*part.arguments, *DRY[part.name.partition("-")[0]], "--workers", "1")
    return Part(part.name, part.what, arguments, part.seeds[:1], part.goals, 5, part.rate, part.counts_router)


def chosen(only: str) -> list[Part]:
    """Parts by a list as `w1,w3` or `w1-4`; all of them for an empty one. Raises ValueError for an unknown name."""
    names = [name for name in only.split(",") if name and name != START]
    known = {part.name for part in PARTS} | {part.name.partition("-")[0] for part in PARTS}
    for name in names:
        if name not in known:
            raise ValueError(f"no part is called {name!r}, expected some of {', '.join(sorted(known))}, {START}")
    if not only:
        return list(PARTS)
    return [part for part in PARTS if part.name in names or part.name.partition("-")[0] in names]


def means(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers that all runs have, averaged over them, with the same nesting; what is no number is left out."""
    first = runs[0]
    found: dict[str, Any] = {}
    for name, value in first.items():
        values = [run.get(name) for run in runs]
        if isinstance(value, Mapping):
            found[name] = means([each for each in values if isinstance(each, Mapping)])
        elif all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
            found[name] = sum(each for each in values if each is not None) / len(values)
    return found
