"""The fused kernels compile for a GPU that is not there: what the interpreter takes, the compiler may refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from triptych.models.kernels import fused, fused_product, fused_turn  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)

# Of the 7B decoder's numbers, in blocks of 16 tokens.
TURN_TYPES = {"cos": "*fp32", "sin": "*fp32", "slots": "*i64", "epsilon": "fp32", "block_stride": "i32"}
TURN = {"HEADS": 28, "KV_HEADS": 4, "HALF": 64, "BLOCK_SIZE": 16}
TURN |= {"BLOCK_HEADS": 8, "BLOCK_HALF": 64, "num_warps": 2}

# Of the 7B tower's numbers.
CASES: list[tuple[Any, Mapping[str, str], Mapping[str, Any]]] = [
    (fused._add_norm, {"epsilon": "fp32"}, {"HAS_DELTA": True, "WIDTH": 1280, "BLOCK": 2048}),
    (fused._add_norm, {"epsilon": "fp32"}, {"HAS_DELTA": False, "WIDTH": 1280, "BLOCK": 2048}),
    (fused._add_norm, {"epsilon": "fp32"}, {"HAS_DELTA": True, "WIDTH": 3584, "BLOCK": 4096, "num_warps": 8}),
    (
        fused._rotate,
        {"cos": "*fp32", "sin": "*fp32"},
        {"HEADS": 32, "HALF": 40, "ROW": 3840, "BLOCK_HEADS": 32, "BLOCK_HALF": 64},
    ),
    (fused._gate, {}, {"WIDTH": 3456, "BLOCK": 1024}),
    (fused_turn._turn, TURN_TYPES, TURN | {"HAS_NORM": False, "ROUNDED": False}),
    (fused_turn._turn, TURN_TYPES, TURN | {"HAS_NORM": True, "ROUNDED": False}),
]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("kernel", "types", "constants"),
    CASES,
    ids=["add_norm", "norm", "wide_norm", "rotate", "gate", "turn", "norm_turn"],
)
def test_a_kernel_compiles_and_moves_16_bytes_at_a_time(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    code = compiled(kernel, types, constants, dtype)
    assert "ld.global.v4.b32" in code
    assert "st.global.v4.b32" in code
    assert ".local" not in code, "numbers are spilled to memory"


def test_a_turn_into_a_slab_of_8_bits_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = TURN | {"HAS_NORM": True, "ROUNDED": True}
    code = compiled(fused_turn._turn, TURN_TYPES | {"planes": "*u8"}, constants, "bf16")
    assert ".local" not in code, "numbers are spilled to memory"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("tokens", [16, 32, 64])
def test_a_gated_product_compiles_for_tensor_cores_and_fetches_ahead(
    tokens: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = dict.fromkeys(("tokens", "inputs", "width"), "i32")
    constants = {"TOKENS": tokens, "ROWS": fused_product._ROWS, "STEP": fused_product._STEP, "num_warps": 4}
    code = compiled(fused_product._gated, types, constants, dtype)
    assert "wgmma.mma_async" in code
    assert "cp.async.cg.shared.global" in code
    assert ".local" not in code, "numbers are spilled to memory"


def compiled(kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], dtype: str) -> str:
    """Its PTX. Pointers are those of whole tensors; `num_warps` among the constants is none of the kernel's own."""
    names = list(kernel.arg_names)
    options = {"num_warps": constants.get("num_warps", 4)}
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in constants else types.get(name, f"*{dtype}") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name][0] in "*i"}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    code: str = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
    return code
