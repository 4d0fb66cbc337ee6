"""The stages of a request's journey, the moves it may make, and the stages whose seconds are told."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

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


class Tier(enum.StrEnum):
    """Whose process a stage's seconds pass in."""

    ROUTER = "router"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class TimedStage:
    """A stage whose seconds are told: in timelines, logs, metrics and traces, under this one name."""

    name: str
    tier: Tier
    help: str


class StageSpan(NamedTuple):
    """When a stage went on, on a clock that whoever has it knows; a worker's is its own `time.monotonic`."""

    stage: str
    begin: float
    end: float
    item: int = -1  # index of the item it was for; -1: for the whole request


# In the order of a request. Where stages go on side by side their seconds add up to more than the request took;
# router/observe/critical_path.py says which of them it waited for.
TIMED_STAGES = (
    TimedStage("receive", Tier.ROUTER, "The body arrives"),
    TimedStage("turn", Tier.ROUTER, "Others are being prepared"),
    TimedStage("parse", Tier.ROUTER, "JSON is read and checked"),
    TimedStage("grammar", Tier.ROUTER, "The grammar of the answer is checked"),
    TimedStage("tokenize", Tier.ROUTER, "The chat template and the tokenizer"),
    TimedStage("fetch", Tier.ROUTER, "Images are fetched, or read from data URIs"),
    TimedStage("hash", Tier.ROUTER, "Digests of the images' bytes"),
    TimedStage("sniff", Tier.ROUTER, "Headers of the images' files"),
    TimedStage("layout", Tier.ROUTER, "The prompt with its items laid in"),
    TimedStage("place", Tier.ROUTER, "Workers are chosen, or waited for"),
    TimedStage("reserve", Tier.DECODE, "KV blocks are waited for at the decode worker"),
    TimedStage("prefill_queue", Tier.PREFILL, "Room is waited for at the prefill worker"),
    TimedStage("encode_queue", Tier.ENCODE, "A preprocessing thread, and then a batch, is waited for"),
    TimedStage("preprocess", Tier.ENCODE, "Images are decoded, resized and normalised"),
    TimedStage("encode", Tier.ENCODE, "The vision tower"),
    TimedStage("rows_transfer", Tier.PREFILL, "Embedding rows are read from the encoder"),
    TimedStage("prefill_wait", Tier.PREFILL, "The prompt has room, and none of its steps runs"),
    TimedStage("prefill", Tier.PREFILL, "Steps that compute the prompt"),
    TimedStage("respond", Tier.ROUTER, "From the first token to the client's socket"),
    TimedStage("handover", Tier.DECODE, "From the first token until the decode worker has all the KV"),
    TimedStage("first_decode", Tier.DECODE, "From then to the second token"),
    TimedStage("decode", Tier.DECODE, "From then to the last token"),
    TimedStage("wire", Tier.ROUTER, "Between router and workers: messages, sockets, event loops"),
    TimedStage("router", Tier.ROUTER, "Between the other stages, in the router"),
)
