"""KV of one format lands in another: every token and head where a straightforward copy puts it, and nothing else."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.transfer.neighbours import CPU, HERE, OWNER, blocks_ref
from triptych.config import TransferSettings
from triptych.dtypes import DTYPE_BYTES
from triptych.errors import ClaimExpired, InvalidRecord, TransferFailed
from triptych.journey import KVRef, Shard
from triptych.transfer.checksum import checksum
from triptych.transfer.kv_format import KVFormat, repack_refusal
from triptych.transfer.reader import Reader
from triptych.transfer.repack import Tokens, repacked
from triptych.transfer.shards import Repack
from triptych.transfer.slab import Slab, create_slab

SOURCE_BLOCKS, TARGET_BLOCKS = 24, 40
SIZES = [(16, 32), (32, 16), (16, 24), (24, 16), (1, 16), (16, 1), (5, 7), (16, 16)]
GENERATION = 7


class Bench:
    """Slabs of an owner's ranks full of numbers, and blocks of this worker to pull them into."""

    def __init__(self, theirs: KVFormat, mine: KVFormat, ranks: int = 1) -> None:
        """theirs: of the owner's first rank"""
        self.theirs, self.mine = theirs, mine
        self.slabs: dict[int, Slab] = {}
        self.ranks = [theirs.of_rank(rank) for rank in range(ranks)]
        for rank, form in enumerate(self.ranks):
            slab = create_slab("kv", 2 + rank, form.block_bytes, SOURCE_BLOCKS, CPU)
            slab.stamp(range(SOURCE_BLOCKS), [GENERATION] * SOURCE_BLOCKS)
            slab.data[:] = torch.randint(0, 256, slab.data.shape, dtype=torch.uint8)
            self.slabs[2 + rank] = slab
        self.into = torch.randint(0, 256, (TARGET_BLOCKS, mine.block_bytes), dtype=torch.uint8)

    def reader(self) -> Reader:
        arenas = [replace(slab.describe(), rank=arena - 2) for arena, slab in self.slabs.items()]
        return Reader(lambda endpoint: arenas, HERE, {}, CPU, TransferSettings(copy_timeout_seconds=5))

    def ref(self, begin: int, end: int, blocks: Sequence[int], with_checksum: bool = False) -> KVRef:
        units = [slab.data.view(SOURCE_BLOCKS, -1)[list(blocks)] for slab in self.slabs.values()]
        return replace(
            blocks_ref([(block, GENERATION) for block in blocks]),
            tokens_begin=begin,
            tokens_end=end,
            shards=tuple(Shard(arena - 2, arena, 0) for arena in self.slabs),
            kv_layout=self.theirs.digest,
            block_size=self.theirs.block_size,
            checksum=checksum(torch.cat(units)) if with_checksum else b"",
        )

    def repack(self, blocks: Sequence[int], keep: int = 0) -> Repack:
        return Repack(lambda: self.theirs, self.mine, blocks, keep)

    def wanted(self, ref: KVRef, blocks: Sequence[int], keep: int) -> Tensor:
        """The destination after a copy that goes token by token and head by head."""
        wanted = self.into.clone()
        target = shaped(wanted, self.mine)
        for form, slab in zip(self.ranks, self.slabs.values(), strict=True):
            source = shaped(slab.data.view(SOURCE_BLOCKS, -1), form)
            for token in range(max(ref.tokens_begin, keep), ref.tokens_end):
                block = ref.blocks[(token - ref.tokens_begin) // form.block_size].id
                place = blocks[token // self.mine.block_size]
                for head in range(max(form.first_head, self.mine.first_head), min(form.end_head, self.mine.end_head)):
                    target[place, :, :, token % self.mine.block_size, head - self.mine.first_head] = source[
                        block, :, :, token % form.block_size, head - form.first_head
                    ]
        return wanted


def shaped(blocks: Tensor, form: KVFormat) -> Tensor:
    """[blocks, layers, 2, block_size, heads, bytes of a head]"""
    return blocks.view(-1, form.layers, 2, form.block_size, form.heads, form.head_bytes)


def tokens_of(blocks: Tensor, form: KVFormat, table: Sequence[int], begin: int, end: int) -> Tensor:
    """[tokens, layers, 2, heads, bytes] what a prompt's tokens are in these blocks."""
    by_token = shaped(blocks, form)[list(table)].permute(0, 3, 1, 2, 4, 5).flatten(0, 1)
    return by_token[begin:end]


def pull(bench: Bench, ref: KVRef, repack: Repack) -> None:
    reader = bench.reader()
    try:
        reader.read_repacked(ref, repack, bench.into)
    finally:
        reader.close()


@pytest.mark.parametrize("with_checksum", [False, True], ids=["straight", "landed first"])
@pytest.mark.parametrize(("there", "here"), SIZES)
def test_blocks_of_any_size_become_blocks_of_any_other(there: int, here: int, with_checksum: bool) -> None:
    chance = random.Random(there * 100 + here)
    for _ in range(4):
        bench = Bench(KVFormat(2, there, 2, 3, "bfloat16"), KVFormat(2, here, 2, 3, "bfloat16"))
        prompt = chance.randint(2, min(SOURCE_BLOCKS * there, TARGET_BLOCKS * here))
        blocks = chance.sample(range(TARGET_BLOCKS), -(-prompt // here))
        keep = chance.randrange(-(-prompt // here)) * here
        begin = chance.randint(0, keep // there) * there
        ref = bench.ref(
            begin, prompt, chance.sample(range(SOURCE_BLOCKS), -(-(prompt - begin) // there)), with_checksum
        )
        before, wanted = bench.into.clone(), bench.wanted(ref, blocks, keep)
        pull(bench, ref, bench.repack(blocks, keep))
        first = max(begin, keep)
        assert torch.equal(
            tokens_of(bench.into, bench.mine, blocks, first, prompt),
            tokens_of(wanted, bench.mine, blocks, first, prompt),
        )
        # The last run of tokens may reach over the prompt's end, into the prompt's own last block.
        untouched = [block for block in range(TARGET_BLOCKS) if block not in blocks[first // here :]]
        assert torch.equal(bench.into[untouched], before[untouched])
        last = blocks[-1:]
        assert torch.equal(
            tokens_of(bench.into, bench.mine, last, 0, max(0, first - (len(blocks) - 1) * here)),
            tokens_of(before, bench.mine, last, 0, max(0, first - (len(blocks) - 1) * here)),
        )


def test_a_prompt_in_chunks_lands_whole_whatever_the_order() -> None:
    for there, here in SIZES:
        bench = Bench(KVFormat(1, there, 2, 2, "float32"), KVFormat(1, here, 2, 2, "float32"))
        blocks = random.Random(here).sample(range(TARGET_BLOCKS), 30)
        prompt = min(30 * here, SOURCE_BLOCKS * there) - (1 if min(there, here) > 1 else 0)
        ids = random.Random(there).sample(range(SOURCE_BLOCKS), -(-prompt // there))
        cuts = [0, *sorted(random.Random(there + here).sample(range(1, len(ids)), min(2, len(ids) - 1))), len(ids)]
        refs = [
            bench.ref(first * there, min(last * there, prompt), ids[first:last])
            for first, last in itertools.pairwise(cuts)
        ]
        wanted = bench.wanted(bench.ref(0, prompt, ids), blocks, 0)
        for ref in (*refs[1:], refs[0]):
            pull(bench, ref, bench.repack(blocks))
        assert torch.equal(
            tokens_of(bench.into, bench.mine, blocks, 0, prompt), tokens_of(wanted, bench.mine, blocks, 0, prompt)
        )


@pytest.mark.parametrize("with_checksum", [False, True], ids=["straight", "landed first"])
@pytest.mark.parametrize(
    ("theirs", "ranks", "mine"),
    [
        ((16, 2, 0), 2, (16, 4, 0)),  # two shards into the whole
        ((16, 2, 0), 2, (32, 4, 0)),
        ((32, 1, 0), 4, (16, 4, 0)),
        ((16, 4, 0), 1, (16, 2, 0)),  # the whole to the first and the second of two ranks
        ((16, 4, 0), 1, (32, 2, 2)),
        ((24, 2, 0), 2, (16, 1, 3)),  # one of two shards is not needed
        ((16, 2, 0), 2, (16, 2, 2)),  # as it is, out of the second shard
        ((8, 1, 0), 4, (16, 2, 1)),
    ],
)
def test_heads_are_gathered_from_shards_and_given_to_ranks(
    theirs: tuple[int, int, int], ranks: int, mine: tuple[int, int, int], with_checksum: bool
) -> None:
    formats = [KVFormat(2, size, heads, 4, "float8_e4m3fn", first, 4) for size, heads, first in (theirs, mine)]
    bench = Bench(*formats, ranks)
    prompt = 75
    ids = random.Random(1).sample(range(SOURCE_BLOCKS), -(-prompt // theirs[0]))
    blocks = random.Random(2).sample(range(TARGET_BLOCKS), -(-prompt // mine[0]))
    keep = mine[0]
    ref = bench.ref(0, prompt, ids, with_checksum)
    wanted = bench.wanted(ref, blocks, keep)
    before = bench.into.clone()
    pull(bench, ref, bench.repack(blocks, keep))
    assert torch.equal(
        tokens_of(bench.into, bench.mine, blocks, keep, prompt), tokens_of(wanted, bench.mine, blocks, keep, prompt)
    )
    untouched = [block for block in range(TARGET_BLOCKS) if block not in blocks[1:]]
    assert torch.equal(bench.into[untouched], before[untouched])


def test_what_cannot_be_repacked_is_refused_with_the_reason() -> None:
    mine = KVFormat(2, 16, 4, 8, "bfloat16")
    assert repack_refusal(replace(mine, block_size=32), mine) == ""
    assert repack_refusal(replace(mine, heads=2, first_head=2), mine) == ""
    for change, reason in [
        ({"layers": 3}, "layers 3 there and 2 here"),
        ({"head_size": 16}, "head sizes 16 there and 8 here"),
        ({"total_heads": 8}, "heads of the model 8 there and 4 here"),
        ({"dtype": "float8_e5m2"}, "dtypes float8_e5m2 there and bfloat16 here"),
        ({"scaling": "b1ec"}, "scales b1ec there and none here"),
    ]:
        changes: Any = change
        assert repack_refusal(replace(mine, **changes), mine) == f"KV cannot be repacked: {reason}"


def test_formats_differ_in_their_digest_where_blocks_do() -> None:
    mine = KVFormat(2, 16, 4, 8, "bfloat16", 0, 8)
    changes: list[dict[str, Any]] = [
        {"layers": 3},
        {"block_size": 8},
        {"heads": 2},
        {"head_size": 4},
        {"dtype": "float16"},
        {"first_head": 4},
        {"total_heads": 16},
        {"scaling": "b1ec"},
        {"scaling": "b1ed"},
    ]
    assert len({mine.digest, *(replace(mine, **change).digest for change in changes)}) == 1 + len(changes)
    assert KVFormat(2, 16, 4, 8, "bfloat16", 0, 8).digest == mine.digest


def test_the_dtypes_of_refs_are_those_of_torch() -> None:
    for name, num_bytes in DTYPE_BYTES.items():
        assert getattr(torch, name).itemsize == num_bytes


@pytest.mark.parametrize("with_checksum", [False, True], ids=["straight", "landed first"])
def test_freed_blocks_and_wrong_bytes_are_noticed(with_checksum: bool) -> None:
    form = KVFormat(1, 16, 2, 4, "float32")
    bench = Bench(form, replace(form, block_size=32))
    ref = bench.ref(0, 64, [3, 1, 9, 4], with_checksum)
    bench.slabs[2].stamp([9], [GENERATION + 1])
    before = bench.into.clone()
    with pytest.raises(ClaimExpired, match="unit 9 has generation 8, the claim 7"):
        pull(bench, ref, bench.repack([0, 1]))
    bench.slabs[2].stamp([9], [GENERATION])
    if with_checksum:
        assert torch.equal(bench.into, before), "nothing is written before it is known to be right"
        with pytest.raises(TransferFailed, match="checksum"):
            pull(bench, replace(ref, checksum=bytes(16)), bench.repack([0, 1]))
        assert torch.equal(bench.into, before)
    pull(bench, ref, bench.repack([0, 1]))


def test_claims_that_do_not_fit_are_refused_before_anything_moves() -> None:
    form = KVFormat(1, 16, 2, 4, "float32")
    bench = Bench(form, replace(form, block_size=32))
    before = bench.into.clone()
    ref = bench.ref(16, 64, [3, 1, 9])
    for changed, repack, reason in [
        (ref, bench.repack([0]), "the destination has 1 blocks of 32"),
        (ref, bench.repack([0, 0]), "each once"),
        (ref, bench.repack([0, TARGET_BLOCKS]), "each once"),
        (ref, bench.repack([0, 1], keep=16), "begun inside"),
        (ref, bench.repack([0, 1, 2], keep=64), "it is there up to 64"),
        (replace(ref, tokens_begin=8), bench.repack([0, 1]), "begun inside"),
        (replace(ref, tokens_end=48), bench.repack([0, 1]), "in 3 blocks of 16, expected 2"),
        (ref, replace(bench.repack([0, 1]), theirs=lambda: replace(form, layers=2)), "bytes"),
        (ref, replace(bench.repack([0, 1]), mine=replace(form, block_size=8)), "is to go into"),
        (replace(ref, shards=(Shard(1, 2, 0),)), bench.repack([0, 1]), r"heads \[2, 4\), the model has 2"),
    ]:
        with pytest.raises((TransferFailed, InvalidRecord), match=reason):
            pull(bench, changed, repack)
    assert torch.equal(bench.into, before)


def test_missing_heads_are_named() -> None:
    form = KVFormat(1, 16, 2, 4, "float32", 0, 4)
    bench = Bench(form, replace(form, heads=4), ranks=2)
    ref = bench.ref(0, 16, [3])
    with pytest.raises(TransferFailed, match=r"heads 2\.\.3 of KV are in none of 1 shards"):
        pull(bench, replace(ref, shards=ref.shards[:1]), bench.repack([0]))
    assert ref.owner == OWNER


@pytest.mark.parametrize(("there", "here", "heads"), [(16, 32, range(4)), (24, 16, range(4)), (16, 16, range(1, 3))])
def test_blocks_are_read_one_after_another_from_beginning_to_end(there: int, here: int, heads: range) -> None:
    """So that a network reads whole blocks, and memory is read in order."""
    theirs = KVFormat(3, there, 4, 8, "bfloat16")
    mine = KVFormat(3, here, len(heads), 8, "bfloat16", heads.start, 4)
    pieces = repacked(theirs, mine, Tokens(0, 96, 0, range(5, 5 + 96 // there), range(96 // here)), heads)
    assert (np.diff(pieces.sources) > 0).all()
    if len(heads) == theirs.heads:
        assert (np.diff(pieces.sources) == 1).all()
