"""Work that was recorded once, and what is left of it each time that it is done again."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from triptych.engine.capture import Work, pointers
from triptych.engine.device_errors import is_device_lost
from triptych.errors import ConfigError

log = logging.getLogger(__name__)

Made = TypeVar("Made")

# Of the largest logit: the kernels are the same, so that 16 bits leave next to nothing.
_LARGEST_DIFFERENCE = 0.05


@dataclass(slots=True, eq=False)
class Replayed:
    """What a replay leaves on the device, until the next one: of every row that it has room for.

    logits: [rows, vocab] float32
    report: [rows, 2] float64, of the largest logits, as `sampler.read` takes it
    """

    logits: Tensor
    report: Tensor


@dataclass(slots=True, eq=False)
class Recorded:
    """The work of one shape. made: its outputs; used: what it reads and writes, and must find where it was."""

    work: Work
    made: list[Replayed]
    used: Mapping[str, Tensor]
    addresses: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.addresses = pointers(self.used)

    def check(self) -> None:
        """Raises RuntimeError when a tensor that the work uses has moved."""
        for name, tensor in self.used.items():
            if tensor.data_ptr() != self.addresses[name]:
                raise RuntimeError(f"the {name} were reallocated after steps had been recorded: replays read the old")

    def replay(self) -> Replayed:
        """Launches the work; does not wait for the device."""
        self.work()
        return self.made[-1]


def attempt(make: Callable[[], Made], graphs: str, what: str) -> Made | None:
    """What was recorded; where that fails None, with a warning.

    graphs: the setting; what: is recorded, for messages. Raises ConfigError instead when the setting is "on".
    """
    try:
        return make()
    except Exception as error:
        if is_device_lost(error):
            raise
        if graphs == "on":
            raise ConfigError(f"language.graphs is on, but {what} cannot be recorded: {error}") from error
        log.warning("%s cannot be recorded and run eagerly: %s", what, error)
        return None


def check_difference(apart: float) -> None:
    """Raises ConfigError where replayed logits are too far from eager ones, relative to the largest number."""
    if apart > _LARGEST_DIFFERENCE:
        raise ConfigError(f"replayed logits are {apart:.2g} of the largest number apart from eager ones")
