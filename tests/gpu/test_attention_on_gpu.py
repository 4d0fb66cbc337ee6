"""Paged attention on a GPU: numbers of float64, rows that stand for themselves, decode steps that can be recorded."""

import itertools
from dataclasses import replace

import pytest
import torch

from tests.gpu.waits import no_host_synchronisation
from tests.models.attention_cases import LARGEST_ERRORS, LAYER, Case, Spec, alone, decode_inputs, decodes, make_case
from tests.models.attention_cases import relative as error_of
from triptych.models.attention.choice import choose_attention, make_attention

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
FP8 = torch.float8_e4m3fn
SPECS = [
    decodes(28, 4, 128, 16, [1, 16, 17, 64, 65, 255, 256, 257, 2048, 3000, 9000]),
    Spec(28, 4, 128, 16, (1, 300, 1, 129, 64), (700, 300, 1, 2000, 64)),
    Spec(16, 16, 80, 32, (130, 1, 40), (130, 33, 300)),
    Spec(8, 1, 96, 32, (65, 7), (65, 2049)),
    Spec(8, 2, 64, 16, (1, 128, 256), (400, 128, 384)),
]
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*itertools.product(("sdpa", "triton"), (torch.float32, *HALVES)), *itertools.product(["varlen"], HALVES)],
    ids=str,
)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_attention_equals_float64(number: int, name: str, dtype: torch.dtype) -> None:
    case = make_case(replace(SPECS[number], dtype=dtype), number, CUDA)
    result = case.attended(make_attention(name, case.shape, CUDA))
    limit = 1e-5 if dtype == torch.float32 else LARGEST_ERRORS[dtype]
    assert error_of(result, case.exact) <= limit


@pytest.mark.parametrize("name", ["sdpa", "triton"])
def test_attention_reads_pages_in_fp8(name: str) -> None:
    case = make_case(replace(SPECS[1], dtype=torch.bfloat16, kv_dtype=FP8), 5, CUDA)
    assert error_of(case.attended(make_attention(name, case.shape, CUDA)), case.exact) <= LARGEST_ERRORS[torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_rows_do_not_depend_on_their_neighbours(number: int, dtype: torch.dtype) -> None:
    case = make_case(replace(SPECS[number], dtype=dtype), number, CUDA)
    attention = make_attention("triton", case.shape, CUDA)
    together = case.attended(attention).split(case.inputs.query_lengths)
    for row, result in enumerate(together):
        assert torch.equal(result, alone(case, row).attended(attention)), f"sequence {row}"


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_a_step_told_by_tensors_gives_the_same_bits(number: int, dtype: torch.dtype) -> None:
    case = make_case(replace(SPECS[number], dtype=dtype), number, CUDA)
    attention = make_attention("triton", case.shape, CUDA)
    expected = case.attended(attention)
    assert all(torch.equal(case.told(attention, spare), expected) for spare in (0, 30))


def test_many_runs_give_the_same_bits() -> None:
    case = make_case(replace(SPECS[0], dtype=torch.bfloat16), 1, CUDA)
    attention = make_attention("triton", case.shape, CUDA)
    first = case.attended(attention)
    assert all(torch.equal(first, case.attended(attention)) for _ in range(50))


def test_a_recorded_decode_step_follows_lengths_and_tables() -> None:
    long, short = (
        make_case(replace(decodes(28, 4, 128, 16, lengths), dtype=torch.bfloat16), seed, CUDA)
        for seed, lengths in enumerate([[900, 17, 5000, 256], [3, 2000, 40]])
    )
    rows, width = 4, 320
    static = decode_inputs(long.inputs, width, 0)
    slab = torch.empty(1000, *long.slab.shape[1:], dtype=torch.bfloat16, device=CUDA)
    query = long.query.clone()
    attention = make_attention("triton", long.shape, CUDA)

    def fill(case: Case) -> None:
        told = decode_inputs(case.inputs, width, rows - len(case.exact))
        static.kv_lengths.copy_(told.kv_lengths)
        static.block_tables.copy_(told.block_tables)
        query[: len(case.exact)].copy_(case.query)
        slab.fill_(torch.nan)
        slab[: len(case.slab)].copy_(case.slab)

    def run() -> torch.Tensor:
        return attention.decode_step(static, slab).attend(LAYER, query, long.key, long.value)

    fill(long)
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()
    for case in (short, long, short):
        fill(case)
        graph.replay()
        count = len(case.exact)
        assert error_of(output[:count], case.exact) <= LARGEST_ERRORS[torch.bfloat16]
        assert torch.equal(output[:count], case.attended(attention)), "recorded or not, the bits are the same"
        assert not output[count:].any(), "padded rows are zeros"


@pytest.mark.parametrize("name", ["triton", "varlen"])
def test_no_step_waits_for_the_device(name: str) -> None:
    case = make_case(replace(SPECS[1], dtype=torch.bfloat16), 2, CUDA)
    decode = make_case(replace(SPECS[0], dtype=torch.bfloat16), 2, CUDA)
    attention = make_attention(name, case.shape, CUDA)
    told = decode_inputs(decode.inputs, 600, 0)

    def run() -> None:
        case.attended(attention)
        attention.decode_step(told, decode.slab).attend(LAYER, decode.query, decode.key, decode.value)

    run()
    with no_host_synchronisation():
        run()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_our_kernels_are_chosen_and_nothing_is_warned_of(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    chosen = choose_attention(replace(SPECS[1], dtype=dtype).shape(), CUDA)
    assert chosen.recordable
    assert chosen.name in ("triton", "varlen")
    assert not caplog.records


def test_what_is_asked_for_by_name_is_chosen() -> None:
    shape = replace(SPECS[1], dtype=torch.bfloat16).shape()
    assert [choose_attention(shape, CUDA, name).name for name in ("sdpa", "triton", "varlen")] == [
        "sdpa",
        "triton",
        "varlen",
    ]
