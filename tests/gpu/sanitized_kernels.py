"""Runs our kernels on a GPU, each on small and awkward shapes: what compute-sanitizer watches. See sanitize.py.

python -m tests.gpu.sanitized_kernels [NAME …]: `planted-bounds` and `planted-race` are kernels with a fault, which show
that the tool sees it.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False

import sys
from collections.abc import Callable, Mapping, Sequence

import torch
import triton
import triton.language as tl

from tests.models.attention_cases import make_case, relative
from tests.models.interpreted_attention import decode_specs, mixed_specs
from tests.models.kernel_cases import LARGEST_ERRORS, errors
from triptych.models.attention.paged import TritonAttention
from triptych.models.kernels import fp8
from triptych.models.kernels.choice import fused_kernels
from triptych.transfer.block_copy_kernel import copy_blocks

CUDA = torch.device("cuda", 0)
LARGEST_ATTENTION_ERROR = 1e-2


def fused() -> None:
    """Norms, rotary embedding, activation, rotary embedding with KV write."""
    for dtype in (torch.bfloat16, torch.float32):
        for name, error in errors(fused_kernels(), CUDA, dtype).items():
            assert error <= LARGEST_ERRORS[dtype], (name, error)


def decode_attention() -> None:
    """One query for each sequence, in a step and told by tensors with padded rows."""
    for seed, spec in enumerate(decode_specs()):
        case = make_case(spec, seed, CUDA)
        attention = TritonAttention(spec.shape(), CUDA)
        found = case.decoded(attention, width=200, padding=2)[: len(case.exact)]
        assert relative(found, case.exact) <= LARGEST_ATTENTION_ERROR
        assert relative(case.attended(attention), case.exact) <= LARGEST_ATTENTION_ERROR


def chunk_attention() -> None:
    """Prompts that begin and that go on, beside single tokens."""
    for seed, spec in enumerate(mixed_specs()):
        case = make_case(spec, seed, CUDA)
        assert relative(case.attended(TritonAttention(spec.shape(), CUDA)), case.exact) <= LARGEST_ATTENTION_ERROR


def eight_bits() -> None:
    """Rows cut down to 8 bits, with zeros behind up to a width."""
    for rows, width, padded in ((3, 1, 16), (5, 40, 48), (2, 256, 256), (4, 1030, 1040)):
        numbers = torch.randn(rows, width).to(CUDA, torch.bfloat16)
        assert fp8.quantise_rows(numbers, padded).numbers.shape == (rows, padded)


def blocks() -> None:
    """Scattered blocks to scattered places, of odd and even numbers."""
    for numbers in (16, 4096, 4112):
        source = torch.randint(0, 1 << 40, (9, numbers)).to(CUDA)
        places = torch.zeros_like(source)
        order = torch.tensor([7, 0, 4]).to(CUDA)
        copy_blocks(source, places, order, order.flip(0).contiguous())
        assert torch.equal(places[order.flip(0)], source[order])


@triton.jit
def _write_beyond(places, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(places + at, at)


def planted_bounds() -> None:
    """Writes behind the end of its memory, and of whatever is mapped there."""
    _write_beyond[(1,)](torch.zeros(16, dtype=torch.int32).to(CUDA), COUNT=1 << 15)
    torch.cuda.synchronize()


_RACE = """
extern "C" __global__ void race(int* places) {
    __shared__ int shared[64];
    shared[threadIdx.x] = threadIdx.x;
    places[threadIdx.x] = shared[63 - threadIdx.x];  // of another warp, without waiting for it
}
"""


def planted_race() -> None:
    """Reads what another warp writes, without a barrier between: Triton sets its own, so this one is in C++."""
    places = torch.zeros(64, dtype=torch.int32).to(CUDA)
    kernel = torch.cuda._compile_kernel(_RACE, "race")  # type: ignore[attr-defined]  # private, and only wanted here
    kernel((1, 1, 1), (64, 1, 1), (places,))
    torch.cuda.synchronize()


KERNELS: Mapping[str, Callable[[], None]] = {
    "fused": fused,
    "decode-attention": decode_attention,
    "chunk-attention": chunk_attention,
    "eight-bits": eight_bits,
    "blocks": blocks,
}
PLANTED: Mapping[str, Callable[[], None]] = {"planted-bounds": planted_bounds, "planted-race": planted_race}


def main(names: Sequence[str]) -> None:
    for name in names or KERNELS:
        (KERNELS | PLANTED)[name]()
        torch.cuda.synchronize()
        print(f"ran {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
