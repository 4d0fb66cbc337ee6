"""The kernel that copies scattered blocks, interpreted: TRITON_INTERPRET=1 python -m tests.transfer.interpreted_copy

Run by test_block_copy.py: the interpreter is chosen before the kernel is imported.
"""

import os
import random

import torch

from triptych.transfer.block_copy import gathered_copy


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "the interpreter is chosen before the kernel is imported"
    from triptych.transfer.block_copy_kernel import copy_blocks

    chance = random.Random(1)
    # Less than a tile, a whole one, a tile and 16 numbers, two tiles less 16 numbers.
    for numbers in (16, 4096, 4112, 8176):
        count = 5
        blocks = torch.randint(-(2**62), 2**62, (9, numbers))
        sources, targets = (torch.tensor(chance.sample(range(9), count)) for _ in range(2))
        places, wanted = torch.zeros(11, numbers, dtype=torch.int64), torch.zeros(11, numbers, dtype=torch.int64)
        copy_blocks(blocks, places, sources, targets)
        gathered_copy(blocks.view(torch.uint8), wanted.view(torch.uint8), sources, targets)
        assert torch.equal(places, wanted), f"blocks of {numbers} numbers did not land where they should"


if __name__ == "__main__":
    main()
