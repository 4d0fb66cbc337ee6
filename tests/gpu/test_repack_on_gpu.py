"""KV of another format in GPU memory: run where there is an NVIDIA GPU."""

import random
from dataclasses import replace

import pytest
import torch

from tests.gpu.rig import GPU, SETTINGS
from tests.transfer.neighbours import HERE, blocks_ref
from tests.transfer.test_repack import shaped, tokens_of
from triptych.errors import ClaimExpired
from triptych.transfer.checksum import checksum
from triptych.transfer.kv_format import KVFormat
from triptych.transfer.reader import Reader
from triptych.transfer.shards import Repack
from triptych.transfer.slab import create_slab

pytestmark = pytest.mark.gpu

BLOCKS = 128


@pytest.mark.parametrize("with_checksum", [False, True], ids=["straight", "landed first"])
@pytest.mark.parametrize(
    ("theirs", "mine"),
    [((16, 4, 0), (32, 4, 0)), ((32, 4, 0), (16, 4, 0)), ((16, 4, 0), (24, 4, 0)), ((16, 4, 0), (32, 2, 2))],
)
def test_tokens_land_in_blocks_of_another_format(
    theirs: tuple[int, int, int], mine: tuple[int, int, int], with_checksum: bool
) -> None:
    there, here = (KVFormat(28, size, heads, 128, "bfloat16", first, 4) for size, heads, first in (theirs, mine))
    slab = create_slab("kv", 2, there.block_bytes, BLOCKS, GPU)
    slab.stamp(range(BLOCKS), [3] * BLOCKS)
    slab.data.random_(0, 256)
    event = slab.record_event()
    prompt, keep, chance = 1001, 2 * here.block_size, random.Random(1)
    ids = chance.sample(range(BLOCKS), -(-prompt // there.block_size))
    blocks = chance.sample(range(BLOCKS), -(-prompt // here.block_size))
    into = torch.zeros(BLOCKS, here.block_bytes, dtype=torch.uint8, device=GPU)
    claimed = slab.data.view(BLOCKS, -1)[ids]
    ref = replace(
        blocks_ref([(block, 3) for block in ids], owner=HERE, event=event),
        tokens_begin=0,
        tokens_end=prompt,
        checksum=checksum(claimed) if with_checksum else b"",
    )
    reader = Reader(lambda endpoint: [], HERE, {2: slab}, GPU, SETTINGS)
    reader.read_repacked(ref, Repack(lambda: there, here, blocks, keep), into)
    heads = slice(here.first_head, here.end_head)
    wanted = tokens_of(slab.data.view(BLOCKS, -1), there, ids, keep, prompt)[:, :, :, heads]
    assert torch.equal(tokens_of(into, here, blocks, keep, prompt), wanted)
    assert not bool(shaped(into, here)[blocks[:2]].any())
    slab.stamp(ids[:1], [4])
    torch.cuda.synchronize()
    with pytest.raises(ClaimExpired):
        reader.read_repacked(ref, Repack(lambda: there, here, blocks, keep), into)
    reader.close()
