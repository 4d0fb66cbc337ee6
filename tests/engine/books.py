"""A scheduler's books for tests: small limits, and requests by number."""

from collections.abc import Sequence

from triptych.engine.plan import Limits
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, PrefillSequence, Reservation
from triptych.journey import Layout, RequestId, Sampling
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.rows import RowMap

ROW_BYTES = 8


def scheduler(num_blocks: int = 64, **limits: int) -> Scheduler:
    settings = {
        "block_size": 4,
        "max_model_len": 256,
        "prefill_chunk_tokens": 16,
        "max_sequences": 4,
        "landing_bytes": 64 * ROW_BYTES,
        "row_bytes": ROW_BYTES,
    }
    return Scheduler(Limits(**settings | limits), num_blocks)


def request_id(number: int) -> RequestId:
    return RequestId(number.to_bytes(16, "big"))


def prompt(
    number: int, parts: Sequence[TextPart | ItemPart], generated: tuple[int, ...] = (), keep_kv: bool = True
) -> PrefillSequence:
    layout = lay_out(parts)
    return PrefillSequence(request_id(number), layout, RowMap(layout), generated, keep_kv)


def reservation(number: int, prompt_tokens: int, max_tokens: int = 4, branches: int = 1) -> Reservation:
    return Reservation(request_id(number), 0, prompt_tokens, max_tokens, branches, block_size=4)


def branches(held: Reservation, layout: Layout, chosen: Sequence[int]) -> list[DecodeSequence]:
    sampling = Sampling(max_tokens=held.max_tokens)
    return [DecodeSequence(held.request_id, 0, branch, branch, layout, sampling, [1]) for branch in chosen]
