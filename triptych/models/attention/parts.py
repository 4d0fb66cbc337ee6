"""How a step told on the host falls apart: sequences with one new token, prompts that begin, prompts that go on."""

from dataclasses import dataclass

import numpy as np

from triptych.journey import Int64Array
from triptych.models.base import PagedInputs


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """Rows of the step's inputs, each in one part, and where each one's new tokens stand.

    single:   of one new token, whatever lies before it
    fresh:    of several, with nothing before them
    continued: of several, with KV before them
    """

    first: Int64Array  # [sequences]  token of the step
    length: Int64Array  # [sequences]  new tokens
    kv_length: Int64Array  # [sequences]
    single: Int64Array
    fresh: Int64Array
    continued: Int64Array


def split(inputs: PagedInputs) -> StepParts:
    """The parts of a step; looks at host numbers only."""
    length = np.array(inputs.query_lengths, np.int64)
    kv_length = np.array(inputs.kv_lengths, np.int64)
    several = length > 1
    begins = length == kv_length
    return StepParts(
        first=np.cumsum(length) - length,
        length=length,
        kv_length=kv_length,
        single=np.flatnonzero(~several),
        fresh=np.flatnonzero(several & begins),
        continued=np.flatnonzero(several & ~begins),
    )
