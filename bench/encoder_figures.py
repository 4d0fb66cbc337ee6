"""From the seconds of turns to the figures of bench/encoder.py, and whether they reach the goals."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.encoder_towers import OURS, SDPA, Encode
from bench.encoder_work import Workload, flops

ONE, PACKED = "one by one", "packed"

GOALS = (
    # width, height, what is compared, at least
    (448, 448, "times_transformers", 3.0),
    (1280, 720, "times_transformers", 1.5),
    (1280, 720, "share_of_dense", 0.45),
)


@dataclass
class Timed:
    """One way to encode one workload, and the seconds of its turns: of `pack` images each, round by round."""

    workload: Workload
    name: str
    how: str
    turn: Callable[[], object]
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(second for each in self.rounds for second in each)


def ways(workload: Workload, images: Sequence[Tensor], encode: Mapping[str, Encode]) -> Iterator[Timed]:
    grid, packed = workload.grid, torch.cat(list(images))

    def one_by_one(tower: Encode) -> Callable[[], object]:
        return lambda: [tower(each, [grid]) for each in images]

    def all_at_once(tower: Encode) -> Callable[[], object]:
        return lambda: tower(packed, [grid] * workload.pack)

    for name, tower in encode.items():
        yield Timed(workload, name, ONE, one_by_one(tower))
        yield Timed(workload, name, PACKED, all_at_once(tower))


def figures(workload: Workload, timed: Sequence[Timed], config: Mapping[str, Any], dense: float) -> dict[str, Any]:
    mine = [way for way in timed if way.workload == workload]
    work = flops(config, workload.grid)
    (base,) = (way.seconds for way in mine if (way.name, way.how) == (SDPA, ONE))
    found: dict[str, Any] = {"patches_per_image": workload.grid.patches, "tflop_per_image": work / 1e12}
    for way in mine:
        tflops = workload.pack * work / way.seconds / 1e12
        found[f"{way.name}, {way.how}"] = {
            "images_per_second": workload.pack / way.seconds,
            "tflops": tflops,
            "share_of_dense": tflops / dense,
            "times_transformers": base / way.seconds,
            "seconds_of_each_round": [statistics.median(each) for each in way.rounds],
            "turns": sum(map(len, way.rounds)),
        }
    return found


def goals(workloads: Sequence[Workload], found: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each goal for each workload of its size: the better of eager and graphs, packed."""
    for width, height, measure, least in GOALS:
        for workload in workloads:
            if (workload.width, workload.height) == (width, height):
                entry = found[workload.name]
                reached = max(entry[way][measure] for name in OURS if (way := f"{name}, {PACKED}") in entry)
                yield {
                    "workload": workload.name,
                    "measure": measure,
                    "least": least,
                    "reached": reached,
                    "holds": reached >= least,
                }
