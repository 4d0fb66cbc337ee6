"""The fused kernels compile for a GPU that is not there: what the interpreter takes, the compiler may refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from triptych.models.kernels import fused  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)

# Of the 7B tower's numbers.
CASES: list[tuple[Any, Mapping[str, str], Mapping[str, Any]]] = [
    (fused._add_norm, {"epsilon": "fp32"}, {"HAS_DELTA": True, "WIDTH": 1280, "BLOCK": 2048}),
    (fused._add_norm, {"epsilon": "fp32"}, {"HAS_DELTA": False, "WIDTH": 1280, "BLOCK": 2048}),
    (
        fused._rotate,
        {"cos": "*fp32", "sin": "*fp32"},
        {"HEADS": 32, "HALF": 40, "ROW": 3840, "BLOCK_HEADS": 32, "BLOCK_HALF": 64},
    ),
    (fused._gate, {}, {"WIDTH": 3456, "BLOCK": 1024}),
]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("kernel", "types", "constants"), CASES, ids=["add_norm", "norm", "rotate", "gate"])
def test_a_kernel_compiles_and_moves_16_bytes_at_a_time(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = list(kernel.arg_names)
    signature = {name: "constexpr" if name in constants else types.get(name, f"*{dtype}") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": 4})
    code = compiled.asm["ptx"]
    assert "ld.global.v4.b32" in code
    assert "st.global.v4.b32" in code
    assert ".local" not in code, "numbers are spilled to memory"
