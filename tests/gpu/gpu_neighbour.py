"""What a neighbour on a GPU can be asked besides what one on the CPU can."""

import random
import time
from collections.abc import Mapping
from typing import Any

import torch

from tests.transfer.neighbours import Action
from triptych.transfer.cuda_events import new_stream
from triptych.transfer.slab import Slab

_CYCLES_PER_SECOND = 1.9e9  # about: sleeping kernels count cycles
_STEPS_IN_FLIGHT = 4


def sleep_on_device(seconds: float) -> None:
    """Keeps the current stream busy for about so long; returns at once."""
    torch.cuda._sleep(int(seconds * _CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]


def numbers_of(slab: Slab) -> torch.Tensor:
    """[units, numbers per unit] int64"""
    return slab.data.view(torch.int64).view(slab.num_units, -1)


def _fill_later(slab: Slab, _published: Any, begin: int, end: int, generation: int, seconds: float) -> int:
    """Units begin..end written once a sleeping kernel has ended; the event behind them. Nothing waits on the host."""
    with torch.cuda.stream(new_stream(slab.device)):
        sleep_on_device(seconds)
        slab.stamp(range(begin, end), [generation] * (end - begin))
        numbers_of(slab)[begin:end].fill_(generation)
        return slab.record_event()


def _announce_before_writing(slab: Slab, _published: Any, begin: int, end: int, generation: int, seconds: float) -> int:
    """Units stamped at once, and written only once a sleeping kernel has ended; the event behind them.

    Between the two, generations are those of the claim, and the data is not.
    """
    with torch.cuda.stream(new_stream(slab.device)):
        slab.stamp(range(begin, end), [generation] * (end - begin))
        torch.cuda.current_stream().synchronize()
        sleep_on_device(seconds)
        numbers_of(slab)[begin:end].fill_(generation)
        return slab.record_event()


def _fill_each(slab: Slab, _published: Any, generations: Mapping[int, int]) -> int:
    """Each unit stamped and filled with a generation of its own."""
    slab.stamp(list(generations), list(generations.values()))
    for unit, generation in generations.items():
        numbers_of(slab)[unit].fill_(generation)
    return slab.record_event()


def _rewrite(slab: Slab, published: Any, seconds: float) -> int:
    """Overwrites the slab again and again, announcing each generation with its event as soon as that is recorded."""
    generation, end, chance = 0, time.monotonic() + seconds, random.Random(3)
    with torch.cuda.stream(new_stream(slab.device)):
        while time.monotonic() < end:
            generation += 1
            slab.stamp(range(slab.num_units), [generation] * slab.num_units)
            numbers_of(slab).fill_(generation)
            published[0] = generation << 16 | slab.record_event()
            time.sleep(chance.random() * 2e-3)
            if generation % _STEPS_IN_FLIGHT == 0:
                torch.cuda.current_stream().synchronize()
    return generation


ACTIONS: Mapping[str, Action] = {
    "announce": _announce_before_writing,
    "fill_later": _fill_later,
    "fill_each": _fill_each,
    "rewrite": _rewrite,
}
