"""Weights and KV in 8 bits on a GPU: the CPU's bytes, products by the matrix units, and no wait for the host."""

import logging
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED
from tests.gpu.waits import no_host_synchronisation
from tests.models.test_fp8_decoder import BOTH, FP8_KV, FP8_WEIGHTS, STEPS, WHOLE, apart, logits
from tests.models.test_quantised import exact_values, noise, numbers_to_round
from triptych.config import LanguageSettings
from triptych.models.base import DecodeInputs
from triptych.models.card import load_card
from triptych.models.decoder.fp8 import Converter, HostProduct, ScaledProduct, choose_product
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.weights import Dense
from triptych.models.kernels import fp8
from triptych.models.loading import load_language
from triptych.models.quantised import padded, quantise_rows, quantise_weight, to_fp8

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SMALL = [FP8_KV, FP8_WEIGHTS, BOTH]
# Outputs and inputs of a 7B decoder's products, and odd ones.
SHAPES = [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (200, 328)]
# Row 0 of the two matrices is the same, so a sum of one sign is among them: what units lose that add in 14 bits.
ERRORS = {torch.float32: 5e-3, torch.bfloat16: 6e-3, torch.float16: 5e-3}


def test_torch_on_a_gpu_rounds_as_on_the_cpu() -> None:
    numbers = torch.cat([numbers_to_round(), torch.tensor([torch.inf, -torch.inf, torch.nan])])
    found, wanted = to_fp8(numbers.to(CUDA)).cpu(), to_fp8(numbers)
    assert torch.equal(found.float().nan_to_num(nan=999), wanted.float().nan_to_num(nan=999))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 40, 3584, 18944])
def test_the_kernel_makes_the_cpus_bytes(width: int, dtype: torch.dtype) -> None:
    matrix = noise(33, width, dtype=dtype)
    matrix[1], matrix[2, -1], matrix[3, 0] = 0, torch.nan, torch.inf
    wide = -(-width // 16) * 16
    found, wanted = fp8.quantise_rows(matrix.to(CUDA), wide), padded(quantise_rows(matrix), 16)
    assert torch.equal(found.scales.cpu().nan_to_num(nan=-1), wanted.scales[:33].nan_to_num(nan=-1))
    sound = [0, 1, *range(4, 33)]
    made = found.numbers.view(torch.uint8).cpu()
    assert torch.equal(made[sound], wanted.numbers.view(torch.uint8)[:33][sound])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fastest_way_passes_its_trial(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = choose_product(CUDA, dtype)(quantise_weight(noise(64, 32).to(CUDA)), None)
    assert isinstance(made, ScaledProduct)
    assert caplog.text == "", "nothing is slow here"


@pytest.mark.parametrize("rows", [1, 7, 64, 300])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_8_bit_numbers(shape: tuple[int, int], rows: int) -> None:
    weight, bias, x = (noise(*sides, dtype=torch.bfloat16) for sides in (shape, shape[:1], (rows, shape[1])))
    product = Converter(CUDA, torch.bfloat16)(Dense(weight.to(CUDA), bias.to(CUDA)), "w")
    found = product(x.to(CUDA)).double().cpu()
    wanted = exact_values(quantise_rows(x)) @ exact_values(quantise_weight(weight)).T + bias.double()
    assert float((found - wanted).norm() / wanted.norm()) < ERRORS[torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gpus_products_are_the_cpus(dtype: torch.dtype) -> None:
    scaled, bias, x = quantise_weight(noise(200, 328)), noise(200, dtype=dtype), noise(40, 328, dtype=dtype)
    wanted = HostProduct(scaled, bias)(x).double()
    found = Converter(CUDA, dtype)(Dense(noise(200, 328).to(CUDA), bias.to(CUDA)), "w")(x.to(CUDA)).double().cpu()
    assert float((found - wanted).norm() / wanted.norm()) < ERRORS[dtype]


def test_no_tokens_make_no_rows() -> None:
    product = Converter(CUDA, torch.bfloat16)(Dense(noise(200, 328, dtype=torch.bfloat16).to(CUDA)), "w")
    assert product(torch.empty(0, 328, dtype=torch.bfloat16, device=CUDA)).shape == (0, 200)


def test_a_row_is_computed_alone() -> None:
    product = Converter(CUDA, torch.bfloat16)(Dense(noise(4608, 3584, dtype=torch.bfloat16).to(CUDA)), "w")
    x = noise(64, 3584, dtype=torch.bfloat16).to(CUDA)
    x[3, 7], x[9] = torch.nan, 1e4
    together, quiet = product(x), noise(64, 3584, dtype=torch.bfloat16).to(CUDA)
    assert together[3].isnan().all()
    others = [row for row in range(64) if row not in (3, 9)]
    assert torch.equal(together[others], product(quiet)[others])


def decoder(dtype: str, settings: LanguageSettings) -> LeanDecoder:
    model = load_language(load_card(str(EMBEDDED), "auto"), CUDA, dtype, settings)
    assert isinstance(model, LeanDecoder)
    return model


def gpu_logits(model: LeanDecoder, steps: Any) -> list[Tensor]:
    embed = model.embed
    model.embed = lambda ids: embed(ids.to(CUDA))  # type: ignore[method-assign]  # ids are drawn on the CPU
    return [row.cpu() for row in logits(model, steps)]


@pytest.mark.parametrize("settings", SMALL, ids=lambda each: each.precision)
def test_a_decoder_in_8_bits_is_near_the_one_in_float32(
    settings: LanguageSettings, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = gpu_logits(decoder("float32", LanguageSettings()), WHOLE)
    with caplog.at_level(logging.WARNING):
        model = decoder("bfloat16", settings)
    assert "costs time" not in caplog.text
    assert 1e-3 < apart(gpu_logits(model, WHOLE), wanted) < 0.2
    assert apart(gpu_logits(decoder("bfloat16", settings), STEPS), wanted) < 0.2


@pytest.mark.parametrize("settings", SMALL, ids=lambda each: each.precision)
def test_decoding_is_recorded_and_waits_for_nobody(settings: LanguageSettings) -> None:
    model = decoder("bfloat16", settings)
    assert model.recordable
    slab = torch.zeros(model.kv.slab_shape(8, 16), device=CUDA).to(model.kv.dtype)
    make = partial(torch.tensor, device=CUDA)
    inputs = DecodeInputs(
        token_ids=make([9, 11, 7, 7]),
        positions=make([[0, 0, 0, 0]] * 3),
        slots=make([16, 32, -1, -1]),
        kv_lengths=make([1, 1, 0, 0], dtype=torch.int32),
        block_tables=make([[1, 3], [2, 4], [0, 0], [0, 0]], dtype=torch.int32),
    )
    wanted = model.decode(inputs, slab).clone()
    with no_host_synchronisation():
        model.decode(inputs, slab)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        found = model.decode(inputs, slab)
    graph.replay()
    assert torch.equal(found[:2], wanted[:2])
    inputs.token_ids.copy_(make([11, 9, 7, 7]))
    graph.replay()
    assert torch.equal(found[:2], wanted[[1, 0]]), "a row does not depend on where it stands"
