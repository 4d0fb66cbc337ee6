"""What each stage has to compute and to move at the least, and how long a card must take for it: arithmetic, no torch.

A floor is the larger of two times: floating point operations over the card's rate for matrix products, bytes over its
memory's rate. Both rates are what plain torch reaches on the card, not what its data sheet says. Bytes are what has to
be moved whatever the implementation: weights once, inputs and outputs of a stage once, KV once. What lies between the
products of a stage (norms, activations, residuals) may stay in caches or be fused away, so it is not counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.encoder_work import Workload, flops

WIDTH = 2  # bytes of a number: bfloat16


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by the two rates that limit it."""

    name: str
    flops_per_second: float
    bytes_per_second: float


# An 8192 x 8192 x 8192 product in bfloat16 of random numbers, and a copy in the card's memory, read and write counted.
H200 = Card("H200", 788e12, 4.3e12)


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the page; `key` names its measurement."""

    key: str
    what: str
    flops: float
    bytes: float
    limit_seconds: float = 0.0  # a floor that is no roofline: 0 where there is none

    def floor(self, card: Card) -> float:
        return max(self.limit_seconds, self.flops / card.flops_per_second, self.bytes / card.bytes_per_second)

    def bound(self, card: Card) -> str:
        """Which of the two rates the floor comes from."""
        if self.limit_seconds:
            return "the host"
        compute, memory = self.flops / card.flops_per_second, self.bytes / card.bytes_per_second
        return "products" if compute >= memory else "memory"


@dataclass(frozen=True, slots=True)
class Decoder:
    """A text model by its numbers."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Decoder":
        """Of a config.json's text_config."""
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return Decoder(
            *(int(config["num_hidden_layers"]), hidden, int(config["intermediate_size"]), heads),
            *(int(config["num_key_value_heads"]), int(config.get("head_dim") or hidden // heads)),
            int(config["vocab_size"]),
        )

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of all layers."""
        qkv = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_size
        out = self.heads * self.head_size * self.hidden
        return self.layers * (qkv + out + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocab

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return self.layers * 2 * self.kv_heads * self.head_size * WIDTH

    def attention_flops(self, begin: int, end: int) -> float:
        """Scores and their products with values, of tokens begin to end behind all before them, causal."""
        pairs = (end * (end + 1) - begin * (begin + 1)) / 2
        return 4.0 * pairs * self.heads * self.head_size * self.layers

    def prompt(self, tokens: int) -> tuple[float, float]:
        """Operations and bytes of a whole prompt in one step, with the logits of its last token."""
        operations = 2.0 * self.layer_weights * tokens + 2.0 * self.head_weights + self.attention_flops(0, tokens)
        moved = (self.layer_weights + self.head_weights + tokens * self.hidden) * WIDTH + tokens * self.kv_bytes
        return operations, moved

    def decode(self, batch: int, context: int) -> tuple[float, float]:
        """Operations and bytes of one token for each of `batch` sequences of so many tokens."""
        operations = 2.0 * (self.layer_weights + self.head_weights) * batch
        operations += 4.0 * batch * context * self.heads * self.head_size * self.layers
        logits = batch * self.vocab * 4
        moved = (self.layer_weights + self.head_weights) * WIDTH + batch * (context + 1) * self.kv_bytes + logits
        return operations, float(moved)


_IMAGE = Workload(1280, 720, 1)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Of the workloads in the goals' table: what one request has."""

    images: int = 4
    text_tokens: int = 90  # 64 words and what the chat template adds
    image: Workload = _IMAGE
    router_seconds: float = 0.025  # the goal

    @property
    def prompt_tokens(self) -> int:
        return self.images * (self.image.grid.patches // 4 + 2) + self.text_tokens


def stages(decoder: Decoder, vision: Mapping[str, Any], shapes: Shapes) -> Iterator[Stage]:
    """Every stage of a request with images, in the order of its journey; then steps of decoding."""
    image, rows = shapes.image, shapes.image.grid.patches // 4
    row_bytes = decoder.hidden * WIDTH
    tower_weights = _tower_weights(vision)
    patch_bytes = image.grid.patches * 1176 * WIDTH
    for count in (1, 8):
        moved = tower_weights * WIDTH + count * (patch_bytes + rows * row_bytes)
        size = f"{image.width}x{image.height}"
        many = "image" if count == 1 else "images"
        yield Stage(
            f"tower-{count}", f"vision tower, {count} {many} of {size}", count * flops(vision, image.grid), moved
        )
    yield Stage("rows", f"hand-over of one image's rows ({rows})", 0, 2 * rows * row_bytes)
    tokens = shapes.prompt_tokens
    yield Stage("prompt-w2", f"prompt of {tokens} tokens ({shapes.images} images), in chunks", *decoder.prompt(tokens))
    yield Stage("prompt-2048", "prompt of 2,048 tokens, one step", *decoder.prompt(2048))
    yield Stage("kv", "hand-over of 10,000 tokens' KV", 0, 2 * 10_000 * decoder.kv_bytes)
    for batch, context in DECODE_STEPS:
        what = f"decode step, {batch} sequence{'s' if batch > 1 else ''} of {context:,} tokens"
        yield Stage(decode_key(batch, context), what, *decoder.decode(batch, context))
    yield Stage("router", f"router, a request of {shapes.images} images", 0, 0, shapes.router_seconds)


DECODE_STEPS = ((1, 5000), (16, 5000), (64, 650), (64, 2048), (256, 650))


def decode_key(batch: int, context: int) -> str:
    return f"decode-{batch}x{context}"


def _tower_weights(vision: Mapping[str, Any]) -> int:
    """Numbers in the tower's matrices."""
    hidden, mlp, depth = (int(vision[name]) for name in ("hidden_size", "intermediate_size", "depth"))
    wide = 4 * hidden
    patches = 1176 * hidden
    return patches + depth * (4 * hidden**2 + 3 * hidden * mlp) + wide**2 + wide * int(vision["out_hidden_size"])
