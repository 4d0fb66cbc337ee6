"""Landing memory as numbers: which prompt has how much of it, and which window gets room next."""

from collections.abc import Collection, Sequence

from triptych.engine.jobs import Window
from triptych.engine.sequence import PrefillSequence
from triptych.engine.windows import Group, num_rows, pack_windows
from triptych.errors import InvariantViolation, MediaTooLarge
from triptych.journey import RequestId


class LandingBooks:
    """Bytes reserved for rows of admitted prompts, window by window, until they are fused."""

    def __init__(self, row_bytes: int, landing_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._landing_bytes = landing_bytes
        self._bytes: dict[RequestId, int] = {}
        self._prompts: dict[RequestId, PrefillSequence] = {}  # in order of admission

    @property
    def num_bytes(self) -> int:
        """Reserved and not fused."""
        return sum(self._bytes.values())

    @property
    def num_free_bytes(self) -> int:
        return self._landing_bytes - self.num_bytes

    @property
    def num_waiting(self) -> int:
        """Windows of admitted prompts that have no room yet."""
        return sum(len(prompt.windows) - prompt.num_granted_windows for prompt in self._prompts.values())

    def require(self, groups: Sequence[Group]) -> None:
        """Raises MediaTooLarge for items that no empty landing memory could take together."""
        for group in groups:
            if self.size(group) > self._landing_bytes:
                raise MediaTooLarge(
                    f"an item of {num_rows(group)} rows needs {self.size(group)} bytes of landing memory, "
                    f"there are {self._landing_bytes}",
                    item_index=group[0].index,
                )

    def pack(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The windows in which these items get room."""
        return pack_windows(groups, self._row_bytes, self._landing_bytes)

    def size(self, window: Group) -> int:
        """Bytes."""
        return num_rows(window) * self._row_bytes

    def begin(self, prompt: PrefillSequence) -> Window:
        """Room for an admitted prompt's first window, which must be free."""
        self._prompts[prompt.request_id] = prompt
        self._bytes[prompt.request_id] = self.size(prompt.windows[0]) if prompt.windows else 0
        return _window(prompt, 0)

    def grant(self) -> list[tuple[PrefillSequence, Window]]:
        """Room for what comes next in admitted prompts, in order of admission, until one must wait."""
        granted: list[tuple[PrefillSequence, Window]] = []
        for prompt in self._prompts.values():
            while prompt.num_granted_windows < len(prompt.windows):
                size = self.size(prompt.windows[prompt.num_granted_windows])
                if size > self.num_free_bytes:
                    return granted
                self._bytes[prompt.request_id] += size
                granted.append((prompt, _window(prompt, prompt.num_granted_windows)))
                prompt.num_granted_windows += 1
        return granted

    def release(self, request_id: RequestId, num_bytes: int) -> None:
        self._bytes[request_id] -= num_bytes

    def drop(self, request_id: RequestId) -> None:
        """Idempotent."""
        self._prompts.pop(request_id, None)
        self._bytes.pop(request_id, None)

    def check(self, request_ids: Collection[RequestId]) -> None:
        """Raises InvariantViolation unless these prompts, and no others, hold no more than there is."""
        if set(self._bytes) != set(request_ids):
            raise InvariantViolation(
                f"{len(self._bytes)} prompts hold landing memory, {len(request_ids)} are being computed"
            )
        if self.num_free_bytes < 0 or min(self._bytes.values(), default=0) < 0:
            raise InvariantViolation(f"{self.num_bytes} of {self._landing_bytes} landing bytes are reserved")


def _window(prompt: PrefillSequence, place: int) -> Window:
    items = prompt.windows[place] if prompt.windows else ()
    return Window(
        items=tuple(item.index for item in items),
        cached_tokens=prompt.num_cached,
        last=place + 1 >= len(prompt.windows),
    )
