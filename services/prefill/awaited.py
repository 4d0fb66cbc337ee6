"""Which embedding rows a prompt awaits: those of its granted windows, each once."""

from triptych.engine.jobs import Window
from triptych.errors import LayoutMismatch
from triptych.journey import EmbeddingRef, Item, Layout


class AwaitedRows:
    """Of one prompt. Not thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self.cached_tokens = 0  # of the prompt, whose KV was there already; told with the first window
        self._items = layout.items
        self._granted: set[int] = set()
        self._taken: set[int] = set()

    def grant(self, window: Window) -> None:
        """Rows of the window's items may come from now on."""
        self.cached_tokens = window.cached_tokens
        self._granted.update(window.items)

    def take(self, item_index: int, ref: EmbeddingRef) -> bool:
        """Whether these rows are to be read; False for an item that has come before, or whose KV is cached.

        Raises LayoutMismatch for a ref that is not what the layout expects at that place, or that nobody asked for yet.
        """
        if not 0 <= item_index < len(self._items):
            raise LayoutMismatch(f"rows came for item {item_index}, the prompt has {len(self._items)} items")
        item = self._items[item_index]
        _check(item, ref)
        if item_index not in self._granted:
            if self._is_cached(item):
                return False
            raise LayoutMismatch(
                f"rows of item {item_index} came, which no window has granted yet", item_index=item_index
            )
        fresh = item_index not in self._taken
        self._taken.add(item_index)
        return fresh

    def _is_cached(self, item: Item) -> bool:
        return item.runs[-1].end <= self.cached_tokens


def _check(item: Item, ref: EmbeddingRef) -> None:
    if ref.item_digest != item.digest or ref.rows != item.rows:
        raise LayoutMismatch(
            f"item {item.index}: the prompt expects {item.rows} rows of {item.digest.hex()[:8]}, "
            f"the encoder offers {ref.rows} rows of {ref.item_digest.hex()[:8]}",
            item_index=item.index,
        )
