"""KV blocks of one block size and range of heads into blocks of another, as equal pieces of bytes on their way.

In both a block is [layers, 2, block_size, heads, head_size]. What lies together on both sides moves together: runs of
tokens where both keep the same heads, a token's heads otherwise. Runs are cut to one length, that of the largest piece
which all begins and lengths are multiples of, so that a copy is one gather and one scatter. Pure: nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.kv_format import KVFormat, repack_refusal


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Bytes [sources[i] * num_bytes, + num_bytes) of the source go to targets[i] * num_bytes."""

    num_bytes: int
    sources: Int64Array
    targets: Int64Array


@dataclass(frozen=True, slots=True)
class Tokens:
    """Which tokens of a claim are wanted, and in which blocks they lie on both sides.

    begin, end: of the claim, in the prompt; the first block of `sources` begins with token `begin`
    keep:       what lies before this token is not written
    targets:    blocks of the whole prompt from its first token on, or as many of them as there are
    """

    begin: int
    end: int
    keep: int
    sources: Sequence[int]
    targets: Sequence[int]


def equal_pieces(sources: Int64Array, targets: Int64Array, run_bytes: int, piece_bytes: int) -> Pieces:
    """Runs of `run_bytes` that begin at these bytes. A piece's size divides all of these numbers."""
    inside = np.arange(run_bytes // piece_bytes, dtype=np.int64)
    spread = [(begins[:, None] // piece_bytes + inside[None, :]).reshape(-1) for begins in (sources, targets)]
    return Pieces(piece_bytes, *spread)


def repacked(theirs: KVFormat, mine: KVFormat, tokens: Tokens, heads: range) -> Pieces:
    """The wanted tokens of these heads of the model, which both keep.

    Where both keep the same heads, the last token's run may reach over the end, into the same block on both sides.
    Raises TransferFailed when the formats or the tokens do not fit.
    """
    refusal = repack_refusal(theirs, mine) or _misfit(theirs, mine, tokens)
    if refusal:
        raise TransferFailed(refusal)
    whole = theirs.heads == mine.heads == len(heads)
    step = gcd(theirs.block_size, mine.block_size) if whole else 1
    places = np.arange(max(tokens.begin, tokens.keep), tokens.end, step, dtype=np.int64)
    sources = _begins(theirs, heads, places, np.asarray(tokens.sources)[(places - tokens.begin) // theirs.block_size])
    targets = _begins(mine, heads, places, np.asarray(tokens.targets)[places // mine.block_size])
    order = _by_block((places - tokens.begin) // theirs.block_size, theirs.planes)
    begins = np.empty((2, order.size), dtype=np.int64)
    begins[:, order.reshape(-1)] = sources.reshape(-1), targets.reshape(-1)
    run_bytes = step * len(heads) * mine.head_bytes
    places_of_heads = (theirs.heads, mine.heads, heads.start - theirs.first_head, heads.start - mine.first_head)
    piece_bytes = run_bytes if whole else gcd(len(heads), *places_of_heads) * mine.head_bytes
    return equal_pieces(begins[0], begins[1], run_bytes, piece_bytes)


def _begins(form: KVFormat, heads: range, places: Int64Array, blocks: Int64Array) -> Int64Array:
    """[places, planes] the byte at which each token's heads begin in each plane of its block."""
    token_bytes = form.heads * form.head_bytes
    planes = np.arange(form.planes, dtype=np.int64) * (form.block_size * token_bytes)
    first = (heads.start - form.first_head) * form.head_bytes
    at = blocks.astype(np.int64) * form.block_bytes + places % form.block_size * token_bytes + first
    return np.asarray(at[:, None] + planes[None, :], dtype=np.int64)


def _by_block(blocks: Int64Array, planes: int) -> Int64Array:
    """[places, planes] which number each gets, so that block after block is read from its beginning to its end.

    blocks: [places] ascending
    """
    firsts = np.searchsorted(blocks, blocks)
    counts = np.searchsorted(blocks, blocks, side="right") - firsts
    numbers = np.arange(blocks.size, dtype=np.int64) - firsts + firsts * planes
    return np.asarray(numbers[:, None] + counts[:, None] * np.arange(planes, dtype=np.int64)[None, :], dtype=np.int64)


def _misfit(theirs: KVFormat, mine: KVFormat, tokens: Tokens) -> str:
    num_tokens = tokens.end - tokens.begin
    if tokens.begin % theirs.block_size or tokens.keep % mine.block_size or num_tokens < 1:
        return (
            f"KV of tokens [{tokens.begin}, {tokens.end}) in blocks of {theirs.block_size}, from {tokens.keep} on in "
            f"blocks of {mine.block_size}: a block is begun inside"
        )
    if tokens.keep >= tokens.end:
        return f"KV up to token {tokens.end} came, it is there up to {tokens.keep}"
    needed, there = -(-num_tokens // theirs.block_size), len(tokens.sources)
    if needed != there:
        return f"KV of {num_tokens} tokens came in {there} blocks of {theirs.block_size}, expected {needed}"
    if tokens.end > len(tokens.targets) * mine.block_size:
        return (
            f"KV up to token {tokens.end} came, the destination has {len(tokens.targets)} blocks of {mine.block_size}"
        )
    return ""
