"""What the routers of one server have in common: memory, made by whoever starts them and inherited by each."""

import os
from collections.abc import Callable, Mapping, Sequence

from triptych.router.acceptor import ABSENT, Loads
from triptych.router.edge.limit_books import LimitBooks
from triptych.router.media.common_names import CommonNames
from triptych.router.pulses import Pulses


class Commons:
    """Of each how many connections it has and when its loop last turned; what tenants have used, and images by name."""

    def __init__(self, count: int, names_bytes: int, descriptors: Mapping[str, int] | None = None) -> None:
        """count: of routers; descriptors: as they are called where they were made, borrowed; None: makes them"""
        self._count = count
        self._names_bytes = names_bytes
        self.are_ours = descriptors is None
        self.descriptors = dict(descriptors) if descriptors is not None else _made(count, names_bytes)
        self.loads = Loads(self.descriptors["loads"], count)
        self.pulses = Pulses(self.descriptors["pulses"], count)
        self._limits = self.limits(0)

    def limits(self, index: int) -> LimitBooks:
        """For the router of this place."""
        return LimitBooks(self._count, index, self.descriptors["limits"])

    def names(self, changed: Callable[[int], None]) -> CommonNames:
        return CommonNames(self._names_bytes, self.descriptors["names"], changed)

    @property
    def inherited(self) -> Sequence[int]:
        """The descriptors that a router needs."""
        return tuple(self.descriptors.values())

    def forget(self, index: int) -> None:
        """This place's router has died, or none has been there yet: nobody connects to it, nothing is in flight."""
        self.loads.tell(index, ABSENT)
        self.pulses.forget(index)
        self._limits.forget(index)

    def close(self) -> None:
        """Routers that are there keep what they have; closing again does nothing."""
        if self.are_ours:
            for descriptor in self.descriptors.values():
                os.close(descriptor)
        self.descriptors = {}


def _made(count: int, names_bytes: int) -> dict[str, int]:
    """Memory takes room only where something was written."""
    sizes = {
        "loads": Loads.num_bytes(count),
        "pulses": Pulses.num_bytes(count),
        "limits": LimitBooks.num_bytes(count),
        "names": CommonNames.num_bytes(names_bytes),
    }
    descriptors = {}
    for name, size in sizes.items():
        descriptors[name] = os.memfd_create(f"triptych-{name}", os.MFD_CLOEXEC)
        os.ftruncate(descriptors[name], size)
    return descriptors
