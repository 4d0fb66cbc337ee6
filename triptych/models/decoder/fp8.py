"""Products of 8-bit weights with activations that are cut down to 8 bits as they come; see models/quantised.py.

On CUDA the matrix units multiply the 8-bit numbers themselves, and a Triton kernel makes a token's in one pass. On the
CPU the very same numbers are multiplied in float32. Where a GPU or its torch cannot, the weights stay as small as they
are and are widened for each product, which costs time and nothing else.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from triptych.models.cpu_linear import CpuLinear
from triptych.models.decoder.weights import Dense, Product
from triptych.models.quantised import Scaled, from_fp8, padded, product, quantise_rows, quantise_weight

try:
    from triptych.models.kernels import fp8 as kernels
except ImportError as error:  # Triton comes with torch for GPUs alone
    _why_no_kernel: ImportError | None = error
else:
    _why_no_kernel = None

log = logging.getLogger(__name__)

Cut = Callable[[Tensor, int], Scaled]  # rows in 8 bits, with zeros behind up to a width
MakeProduct = Callable[[Scaled, Tensor | None], Product]

TILE = 16  # sides of what the matrix units take are multiples of it

# Of the largest number, between products of the same 8-bit numbers. The units add up in fewer than 24 bits.
_LARGEST_DIFFERENCE = {torch.bfloat16: 2e-2, torch.float16: 1e-2, torch.float32: 5e-3}


class Converter:
    """Makes dense products into products of 8-bit numbers, for one device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Waits for the device, on which each way to multiply is tried once."""
        self._make: MakeProduct = HostProduct
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._make = choose_product(device, dtype)

    def __call__(self, dense: Dense, name: str) -> Product:
        """Raises ConfigError, with the name, for a weight that is not finite. Waits for the device."""
        return self._make(quantise_weight(dense.weight, name), dense.bias)


class HostProduct:
    """A Product in float32, on the CPU: sums of 8-bit numbers' products are exact to the last few bits."""

    def __init__(self, weight: Scaled, bias: Tensor | None) -> None:
        self._linear = CpuLinear(from_fp8(weight.numbers, torch.float32))
        self._scales = weight.scales
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = quantise_rows(x)
        sums = self._linear(from_fp8(rows.numbers, torch.float32))
        made = sums.mul_(rows.scales[:, None]).mul_(self._scales)
        return (made if self._bias is None else made.add_(self._bias)).to(x.dtype)


class WidenedProduct:
    """A Product on any device, which widens the weight each time. In float16 there is no room for the sums."""

    def __init__(self, weight: Scaled, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = quantise_rows(x)
        wide = x.dtype if x.dtype == torch.bfloat16 else torch.float32
        return product(rows.widened(wide), self._weight.widened(wide), self._bias, x.dtype)


class ScaledProduct:
    """A Product of 8-bit matrix units, for which a GPU of capability 9.0 has room for any number of rows."""

    def __init__(self, weight: Scaled, bias: Tensor | None, cut: Cut) -> None:
        self._outputs = len(weight.numbers)
        full = padded(weight, TILE)
        self._width = full.numbers.shape[1]
        self._numbers = full.numbers.t()  # columns that follow one another, as the units want the second matrix
        self._scales = full.scales[None]
        self._bias = bias
        self._cut = cut

    def __call__(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty(0, self._outputs)
        rows = self._cut(x, self._width)
        made: Tensor = torch._scaled_mm(
            rows.numbers,
            self._numbers,
            scale_a=rows.scales[:, None],
            scale_b=self._scales,
            out_dtype=x.dtype,
            # The fast way keeps 14 bits of a sum: 19,000 products of one sign came to four fifths of what they are.
            use_fast_accum=False,
        )
        if made.shape[1] != self._outputs:
            made = made[:, : self._outputs].contiguous()
        return made if self._bias is None else made.add_(self._bias)


def plain_cut(x: Tensor, width: int) -> Scaled:
    """A Cut in torch, on any device."""
    rows = quantise_rows(x)
    wide = padded(rows, TILE)
    assert wide.numbers.shape[1] == width, (wide.numbers.shape, width)
    return Scaled(wide.numbers[: len(x)], rows.scales)


def choose_product(device: torch.device, dtype: torch.dtype) -> MakeProduct:
    """The fastest way to multiply that gives on a small example what plain arithmetic gives; warns if it is slow.

    The device has to be the current one.
    """
    cuts: list[tuple[str, Cut]] = [("torch's own kernels", plain_cut)]
    if _why_no_kernel is None:
        cuts.insert(0, ("one kernel", kernels.quantise_rows))
    reasons = [] if _why_no_kernel is None else [str(_why_no_kernel)]
    for name, cut in cuts:

        def make(weight: Scaled, bias: Tensor | None, cut: Cut = cut) -> Product:
            return ScaledProduct(weight, bias, cut)

        wrong = what_is_wrong(make, device, dtype)
        if not wrong:
            if reasons:
                log.warning("activations are cut to 8 bits by %s, which costs time: %s", name, "; ".join(reasons))
            return make
        reasons.append(f"by {name}, {wrong}")
    log.warning("8-bit weights are widened for each product, which costs time: %s", "; ".join(reasons))
    return WidenedProduct


def what_is_wrong(make: MakeProduct, device: torch.device, dtype: torch.dtype) -> str:
    """How its products of few rows and many differ from plain arithmetic's; empty where they do not."""
    draw = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(*shape, generator=draw) for shape in ((200, 328), (200,), (77, 328)))
    scaled, bias, x = quantise_weight(weight), bias.to(dtype), x.to(dtype)
    wanted = HostProduct(scaled, bias)(x).float()
    on_device = Scaled(scaled.numbers.to(device), scaled.scales.to(device))
    try:
        made = make(on_device, bias.to(device))
        found = [made(x[:rows].to(device)).float().cpu() for rows in (1, 77)]
    except Exception as error:  # a library may refuse in any way
        return f"it ended in {error!r}"
    for each in found:
        apart = float((each - wanted[: len(each)]).abs().max() / wanted.abs().max())
        if not apart <= _LARGEST_DIFFERENCE[dtype]:  # NaN is not, either
            return f"it is {apart:.2g} of the largest number apart"
    return ""
