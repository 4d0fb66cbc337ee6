"""What a launched step has made, on its way from the device to the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.engine.sampler import Draw, Drawn, read
from triptych.journey import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """Tokens being chosen.

    report: what `sampler.read` reads, in memory of the host once the event has completed; None: nothing is drawn
    ended:  behind everything of the step; None on the CPU, where nothing is waited for
    """

    draws: Sequence[Draw]
    report: Tensor | None
    ended: torch.cuda.Event | None

    def read(self) -> list[Drawn]:
        """One token per draw; waits for the device: the only place in a step that does."""
        if self.ended is not None:
            self.ended.synchronize()
        return read(self.report, self.draws) if self.report is not None else []


@dataclass(frozen=True, slots=True, eq=False)
class BlocksInUse:
    """Blocks that launched work still reads or writes, until the event behind it has completed."""

    blocks: Int64Array
    ended: torch.cuda.Event
