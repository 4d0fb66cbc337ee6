"""Our Triton attention compiles for a GPU that is not there, with the tile sizes that it is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

import torch  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from triptych.models.attention import triton_chunks, triton_decode  # noqa: E402
from triptych.models.attention.tuning import chunk_tuning, decode_tuning, precision  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
# Integers that change from step to step: nothing may be compiled anew for those that are multiples of 16.
UNEVEN = {"table_row", "room", "count"}
INTEGERS = dict.fromkeys(("tables", "listed", "places", "total", "kv_lengths"), "*i32")
INTEGERS |= dict.fromkeys(("tiles", "tokens", "rows"), "*i64")


def compiled(kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], warps: int, stages: int) -> str:
    """Its PTX. Pointers to integers may lie anywhere, others at multiples of 16 bytes."""
    names = list(kernel.arg_names)
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if name not in constants and name not in UNEVEN and name not in INTEGERS and signature[name] != "fp32"
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    made = triton.compile(source, target=HOPPER, options={"num_warps": warps, "num_stages": stages})
    code: str = made.asm["ptx"]
    assert ".local" not in code, "numbers are spilled to memory"
    return code


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def types_of(dtype: torch.dtype, kv: str | None = None) -> dict[str, str]:
    name = f"*{NAMES[dtype]}"
    rows = dict.fromkeys(("query_row", "key_row", "table_row", "block_row", "room", "count"), "i32")
    return (
        INTEGERS
        | rows
        | {
            "query": name,
            "output": name,
            "keys": f"*{kv}" if kv else name,
            "values": f"*{kv}" if kv else name,
            "partial": "*fp32",
            "weight": "*fp32",
            "factor": "fp32",
        }
    )


@pytest.mark.parametrize(
    ("dtype", "kv", "heads", "kv_heads", "head"),
    [
        (torch.bfloat16, None, 28, 4, 128),
        (torch.bfloat16, "fp8e4nv", 28, 4, 128),
        (torch.float16, None, 16, 16, 80),
        (torch.float32, None, 8, 1, 64),
    ],
    ids=["bf16", "fp8", "fp16, 80", "fp32"],
)
def test_decode_reads_keys_asynchronously_16_bytes_at_a_time(
    dtype: torch.dtype, kv: str | None, heads: int, kv_heads: int, head: int
) -> None:
    tuning, width = decode_tuning(dtype), triton.next_power_of_2(head)
    constants = {"KV_HEADS": kv_heads, "GROUP": heads // kv_heads, "ROWS": 16, "HEAD": head, "WIDTH": width}
    constants |= {"PAGE": 16, "TILE": tuning.tile, "PRECISION": precision(dtype)}
    code = compiled(triton_decode._attend, types_of(dtype, kv), constants, tuning.warps, tuning.stages)
    assert "cp.async.cg.shared.global" in code


def test_lists_and_combines_of_decode_compile() -> None:
    types = types_of(torch.bfloat16)
    for given in (True, False):
        constants = {"SEQUENCES": 256, "SHORTEST": 256, "MOST": 32, "TILE": 64, "GIVEN": given}
        compiled(triton_decode._list, types, constants, 4, 3)
    code = compiled(triton_decode._combine, types, {"HEADS": 28, "HEAD": 128, "WIDTH": 128, "MOST": 32}, 2, 3)
    assert "ld.global.v4" in code or "ld.global.L1" in code


@pytest.mark.parametrize(
    ("dtype", "kv", "heads", "kv_heads", "head", "paged"),
    [
        (torch.bfloat16, None, 28, 4, 128, True),
        (torch.bfloat16, "fp8e4nv", 28, 4, 128, True),
        (torch.float16, None, 16, 16, 80, True),
        (torch.float32, None, 8, 1, 64, True),
        # Rows of the step itself are never in fp8, and differ from pages in where they are alone.
        (torch.bfloat16, None, 28, 4, 128, False),
    ],
    ids=["bf16", "fp8", "fp16, 80", "fp32", "bf16 rows"],
)
def test_prompts_are_multiplied_by_warp_groups(
    dtype: torch.dtype, kv: str | None, heads: int, kv_heads: int, head: int, paged: bool
) -> None:
    tuning, width = chunk_tuning(dtype), triton.next_power_of_2(head)
    constants = {"KV_HEADS": kv_heads, "GROUP": heads // kv_heads, "HEAD": head, "WIDTH": width, "PAGE": 16}
    constants |= {"ROWS": tuning.rows, "TILE": tuning.tile, "PAGED": paged, "PRECISION": precision(dtype)}
    types = types_of(dtype, kv) | ({} if paged else {"tables": "*i64"})
    code = compiled(triton_chunks._attend, types, constants, tuning.warps, tuning.stages_over(pages=paged))
    assert "cp.async.cg.shared.global" in code
    assert dtype == torch.float32 or "wgmma.mma_async" in code
