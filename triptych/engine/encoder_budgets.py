"""The encoder's four budgets, each in its own unit, resolved once: with the tower loaded and no memory made.

    A  items           how many items one batch holds; an item is never split
    B  tokens          encoder tokens (patches before merging) of one batch
    C  output bytes    rows being made or read at once
    D  reuse bytes     rows kept because they may be asked for again

C and D are one arena of max(C, D) bytes, not two pools. What happens above each: A and B leave an item for a later
batch; C makes a prompt come in windows; D evicts. Only an item larger than the whole arena is refused. Of
TensorRT-LLM's `MultimodalItemScheduler.create`, which also names the attention capacities.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triptych.config import EncoderSettings
from triptych.errors import ConfigError
from triptych.journey import Modality

log = logging.getLogger(__name__)

# A tower that does not say what its layers attend inside of may put at least this many tokens into one sequence.
_LEAST_ATTENTION_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class ItemCost:
    """What one item takes: encoder tokens on its way in, embedding rows on its way out."""

    encoder_tokens: int
    rows: int

    @property
    def tokens_per_row(self) -> int:
        return self.encoder_tokens // self.rows


@dataclass(frozen=True, slots=True)
class EncoderBudgets:
    """All that bounds one encoder, as resolved at start. Nothing changes it afterwards."""

    items: int  # A
    configured_tokens: int  # B as set, which bounds a batch of several items
    tokens: int  # B in effect: raised to the largest item, which then goes alone
    output_bytes: int  # C
    output_derived: bool  # C was not set
    reuse_bytes: int  # D
    row_bytes: int
    largest: Mapping[Modality, ItemCost]  # the largest item of each modality that the tower takes
    attention: Mapping[str, int]  # by kind of context: tokens that one batch may put into contexts of this kind

    @property
    def arena_bytes(self) -> int:
        """Bytes of the one pool: reuse below the output budget does not shrink it."""
        return max(self.output_bytes, self.reuse_bytes)

    @property
    def arena_setting(self) -> str:
        """Which setting makes the pool as large as it is."""
        if self.output_bytes <= self.reuse_bytes:
            return "encoder.arena_bytes"
        return "encoder.max_encoder_tokens_per_batch" if self.output_derived else "encoder.output_bytes"

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset(self.largest)

    @property
    def max_item_tokens(self) -> int:
        """Encoder tokens of the largest item taken here: what the model takes and the arena can hold."""
        return max(min(cost.encoder_tokens, self._arena_rows * cost.tokens_per_row) for cost in self.largest.values())

    @property
    def pins_leave_bytes(self) -> int:
        """What pins must leave in one piece: room for a batch, and for the largest item taken here."""
        most_rows = max(min(cost.rows, self._arena_rows) for cost in self.largest.values())
        return max(self.output_bytes, most_rows * self.row_bytes)

    @property
    def _arena_rows(self) -> int:
        return self.arena_bytes // self.row_bytes

    def units(self, unit_bytes: int) -> int:
        """Units that hold the arena."""
        return -(-self.arena_bytes // unit_bytes)

    def gauges(self) -> dict[str, float]:
        """By their names in metrics.WORKER_GAUGES."""
        return {
            "encoder_budget_items": self.items,
            "encoder_budget_tokens": self.tokens,
            "encoder_budget_output_bytes": self.output_bytes,
            "encoder_budget_reuse_bytes": self.reuse_bytes,
        }

    def line(self) -> str:
        """The whole diagnosis in one line for the log."""
        atomic = ", ".join(f"{modality.value}={cost.encoder_tokens}" for modality, cost in self.largest.items())
        attention = ", ".join(f"{kind}={tokens}" for kind, tokens in self.attention.items())
        return (
            f"encoder budgets: A {self.items} items; B tokens configured={self.configured_tokens}, "
            f"effective={self.tokens}, model_atomic_max=({atomic}), attention_capacity=({attention}); "
            f"C {self.output_bytes} output bytes ({'derived' if self.output_derived else 'as set'}); "
            f"D {self.reuse_bytes} reuse bytes; arena {self.arena_bytes} bytes at {self.row_bytes} a row"
        )


def row_bytes(width: int | None, levels: int, itemsize: int) -> int:
    """Bytes of one embedding row, all levels together. Raises ConfigError unless the tower names a usable width."""
    if width is None or min(width, levels, itemsize) <= 0:
        raise ConfigError(
            f"the vision tower makes rows of {levels} levels of {width} numbers of {itemsize} bytes, "
            "expected each to be 1 or more"
        )
    return levels * width * itemsize


def resolve_budgets(
    settings: EncoderSettings, largest: Mapping[Modality, ItemCost], row_bytes: int, context_kinds: Sequence[str]
) -> EncoderBudgets:
    """The budgets of an encoder whose model takes items of up to `largest`, by modality.

    row_bytes: of one embedding row, all levels together
    context_kinds: what the tower's layers attend inside of; empty if it does not say

    B is raised to the largest item, with a warning, as else that item would wait for ever. C that is not set is what
    one batch can make at most, or the largest item.
    Raises ConfigError for sizes that cannot work.
    """
    _check(largest, row_bytes, context_kinds)
    configured = settings.max_encoder_tokens_per_batch
    tokens = max(configured, *(cost.encoder_tokens for cost in largest.values()))
    if tokens > configured:
        log.info(
            "encoder.max_encoder_tokens_per_batch is %d, the model's largest item has %d: such items go alone",
            *(configured, tokens),
        )
    most_rows = max(max(cost.rows, tokens // cost.tokens_per_row) for cost in largest.values())
    _check_arena(settings, row_bytes)
    return EncoderBudgets(
        items=settings.max_items_per_batch,
        configured_tokens=configured,
        tokens=tokens,
        output_bytes=settings.output_bytes or most_rows * row_bytes,
        output_derived=settings.output_bytes == 0,
        reuse_bytes=settings.arena_bytes,
        row_bytes=row_bytes,
        largest=dict(largest),
        attention=_attention_capacity(tokens, context_kinds),
    )


def _attention_capacity(tokens: int, context_kinds: Sequence[str]) -> dict[str, int]:
    """Tokens by kind of context. Every layer sees all tokens of a batch, whatever its contexts are."""
    if not context_kinds:
        return {"attention": max(tokens, _LEAST_ATTENTION_TOKENS)}
    return dict.fromkeys(context_kinds, tokens)


def _check_arena(settings: EncoderSettings, row_bytes: int) -> None:
    # No item would fit, and an encoder that takes none would look like one that does not tell its limit.
    if settings.output_bytes and max(settings.output_bytes, settings.arena_bytes) < row_bytes:
        raise ConfigError(
            f"encoder.output_bytes is {settings.output_bytes} and encoder.arena_bytes {settings.arena_bytes}, "
            f"expected one of them to be at least {row_bytes}, an embedding row"
        )


def _check(largest: Mapping[Modality, ItemCost], row_bytes: int, context_kinds: Sequence[str]) -> None:
    if not largest:
        raise ConfigError("the model names no largest item of any modality, expected one at least")
    for modality, cost in largest.items():
        if not 0 < cost.rows <= cost.encoder_tokens:
            raise ConfigError(
                f"the model's largest {modality.value} has {cost.encoder_tokens} encoder tokens and {cost.rows} rows, "
                "expected 1 row or more and at least as many tokens"
            )
    if row_bytes <= 0:
        raise ConfigError(f"an embedding row has {row_bytes} bytes, expected 1 or more")
    if len(set(context_kinds)) != len(context_kinds) or "" in context_kinds:
        raise ConfigError(f"the vision tower names contexts {tuple(context_kinds)}, expected each once and none empty")
