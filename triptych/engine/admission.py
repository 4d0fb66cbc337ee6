"""Who gets room now: first come, first served, all or nothing, over two kinds of room at once."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """Room one request must get in one piece, or room that is free."""

    blocks: int  # KV blocks
    landing_bytes: int  # memory for embedding rows until they are fused


def admit(needs: Iterable[Need], free: Need) -> list[int]:
    """Indices of the waiting needs, in order of arrival, that get their room now.

    Nobody takes a kind of room that somebody before it waits for. There is one exception, without which two requests
    could wait for each other: what waits for blocks does not hold up those that need landing memory alone. They are
    prompts whose blocks were reserved before, and the blocks waited for come free only when those have run. Landing
    memory always comes free by itself (its holders have their blocks), so waiting for it may hold up anybody.
    """
    blocks, landing_bytes = free.blocks, free.landing_bytes
    blocks_open = landing_open = True
    admitted: list[int] = []
    for index, need in enumerate(needs):
        has_blocks = need.blocks == 0 or (blocks_open and need.blocks <= blocks)
        has_landing = need.landing_bytes == 0 or (landing_open and need.landing_bytes <= landing_bytes)
        if has_blocks and has_landing:
            blocks -= need.blocks
            landing_bytes -= need.landing_bytes
            admitted.append(index)
        else:
            blocks_open = blocks_open and need.blocks == 0
            landing_open = landing_open and not has_blocks
    return admitted
