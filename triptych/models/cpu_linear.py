"""Linear layers in float32 on the CPU, by oneDNN over a packed weight instead of torch's own product.

torch multiplies float32 matrices by MKL, which on processors that are not Intel's keeps to AVX2; oneDNN generates code
for what the processor has. One core with AVX-512, layers 256 wide: 104 against 240 GFLOP/s from 64 rows on, 87 against
140 at 16. What follows a product (SiLU, a product or a sum with another tensor) is done while the results are in
registers. https://github.com/uxlfoundation/oneDNN

Its results for a row do not depend on how many rows there are. Code is generated once for each number of rows, in about
a millisecond, and is kept: callers whose numbers vary fill them up (`filled`), or a thousand of them would be compiled.
"""

import logging
import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["CpuLinear", "can_pack", "filled", "product"]

log = logging.getLogger(__name__)

# Rows are filled up to a multiple of the second number where they are not more than the first.
_GRAINS = ((16, 1), (64, 8), (256, 16), (math.inf, 64))
_TYPICAL_ROWS = 256  # what the packed layout is chosen for; it serves any number
_LARGEST_DIFFERENCE = 1e-5  # of the largest number, between the two products of float32


class CpuLinear:
    """x W^T + b of float32 on the CPU. Used by any thread; keeps nothing between calls."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        """weight: [outputs, inputs]; bias: [outputs]; pack: keep a packed copy of the weight, where this torch can"""
        self.outputs, self.inputs = weight.shape
        self.bias = bias
        self.is_packed = pack and can_pack(weight)
        self._weight = _packed(weight) if self.is_packed else weight

    @classmethod
    def joined(cls, weights: Sequence[Tensor], biases: Sequence[Tensor | None], *, pack: bool = True) -> "CpuLinear":
        """Several layers of one input as one: their outputs side by side. All have a bias or none has."""
        known = [bias for bias in biases if bias is not None]
        assert len(known) in (0, len(weights)), (len(known), len(weights))
        return cls(torch.cat(list(weights)), torch.cat(known) if known else None, pack=pack)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., outputs] of x [..., inputs]"""
        if not self.is_packed:
            return functional.linear(x, self._weight, self.bias)
        return _by_onednn(x, self._weight, self.bias, "none")

    def silu(self, x: Tensor) -> Tensor:
        """SiLU of the product: [..., outputs]"""
        if not self.is_packed:
            return functional.silu(functional.linear(x, self._weight, self.bias))
        return _by_onednn(x, self._weight, self.bias, "swish")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, number by number times `other` [..., outputs], which stays as it is."""
        if not self.is_packed:
            return functional.linear(x, self._weight, self.bias).mul_(other)
        return _by_onednn_with(x, other, self._weight, self.bias, "mul")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product and `other` [..., outputs], which stays as it is, summed."""
        if not self.is_packed:
            return functional.linear(x, self._weight, self.bias).add_(other)
        return _by_onednn_with(x, other, self._weight, self.bias, "add")


def filled(rows: Tensor) -> Tensor:
    """[rows, ...] with zeros behind them, up to a number of rows that is met again; itself where it is one."""
    count = len(rows)
    missing = -count % next(grain for most, grain in _GRAINS if count <= most)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T of oneDNN where the weight is used once, which packing would not pay for; both as `can_pack` wants them.

    As of rows, code is generated and kept for each number of outputs and inputs.
    """
    return _by_onednn(x, weight, None, "none")


def can_pack(weight: Tensor) -> bool:
    """Whether products with this weight are oneDNN's: float32 on the CPU, by a torch in which that works."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _works()


@cache
def _works() -> bool:
    """Whether all that is used gives, on a small example, what torch's own product gives."""
    is_built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_built_in or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    draw = torch.Generator().manual_seed(0)
    x, weight, bias, other = (torch.randn(*shape, generator=draw) for shape in ((9, 24), (40, 24), (40,), (9, 40)))
    expected = functional.linear(x, weight, bias)
    try:
        packed = _packed(weight)
        found = {
            "none": (_by_onednn(x, packed, bias, "none"), expected),
            "none, unpacked": (_by_onednn(x, weight, bias, "none"), expected),
            "swish": (_by_onednn(x, packed, bias, "swish"), functional.silu(expected)),
            "mul": (_by_onednn_with(x, other, packed, bias, "mul"), expected * other),
            "add": (_by_onednn_with(x, other, packed, bias, "add"), expected + other),
        }
    except (RuntimeError, NotImplementedError) as error:
        log.warning("float32 products on the CPU are not oneDNN's, which costs time: %s", error)
        return False
    wrong = [name for name, (got, wanted) in found.items() if not _agree(got, wanted)]
    if wrong:
        log.warning("float32 products on the CPU are not oneDNN's, which differ in %s", ", ".join(wrong))
    return not wrong


def _agree(found: Tensor, expected: Tensor) -> bool:
    return float((found - expected).abs().max()) <= _LARGEST_DIFFERENCE * float(expected.abs().max())


def _packed(weight: Tensor) -> Tensor:
    with torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _TYPICAL_ROWS)
    return packed


def _by_onednn(x: Tensor, packed: Tensor, bias: Tensor | None, then: str) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, then, [], "")
    return made


def _by_onednn_with(x: Tensor, other: Tensor, packed: Tensor, bias: Tensor | None, then: str) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, bias, then)
    return made
