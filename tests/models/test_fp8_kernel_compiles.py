"""The kernel that makes 8-bit rows compiles for a GPU that is not there, at the widths of a 7B decoder."""

from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from triptych.models.kernels import fp8  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("width", [3584, 18944])
def test_rows_are_read_and_written_several_numbers_at_a_time(
    width: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, block = fp8._quantise_rows, triton.next_power_of_2(width)
    names = list(kernel.arg_names)
    types = {"matrix": f"*{dtype}", "numbers": "*u8", "scales": "*fp32"}
    constants = {"WIDTH": width, "WIDTH_OUT": width, "SMALLEST_BITS": 1, "LARGEST": 448.0, "BLOCK": block}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in types},
    )
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": fp8.warps_for(block)})
    code = compiled.asm["ptx"]
    assert "ld.global.v4.b32" in code
    assert "st.global.v" in code
    assert "div.rn" in code, "an approximate quotient would round otherwise than the CPU"
    assert "fma" not in code, "a product and a sum in one rounding would round otherwise than the CPU"
    assert ".local" not in code, "numbers are spilled to memory"
