"""Python's search for cycles, told what our processes are like: much that stays, and little that forms cycles.

Left alone it looks at all that libraries have loaded every few thousand requests: on one worker with torch in it 0.4 s,
in which nothing else of the process moved.
"""

import gc

# Objects that a few requests under way have at once; the search for young cycles then finds those of the last moments.
_YOUNG = 10_000


def settle() -> None:
    """Once all is loaded: what is there by now stays, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
