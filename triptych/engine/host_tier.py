"""Host memory for rows that had to leave the arena, and the copies there and back.

What goes where is decided under the engine's lock, copied on the encoder's thread without it. One stream carries all
copies and all writes to the arena, in the order in which they were decided on, and that order is the whole proof: a
batch's rows are saved before the batch overwrites them, and read back behind the save.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from triptych.engine.device_errors import DeviceLost, is_device_lost
from triptych.engine.host_books import Demotion, HostBooks
from triptych.engine.store_entry import HostSlot
from triptych.errors import ConfigError, Overloaded
from triptych.transfer.slab import Slab

__all__ = ["Demotion", "HostSlot", "HostTier"]

log = logging.getLogger(__name__)


class HostTier(HostBooks):
    """The books with their memory. `copy_out` and `copy_in` belong to the encoder's thread and need no lock."""

    def __init__(self, num_units: int, unit_bytes: int, memory: Tensor) -> None:
        """memory: [num_units * unit_bytes] uint8 in host memory; pinned, or copies to and from CUDA wait"""
        if memory.dtype != torch.uint8 or tuple(memory.shape) != (num_units * unit_bytes,):
            raise ConfigError(
                f"the host tier's memory is {tuple(memory.shape)} of {memory.dtype}, "
                f"expected {num_units * unit_bytes} bytes"
            )
        super().__init__(num_units, unit_bytes)
        self._memory = memory

    @classmethod
    def create(cls, num_bytes: int, unit_bytes: int, device: torch.device) -> "HostTier | None":
        """A tier of as many units as fit `num_bytes`; None for 0 bytes.

        Raises ConfigError for less than a unit, and for more than the host has.
        """
        if num_bytes == 0:
            return None
        units = num_bytes // unit_bytes
        if units == 0:
            raise ConfigError(f"encoder.host_cache_bytes is {num_bytes}, expected 0 or at least {unit_bytes}")
        # An ordinary tensor, also when made under inference mode: it is written outside of it too.
        try:
            with torch.inference_mode(False):
                memory = torch.empty(units * unit_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        except (RuntimeError, TypeError) as error:  # TypeError: more than 64 bits can count
            raise ConfigError(f"encoder.host_cache_bytes is {num_bytes}, more than this host has: {error}") from error
        return cls(units, unit_bytes, memory)

    def copy_out(self, slab: Slab, demotions: Sequence[Demotion]) -> None:
        """Save the rows, before anything else is written to the slab; on CUDA queued, without waiting.

        A copy that fails leaves its slot dead. Raises DeviceLost when the CUDA context is broken.
        """
        for demotion in demotions:
            try:
                self._home(demotion.slot).copy_(self._piece(slab, demotion.span), non_blocking=True)
            except Exception as error:
                demotion.slot.dead = True
                if is_device_lost(error):
                    raise DeviceLost(str(error)) from error
                log.warning("rows of %d units could not be saved to the host: %s", demotion.slot.units, error)

    def copy_in(self, slab: Slab, span: range, slot: HostSlot) -> None:
        """Write the slot's rows to stamped units; on CUDA queued, without waiting.

        Raises Overloaded when the rows never reached the host: asked again, the item is encoded.
        """
        if slot.dead:
            raise Overloaded("the image's rows were lost on their way to the host; asked again, it will be encoded")
        try:
            self._piece(slab, span).copy_(self._home(slot), non_blocking=True)
        except Exception:
            self.failures += 1  # counted on the same thread as by `settle`
            raise

    def _home(self, slot: HostSlot) -> Tensor:
        return self._memory[slot.start * self.unit_bytes : slot.span.stop * self.unit_bytes]

    def _piece(self, slab: Slab, span: range) -> Tensor:
        return slab.data[span.start * self.unit_bytes : span.stop * self.unit_bytes]
