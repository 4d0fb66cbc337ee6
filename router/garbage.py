"""Python's search for cycles, told what a router's process is like: much that stays, and little that forms cycles."""

import gc

# Objects that a few requests under way have at once; the search for young cycles then finds those of the last moments.
_YOUNG = 10_000


def settle() -> None:
    """Once all is loaded: what is there by now stays, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
