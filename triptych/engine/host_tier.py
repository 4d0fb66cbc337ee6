"""Rows that had to leave the arena, kept in host memory."""

from dataclasses import dataclass

from triptych.engine.store_entry import HostSlot, ItemKey

__all__ = ["Demotion", "HostSlot"]


@dataclass(frozen=True, slots=True)
class Demotion:
    """Rows that have been evicted from the arena and are still in its units, until the next batch writes there."""

    key: ItemKey
    span: range  # units of the arena
    rows: int
    checksum: bytes
