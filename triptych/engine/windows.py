"""A prompt's items in windows: those whose embedding rows lie in landing memory together.

A prompt with more rows than fit is computed all the same: the rows of one window land and are fused, which makes room
for the next. A window is granted whole or not at all, and its holder needs no other to fuse what it has, so it always
gives its room back.
"""

from collections.abc import Sequence

from triptych.journey import Item, Run

Group = tuple[Item, ...]


def group_items(items: Sequence[Item], atomic: Sequence[Run]) -> tuple[Group, ...]:
    """Items in prompt order, those together whose rows one chunk must take: they share an atomic span."""
    groups: list[list[Item]] = []
    for item in items:
        if groups and any(_joins(run, groups[-1][-1], item) for run in atomic):
            groups[-1].append(item)
        else:
            groups.append([item])
    return tuple(map(tuple, groups))


def pack_windows(groups: Sequence[Group], row_bytes: int, landing_bytes: int) -> tuple[Group, ...]:
    """These groups in as few windows as go, none over half the landing memory or the largest group.

    Half of it, so that the next window can be pulled in while this one is computed.
    """
    sizes = [num_rows(group) * row_bytes for group in groups]
    limit = max([*sizes, landing_bytes // 2])
    windows: list[list[Item]] = []
    room = 0
    for group, size in zip(groups, sizes, strict=True):
        if size > room or not windows:
            windows.append([])
            room = limit
        windows[-1].extend(group)
        room -= size
    return tuple(map(tuple, windows))


def num_rows(items: Sequence[Item]) -> int:
    return sum(item.rows for item in items)


def _joins(run: Run, first: Item, second: Item) -> bool:
    return run.start < first.runs[-1].end and second.runs[0].start < run.end
