"""Who gets room now: first come, first served, all or nothing, over two kinds of room at once."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """Room one request must get in one piece, or room that is free."""

    blocks: int  # KV blocks
    landing_bytes: int  # memory for embedding rows until they are fused


class Room:
    """Free room, given out in one pass over those that wait, in order of arrival.

    Nobody takes a kind of room that somebody before it waits for. There is one exception, without which two requests
    could wait for each other: what waits for blocks does not hold up those that need landing memory alone. They are
    prompts whose blocks were reserved before, and the blocks waited for come free only when those have run. Landing
    memory always comes free by itself (its holders have their blocks), so waiting for it may hold up anybody.
    """

    def __init__(self, free: Need, landing_open: bool = True) -> None:
        """landing_open: False when somebody before all of them waits for landing memory"""
        self._blocks, self._landing_bytes = free.blocks, free.landing_bytes
        self._landing_open = landing_open
        self.blocks_open = True  # nobody asked before waits for blocks

    def take(self, need: Need) -> bool:
        """Whether the next in order gets all it needs."""
        has_blocks = need.blocks == 0 or (self.blocks_open and need.blocks <= self._blocks)
        has_landing = need.landing_bytes == 0 or (self._landing_open and need.landing_bytes <= self._landing_bytes)
        if has_blocks and has_landing:
            self._blocks -= need.blocks
            self._landing_bytes -= need.landing_bytes
            return True
        self.blocks_open = self.blocks_open and need.blocks == 0
        self._landing_open = self._landing_open and not has_blocks
        return False


def admit(needs: Iterable[Need], free: Need) -> list[int]:
    """Indices of the waiting needs, in order of arrival, that get their room now."""
    room = Room(free)
    return [index for index, need in enumerate(needs) if room.take(need)]
