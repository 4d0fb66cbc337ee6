"""What the encoder is asked, who prepares items for it, and what is answered."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Protocol

from triptych.errors import InvalidRecord, TriptychError
from triptych.journey import EmbeddingRef, Item, RequestId
from triptych.models.base import Prepared
from triptych.stages import StageSpan

MediaBytes = bytes | bytearray | memoryview | mmap


@dataclass(frozen=True, slots=True, eq=False)
class EncodeJob:
    """One request's wish for one item.

    read_media gives the compressed source; it is called once at most, on a preprocessing thread, and not at all when
    the rows are there or another request's encode is joined.
    """

    request_id: RequestId  # or any key that tells one attempt of a request from another: cancel() names it
    item: Item
    read_media: Callable[[], MediaBytes]
    lease_seconds: float
    deadline: float  # on time.monotonic
    checksum: bool = False  # wanted of the rows, if they have to be made

    def __post_init__(self) -> None:
        if not 0 < self.lease_seconds < math.inf:
            raise InvalidRecord(f"a lease of {self.lease_seconds} s was asked for, expected a finite one above 0")


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The one answer to a job: a ref with a claim of its own, or an error that names the job's item.

    times: when this job was in `encode_queue`, `preprocess` and `encode`. On CUDA encode ends when the work has been
           queued on the device, which is when the ref may travel; the reader waits for the rest by its event.
    """

    item_index: int
    ref: EmbeddingRef | None
    error: TriptychError | None
    times: Sequence[StageSpan]
    cached: bool  # the rows were there already, or another request's encode was joined


def for_item(error: TriptychError, item: Item) -> TriptychError:
    """The error as this request must be told it: with the index the item has there."""
    own = copy.copy(error)
    own.item_index = item.index
    return own


def failure(item: Item, error: TriptychError, times: Sequence[StageSpan], cached: bool) -> EncodeResult:
    return EncodeResult(item.index, None, for_item(error, item), times, cached)


OnDone = Callable[[EncodeResult], None]


class ItemPreparer(Protocol):
    """The model's image processor behind the decoder. Called from several threads at once."""

    max_item_tokens: int  # encoder tokens of the largest item the model takes
    max_item_rows: int  # and its embedding rows
    token_bytes: int  # of a prepared item, per encoder token

    def __call__(self, data: MediaBytes, item: Item) -> Prepared:
        """Patches or pixels of the compressed source.

        Raises InvalidMedia where it cannot be decoded or is not as `item` says.
        """
