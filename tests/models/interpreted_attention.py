"""Prints how far our Triton attention, run by Triton's interpreter on the CPU, is from float64: a JSON object.

TRITON_INTERPRET=1 python -m tests.models.interpreted_attention; see test_paged_attention.py.
"""

import json
import os
import random
import sys
import time

import torch

from tests.models.attention_cases import Spec, alone, decodes, make_case, relative
from triptych.models.attention.paged import TritonAttention
from triptych.models.attention.tuning import ChunkTuning, DecodeTuning

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn
# Small tiles: more borders for the interpreter's time.
DECODE = DecodeTuning(tile=32, stretch=64, warps=4, stages=2, programs=2)
CHUNKS = ChunkTuning(rows=32, tile=32, warps=4, stages=2)


def decode_specs() -> list[Spec]:
    """Every ratio of heads, lengths on both sides of blocks, tiles and stretches, and one beyond the most stretches."""
    return [
        decodes(2, 2, 64, 16, [1, 15, 16, 17]),
        decodes(4, 1, 64, 32, [31, 32, 33, 63, 64, 65]),
        decodes(7, 1, 128, 16, [128, 129, 1]),
        decodes(8, 1, 80, 16, [95, 300]),
        decodes(14, 2, 96, 32, [97, 1, 160]),
        decodes(2, 1, 24, 16, [3000, 2, 2048]),
        Spec(14, 2, 64, 16, (1,) * 3, (40, 65, 1), torch.float16),
        Spec(4, 2, 64, 16, (1,) * 3, (33, 64, 130), torch.float16, FP8),
    ]


def mixed_specs() -> list[Spec]:
    """Prompts that begin, prompts that go on, and single tokens, beside one another in one step."""
    return [
        Spec(2, 2, 64, 16, (5, 32, 33), (5, 32, 33)),
        Spec(4, 1, 64, 32, (1, 40, 2, 1, 65), (50, 40, 100, 1, 96)),
        Spec(7, 1, 128, 16, (17, 1), (49, 20)),
        Spec(8, 1, 80, 16, (31, 31), (31, 64)),
        Spec(14, 2, 96, 32, (3, 1, 34), (35, 9, 34)),
        Spec(2, 1, 24, 16, (40, 7), (700, 2007)),
        Spec(7, 1, 64, 16, (33, 1, 20), (33, 18, 90), torch.float16),
        Spec(4, 2, 64, 16, (33, 1, 20), (33, 18, 90), torch.float16, FP8),
    ]


def random_specs(count: int, seed: int) -> list[Spec]:
    chosen = random.Random(seed)
    specs = []
    for _ in range(count):
        group, kv_heads = chosen.choice([1, 4, 7, 8]), chosen.choice([1, 2])
        lengths = [chosen.choice([1, 1, chosen.randint(2, 70)]) for _ in range(chosen.randint(1, 4))]
        before = [chosen.choice([0, chosen.randint(1, 150)]) for _ in lengths]
        kv_lengths = tuple(length + past for length, past in zip(lengths, before, strict=True))
        head_size, block_size = chosen.choice([64, 80, 96, 128]), chosen.choice([16, 32])
        specs.append(Spec(group * kv_heads, kv_heads, head_size, block_size, tuple(lengths), kv_lengths))
    return specs


def attention_for(spec: Spec) -> TritonAttention:
    return TritonAttention(spec.shape(), CPU, decode=DECODE, chunks=CHUNKS)


def errors() -> dict[str, list[tuple[str, float]]]:
    """Of each kind of step, the dtype and the error of each case."""
    found: dict[str, list[tuple[str, float]]] = {"decode": [], "step": []}
    for seed, spec in enumerate(decode_specs()):
        case = make_case(spec, seed)
        result = case.decoded(attention_for(spec), width=200, padding=2)
        assert not result[len(case.exact) :].any(), "padded rows are zeros"
        found["decode"].append((str(spec.dtype), relative(result[: len(case.exact)], case.exact)))
    for seed, spec in enumerate([*decode_specs()[:3], *mixed_specs(), *random_specs(8, seed=1)]):
        case = make_case(spec, seed)
        found["step"].append((str(spec.dtype), relative(case.attended(attention_for(spec)), case.exact)))
    return found


def rows_that_differ_when_alone() -> int:
    """Sequences whose results are not, to the bit, those of a step of their own."""
    apart = 0
    for seed, spec in enumerate([decode_specs()[4], mixed_specs()[1], mixed_specs()[6]]):
        case, attention = make_case(spec, seed), attention_for(spec)
        together = case.attended(attention).split(spec.query_lengths)
        for row, result in enumerate(together):
            apart += not torch.equal(result, alone(case, row).attended(attention))
    return apart


def decodes_that_differ_when_told_by_tensors() -> int:
    """Rows that come out otherwise, to the bit, when the step is told by tensors, with wider tables and padding."""
    apart = 0
    for seed, spec in enumerate([decode_specs()[1], decode_specs()[4], decode_specs()[7]]):
        case, attention = make_case(spec, seed), attention_for(spec)
        told = case.decoded(attention, width=90, padding=3)[: len(case.exact)]
        apart += int((told != case.attended(attention)).flatten(1).any(1).sum())
    return apart


def steps_that_differ_when_told_by_tensors() -> int:
    """As above, of steps with prompts in them, in shapes that are just large enough, and larger."""
    apart = 0
    for seed, spec in enumerate([*mixed_specs()[1:4], mixed_specs()[6], mixed_specs()[7], decode_specs()[1]]):
        case, attention = make_case(spec, seed), attention_for(spec)
        for spare in (0, 5):
            told = case.told(attention, spare)
            apart += int((told != case.attended(attention)).flatten(1).any(1).sum())
    return apart


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "the interpreter is chosen before the kernels are imported"
    began = time.process_time()
    figures = errors() | {
        "alone": rows_that_differ_when_alone(),
        "told": decodes_that_differ_when_told_by_tensors(),
        "told steps": steps_that_differ_when_told_by_tensors(),
    }
    print(json.dumps(figures))
    print(f"{time.process_time() - began:.1f} s of this process", file=sys.stderr)


if __name__ == "__main__":
    main()
