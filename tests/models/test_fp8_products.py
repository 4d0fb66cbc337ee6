"""Products of 8-bit weights: every way to multiply gives the same, tokens stand alone, and a slow way says so."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.test_quantised import DTYPES, apart, exact_values, noise
from triptych.errors import ConfigError
from triptych.models.decoder import fp8
from triptych.models.decoder.fp8 import Converter, HostProduct, ScaledProduct, WidenedProduct, plain_cut, what_is_wrong
from triptych.models.decoder.weights import Dense, Product
from triptych.models.quantised import Scaled, quantise_rows, quantise_weight

CPU = torch.device("cpu")
SHAPES = [(64, 48), (33, 20), (1, 1), (130, 257)]  # outputs and inputs


def by_scaled_mm(weight: Scaled, bias: Tensor | None) -> Product:
    return ScaledProduct(weight, bias, plain_cut)


WAYS: dict[str, fp8.MakeProduct] = {"host": HostProduct, "widened": WidenedProduct, "scaled": by_scaled_mm}
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_product_is_that_of_8_bit_numbers_in_float64(way: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias, x = noise(*shape), noise(shape[0], seed=1, dtype=dtype), noise(7, shape[1], seed=2, dtype=dtype)
    for offset in (None, bias):
        scaled = quantise_weight(weight)
        found = WAYS[way](scaled, offset)(x)
        wanted = exact_values(quantise_rows(x)) @ exact_values(scaled).T + (0 if offset is None else offset.double())
        assert (found.dtype, found.shape) == (dtype, (7, shape[0]))
        assert found.is_contiguous(), "kernels take rows that follow one another"
        assert apart(found, wanted) < ERRORS[dtype]


@pytest.mark.parametrize("way", WAYS)
def test_a_token_is_computed_alone(way: str) -> None:
    made = WAYS[way](quantise_weight(noise(48, 64)), None)
    x = noise(33, 64, seed=1)
    x[3, 5], x[8] = torch.nan, 1e4
    together = made(x)
    assert together[3].isnan().all()
    for row in (0, 4, 8, 32):
        torch.testing.assert_close(together[row], made(x[row : row + 1])[0], rtol=1e-6, atol=1e-6)


def cut_of_some(x: Tensor, width: int) -> Scaled:
    """As a GPU does it: nothing can be launched over no rows."""
    assert len(x), "no rows"
    return plain_cut(x, width)


@pytest.mark.parametrize("way", WAYS)
def test_no_tokens_make_no_rows(way: str) -> None:
    weight = quantise_weight(noise(33, 20))
    product = ScaledProduct(weight, None, cut_of_some) if way == "scaled" else WAYS[way](weight, None)
    assert product(noise(0, 20)).shape == (0, 33)


def test_a_weight_that_is_not_finite_is_refused_by_its_name() -> None:
    weight = noise(4, 8)
    weight[1, 2] = torch.inf
    with pytest.raises(ConfigError, match="layer 7's down has 1 rows with numbers that are not finite"):
        Converter(CPU, torch.float32)(Dense(weight), "layer 7's down")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_way_to_multiply_passes_its_trial(dtype: torch.dtype) -> None:
    assert {name: what_is_wrong(make, CPU, dtype) for name, make in WAYS.items()} == dict.fromkeys(WAYS, "")


def test_a_trial_tells_wrong_products_from_right_ones() -> None:
    def off_by_a_scale(weight: Scaled, bias: Tensor | None) -> Product:
        return HostProduct(Scaled(weight.numbers, weight.scales * 1.1), bias)

    def without_bias(weight: Scaled, bias: Tensor | None) -> Product:
        return HostProduct(weight, None)

    def not_a_number(weight: Scaled, bias: Tensor | None) -> Product:
        return HostProduct(weight, torch.full((200,), torch.nan))

    def not_there(weight: Scaled, bias: Tensor | None) -> Product:
        raise NotImplementedError("no such instruction")

    for make in (off_by_a_scale, without_bias, not_a_number):
        assert "of the largest number apart" in what_is_wrong(make, CPU, torch.float32)
    assert "no such instruction" in what_is_wrong(not_there, CPU, torch.float32)


def broken_kernel(x: Tensor, width: int) -> Scaled:
    cut = plain_cut(x, width)
    return Scaled(cut.numbers, cut.scales * 2)


def test_the_kernel_is_passed_over_where_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(fp8.kernels, "quantise_rows", broken_kernel)
    with caplog.at_level(logging.WARNING):
        made = fp8.choose_product(CPU, torch.float32)(quantise_weight(noise(16, 16)), None)
    assert isinstance(made, ScaledProduct)
    assert "by one kernel, it is" in caplog.text


def test_weights_are_widened_with_a_warning_where_nothing_multiplies_8_bits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("needs a device of compute capability 8.9 or more")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    with caplog.at_level(logging.WARNING):
        assert fp8.choose_product(CPU, torch.float32) is WidenedProduct
    assert "widened for each product, which costs time" in caplog.text
    assert "capability 8.9" in caplog.text
