"""Packed products are torch's own but for rounding, and no row depends on how many there are."""

import platform
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.cpu_linear import CpuLinear, can_pack

Products = Callable[[CpuLinear, Tensor, Tensor], Tensor]
PRODUCTS: dict[str, tuple[Products, Callable[[Tensor, Tensor], Tensor]]] = {
    "alone": (lambda layer, x, _: layer(x), lambda product, _: product),
    "silu": (lambda layer, x, _: layer.silu(x), lambda product, _: functional.silu(product)),
    "times": (lambda layer, x, other: layer.times(x, other), lambda product, other: product * other),
    "plus": (lambda layer, x, other: layer.plus(x, other), lambda product, other: product + other),
}
SIZES = [(1, 8, 8), (5, 24, 40), (64, 256, 96), (333, 48, 1000)]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["packed", "plain"])
def pack(request: pytest.FixtureRequest) -> bool:
    if request.param == "packed" and not can_pack(torch.zeros(1, 1)):
        pytest.skip("this torch has no packed products")
    return bool(request.param == "packed")


def test_the_torch_that_we_test_with_has_packed_products() -> None:
    """Else the tests of them skip, and nobody hears that the CPU has become slow."""
    if platform.machine() == "x86_64" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        assert can_pack(torch.zeros(1, 1))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_every_product_equals_its_formula_in_float64(pack: bool, name: str, with_bias: bool) -> None:
    product, formula = PRODUCTS[name]
    for seed, (rows, inputs, outputs) in enumerate(SIZES):
        x, weight, other = drawn(seed, rows, inputs), drawn(seed + 9, outputs, inputs), drawn(seed + 99, rows, outputs)
        bias = drawn(seed + 999, outputs) if with_bias else None
        before = other.clone()
        found = product(CpuLinear(weight, bias, pack=pack), x, other)
        exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        expected = formula(exact, other.double())
        assert found.shape == (rows, outputs)
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max(), (rows, inputs, outputs)
        assert torch.equal(other, before)


def test_layers_of_one_input_are_joined_in_their_order(pack: bool) -> None:
    x, weights, biases = drawn(1, 7, 16), [drawn(2, 8, 16), drawn(3, 24, 16)], [drawn(4, 8), drawn(5, 24)]
    found = CpuLinear.joined(weights, biases, pack=pack)(x)
    expected = torch.cat([functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], dim=-1)
    torch.testing.assert_close(found, expected)
    with pytest.raises(AssertionError):
        CpuLinear.joined(weights, [biases[0], None])


def test_leading_axes_and_strides_are_taken_as_torch_takes_them(pack: bool) -> None:
    weight, whole = drawn(1, 8, 16), drawn(2, 3, 5, 40)
    x = whole[..., 4:20]
    torch.testing.assert_close(CpuLinear(weight, pack=pack)(x), functional.linear(x, weight))
    torch.testing.assert_close(
        CpuLinear(weight, pack=pack)(drawn(3, 16, 6).t()), functional.linear(drawn(3, 16, 6).t(), weight)
    )


@pytest.mark.skipif(not can_pack(torch.zeros(1, 1)), reason="this torch has no packed products")
def test_a_row_does_not_depend_on_how_many_rows_there_are() -> None:
    x, layer = drawn(1, 300, 64), CpuLinear(drawn(2, 192, 64), drawn(3, 192))
    whole = layer(x)
    for rows in (1, 2, 3, 16, 17, 64, 299):
        assert torch.equal(layer(x[:rows]), whole[:rows]), rows


def test_other_dtypes_keep_torchs_product() -> None:
    weight = drawn(1, 8, 16).to(torch.bfloat16)
    layer = CpuLinear(weight)
    assert not layer.is_packed
    assert torch.equal(layer(weight), functional.linear(weight, weight))
