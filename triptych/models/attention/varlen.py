"""Prompts with nothing before them, by torch's own varlen_attn: flash attention over the step's keys and values."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from triptych.journey import Int64Array
from triptych.models.attention.parts import StepParts

# torch 2.11 takes fewer key heads than query heads as they come, later ones want to be told.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Fresh prompts that follow one another in the step. bounds: [prompts + 1] int64, from 0 on"""

    tokens: slice
    bounds: Int64Array
    longest: int


@dataclass(frozen=True, slots=True, eq=False)
class PlacedRun:
    """A Run with its bounds on the device, in int32."""

    tokens: slice
    bounds: Tensor
    longest: int

    @property
    def length(self) -> int:
        """Tokens."""
        count: int = self.tokens.stop - self.tokens.start
        return count

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[tokens of the run, heads, head_size] of the whole step's queries, keys and values; causal."""
        attended: Tensor = varlen_attn(  # type: ignore[assignment]  # a pair only where asked for
            query[self.tokens],
            key[self.tokens],
            value[self.tokens],
            self.bounds,
            self.bounds,
            self.longest,
            self.longest,
            scale=scale,
            window_size=(-1, 0),
            **_GROUPED,
        )
        return attended


def find_runs(parts: StepParts) -> tuple[Run, ...]:
    """The fresh prompts of a step, in as few runs as they make."""
    apart = np.flatnonzero(np.diff(parts.fresh) != 1) + 1
    return tuple(_run(parts, rows) for rows in np.split(parts.fresh, apart) if len(rows))


def _run(parts: StepParts, rows: Int64Array) -> Run:
    lengths = parts.length[rows]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    first = int(parts.first[rows[0]])
    return Run(slice(first, first + int(bounds[-1])), bounds, int(lengths.max()))


def place(runs: Sequence[Run], bounds: Tensor) -> tuple[PlacedRun, ...]:
    """bounds: of all runs, one behind the other, on the device"""
    parts = torch.split(bounds.to(torch.int32), [len(run.bounds) for run in runs])
    return tuple(PlacedRun(run.tokens, part, run.longest) for run, part in zip(runs, parts, strict=True))
