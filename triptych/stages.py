"""The stages of a request's journey, and the moves it may make."""

import enum
from collections.abc import Mapping

from triptych.errors import InvalidRecord


class Stage(enum.StrEnum):
    """Where a request is. FINISHED, FAILED and CANCELLED are ends."""

    RECEIVED = "received"
    FETCHING = "fetching"
    LAID_OUT = "laid_out"
    RESERVING = "reserving"
    ENCODING = "encoding"
    PREFILLING = "prefilling"
    HANDING_OVER = "handing_over"
    DECODING = "decoding"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = (Stage.FAILED, Stage.CANCELLED)

# A move that is not in this table is a bug. Encoding and prefilling overlap: the request is PREFILLING once its
# last item is encoded. Going back is a retry or a continuation on another worker.
MOVES: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.RECEIVED: (Stage.FETCHING, Stage.LAID_OUT, *_ENDS),
    Stage.FETCHING: (Stage.LAID_OUT, *_ENDS),
    Stage.LAID_OUT: (Stage.RESERVING, *_ENDS),
    Stage.RESERVING: (Stage.ENCODING, Stage.PREFILLING, *_ENDS),
    Stage.ENCODING: (Stage.PREFILLING, Stage.RESERVING, *_ENDS),
    Stage.PREFILLING: (Stage.HANDING_OVER, Stage.RESERVING, Stage.FINISHED, *_ENDS),
    # Finished from here: the last token was out before a prefill worker that is lost had ended its call.
    Stage.HANDING_OVER: (Stage.DECODING, Stage.RESERVING, Stage.FINISHED, *_ENDS),
    Stage.DECODING: (Stage.FINISHED, Stage.RESERVING, *_ENDS),
    Stage.FINISHED: (),
    Stage.FAILED: (),
    Stage.CANCELLED: (),
}


def check_move(before: Stage, after: Stage) -> None:
    """Raises InvalidRecord for a move the table does not list."""
    if after not in MOVES[before]:
        raise InvalidRecord(f"a request cannot go from {before} to {after}")
