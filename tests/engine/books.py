"""A scheduler's books for tests: small limits, and requests by number."""

from collections.abc import Sequence

from triptych.engine.block_keys import BlockKeys, root_key
from triptych.engine.plan import Announcement, Chunk, Limits
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, PrefillSequence, Reservation
from triptych.journey import Layout, RequestId
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.rows import RowMap
from triptych.sampling import Sampling

ROW_BYTES = 8
BLOCK_SIZE = 4


def scheduler(num_blocks: int = 64, **limits: int) -> Scheduler:
    settings = {
        "block_size": BLOCK_SIZE,
        "max_model_len": 256,
        "prefill_chunk_tokens": 16,
        "max_sequences": 4,
        "landing_bytes": 64 * ROW_BYTES,
        "row_bytes": ROW_BYTES,
        "margin_tokens": 1000,  # all that may follow
    }
    return Scheduler(Limits(**settings | limits), num_blocks)


def request_id(number: int) -> RequestId:
    return RequestId(number.to_bytes(16, "big"))


def prompt(
    number: int, parts: Sequence[TextPart | ItemPart], generated: tuple[int, ...] = (), keep_kv: bool = True
) -> PrefillSequence:
    """One that takes no part in the prefix cache."""
    layout = lay_out(parts)
    return PrefillSequence(request_id(number), layout, RowMap(layout), generated, keep_kv)


def cached(
    number: int,
    parts: Sequence[TextPart | ItemPart],
    generated: tuple[int, ...] = (),
    keep_kv: bool = True,
    salt: bytes = b"",
) -> PrefillSequence:
    """One that shares KV with prompts that begin as it does."""
    sequence = prompt(number, parts, generated, keep_kv)
    sequence.keys = BlockKeys(sequence.layout, generated, BLOCK_SIZE, root_key(b"model", salt))
    return sequence


def reservation(number: int, prompt_tokens: int, max_tokens: int = 4, branches: int = 1) -> Reservation:
    return Reservation(request_id(number), 0, prompt_tokens, max_tokens, branches, block_size=BLOCK_SIZE)


def branches(held: Reservation, layout: Layout, chosen: Sequence[int]) -> list[DecodeSequence]:
    sampling = Sampling(max_tokens=held.max_tokens)
    return [DecodeSequence(held.request_id, 0, branch, branch, layout, sampling, [1]) for branch in chosen]


def admit(books: Scheduler, *sequences: PrefillSequence) -> list[PrefillSequence]:
    for sequence in sequences:
        books.add_prefill(sequence)
    return list(books.admit().prefills)


def compute(books: Scheduler, sequence: PrefillSequence, until: int | None = None) -> list[Announcement]:
    """Chunks of it alone until so many of its tokens are computed; what was announced."""
    for item in sequence.layout.items:
        sequence.mark_ready(item.index)
    told = []
    while sequence.num_computed < (sequence.num_tokens if until is None else until):
        room = books.limits.prefill_chunk_tokens
        announcement = books.advance(Chunk(sequence, sequence.num_computed, sequence.chunk_end(room, room)))
        told += [announcement] if announcement else []
        books.check()
    return told


def finish(books: Scheduler, sequence: PrefillSequence) -> None:
    for announcement in compute(books, sequence):
        books.take_back([block.id for block in announcement.blocks])
    books.drop_prefill(sequence.request_id)
    books.check()


def warm(books: Scheduler, number: int, parts: Sequence[TextPart | ItemPart]) -> PrefillSequence:
    """A prompt computed and gone."""
    sequence = cached(number, parts)
    assert admit(books, sequence) == [sequence]
    finish(books, sequence)
    return sequence
