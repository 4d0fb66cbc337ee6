"""A language engine's budgets, from its settings and its model."""

from triptych.config import LanguageSettings
from triptych.engine.plan import Limits
from triptych.models.base import LanguageModel


def limits_of(model: LanguageModel, settings: LanguageSettings, row_bytes: int, max_item_rows: int) -> Limits:
    """row_bytes:     of one embedding row
    max_item_rows: of the largest item that may come, which landing memory must take; 0: a whole context of rows
    """
    longest = settings.longest(model.max_model_len)
    most_rows = min(max_item_rows or longest, longest)
    block_bytes = model.kv.block_bytes(settings.block_size)
    return Limits(
        block_size=settings.block_size,
        max_model_len=longest,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        mixed_chunk_tokens=min(settings.mixed_chunk_tokens, settings.prefill_chunk_tokens),
        max_sequences=settings.max_sequences,
        landing_bytes=max(settings.landing_bytes, most_rows * row_bytes),
        row_bytes=row_bytes,
        margin_tokens=settings.decode_margin_tokens,
        num_swap_slots=settings.swap_bytes // block_bytes,
        block_bytes=block_bytes,
    )
