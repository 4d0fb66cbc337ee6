"""The lean decoder on a GPU: it is what serves, it equals the generic one, and its decode steps can be recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.gpu.test_models import CUDA, mixed_step
from tests.gpu.waits import no_host_synchronisation
from triptych.config import LanguageSettings
from triptych.models.base import DecodeInputs, LanguageModel, PagedInputs
from triptych.models.card import load_card
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.trial import what_is_wrong
from triptych.models.kernels.choice import PLAIN, choose_kernels, fused_kernels
from triptych.models.loading import load_language

pytestmark = pytest.mark.gpu

DTYPES = ["float32", "bfloat16", "float16"]
BLOCK_SIZE = 16
ROWS = 8


@pytest.fixture(params=["random", "embedded"])
def folder(request: pytest.FixtureRequest) -> Path:
    return random_checkpoint() if request.param == "random" else EMBEDDED


def decoder_of(folder: Path, dtype: str, decoder: str = "lean") -> LanguageModel:
    return load_language(load_card(str(folder), dtype), CUDA, dtype, LanguageSettings(decoder=decoder))


def lean_of(folder: Path, dtype: str) -> LeanDecoder:
    made = decoder_of(folder, dtype, "auto")
    assert isinstance(made, LeanDecoder), "its trial was not passed: see the warning"
    return made


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_passes_its_trial_with_every_kernel_fused(folder: Path, dtype: str) -> None:
    decoder = lean_of(folder, dtype)
    assert decoder.kernels == fused_kernels()
    assert what_is_wrong(decoder, BLOCK_SIZE) == ""
    assert what_is_wrong(decoder, 32) == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gated_product_of_a_token_is_the_same_without_its_neighbours(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(*shape, generator=generator).to(CUDA, dtype) for shape in ((64, 256), (2 * 192, 256)))
    gated = fused_kernels().gated
    together = gated(x, weight)
    for tokens in (1, 2, 16, 17, 33):
        assert torch.equal(gated(x[:tokens].contiguous(), weight), together[:tokens])


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_logits_are_no_farther_from_float32_than_the_generic_decoders(
    folder: Path, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    found, generic = (stepped(decoder_of(folder, dtype, kind)) for kind in ("lean", "generic"))
    exact = stepped(decoder_of(folder, "float32", "generic"))
    lean_error, generic_error = ((each - exact).norm() / exact.norm() for each in (found, generic))
    record_property("lean_error", float(lean_error))
    record_property("generic_error", float(generic_error))
    record_property("largest_logit_error", float((found - exact).abs().max()))
    gaps = exact.topk(2, dim=-1).values.diff(dim=-1).abs()[:, 0]
    clear = gaps > 4 * (found - exact).abs().max(dim=-1).values
    assert torch.equal(found.argmax(-1)[clear], exact.argmax(-1)[clear])
    assert float(lean_error) <= max(1.3 * float(generic_error), 5e-5)


def stepped(model: LanguageModel) -> Tensor:
    """Logits of a mixed step whose earlier keys are the same for every decoder and dtype."""
    torch.manual_seed(0)
    embeddings, inputs, slab = mixed_step(model)
    return model.forward(embeddings, inputs, slab)


def decode_inputs(device: torch.device, width: int = 6) -> DecodeInputs:
    """Branches of several lengths over blocks of their own, with rows between them that stand for nobody."""
    lengths = torch.tensor([33, 0, 80, 1, 16, 0, 96, 17], dtype=torch.int32)
    tables = torch.arange(ROWS * width, dtype=torch.int32).flip(0).view(ROWS, width)
    at = (lengths.long() - 1).clamp(min=0)
    slots = tables.gather(1, (at // BLOCK_SIZE)[:, None])[:, 0].long() * BLOCK_SIZE + at % BLOCK_SIZE
    slots[lengths == 0] = -1
    numbers = torch.arange(7, 7 + ROWS), at.expand(3, -1).contiguous(), slots, lengths, tables
    return DecodeInputs(*(each.to(device) for each in numbers))


def slab_of(model: LanguageModel) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(model.kv.slab_shape(ROWS * 6, BLOCK_SIZE), device=CUDA).to(model.kv.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decode_step_told_by_tensors_equals_one_told_on_the_host(folder: Path, dtype: str) -> None:
    decoder, inputs = lean_of(folder, dtype), decode_inputs(CUDA)
    slabs = slab_of(decoder), slab_of(decoder)
    found = decoder.decode(inputs, slabs[0])
    there = (inputs.kv_lengths > 0).nonzero()[:, 0]
    told = PagedInputs(
        positions=inputs.positions[:, there],
        slots=inputs.slots[there],
        query_lengths=(1,) * len(there),
        kv_lengths=tuple(inputs.kv_lengths[there].tolist()),
        block_tables=inputs.block_tables[there].long(),
        logits_at=torch.arange(len(there), device=CUDA),
    )
    expected = decoder.forward(decoder.embed(inputs.token_ids[there]), told, slabs[1])
    tolerance = 1e-3 if dtype == "float32" else 0.1 * float(expected.std())
    torch.testing.assert_close(found[there], expected, atol=tolerance, rtol=0)
    assert float((slabs[0].float() - slabs[1].float()).abs().max()) <= tolerance, "a row for nobody wrote something"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_recorded_step_gives_what_an_eager_one_gives_for_whatever_lies_in_its_inputs(
    folder: Path, dtype: str
) -> None:
    decoder = lean_of(folder, dtype)
    assert decoder.recordable, f"{decoder.attention(BLOCK_SIZE).name}: a trial at start has failed, see the warnings"
    static, slab = decode_inputs(CUDA), slab_of(decoder)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(2):
            decoder.decode(static, slab)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            logits = decoder.decode(static, slab)
    stream.synchronize()
    for shift in (0, 3, 5):
        fresh = decode_inputs(CUDA)
        rolled = replace(
            fresh,
            token_ids=fresh.token_ids.roll(shift),
            positions=fresh.positions.roll(shift, 1),
            slots=fresh.slots.roll(shift),
            kv_lengths=fresh.kv_lengths.roll(shift),
            block_tables=fresh.block_tables.roll(shift, 0),
        )
        for name in ("token_ids", "positions", "slots", "kv_lengths", "block_tables"):
            getattr(static, name).copy_(getattr(rolled, name))
        slab.copy_(slab_of(decoder))
        graph.replay()
        expected = decoder.decode(rolled, slab_of(decoder))
        there = rolled.kv_lengths > 0
        torch.testing.assert_close(logits[there], expected[there], atol=0.02 * float(expected[there].std()), rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_kind_of_step_waits_for_the_device(folder: Path, dtype: str) -> None:
    decoder, inputs = lean_of(folder, dtype), decode_inputs(CUDA)
    step, slab = mixed_step(decoder), slab_of(decoder)

    def run() -> None:
        decoder.forward(*step)
        if decoder.recordable:
            decoder.decode(inputs, slab)

    run()
    with no_host_synchronisation():
        run()


def test_dummy_weights_are_drawn_on_the_device_and_pass_the_trial(folder: Path) -> None:
    card = load_card(str(folder), "bfloat16", load_format="dummy")
    decoders = [load_language(card, CUDA, "bfloat16") for _ in range(2)]
    assert all(isinstance(each, LeanDecoder) for each in decoders)
    ids = torch.arange(7, 40, device=CUDA)
    assert torch.equal(decoders[0].embed(ids), decoders[1].embed(ids))


def test_plain_kernels_make_the_same(folder: Path) -> None:
    decoder = lean_of(folder, "float32")
    fused = stepped(decoder)
    assert choose_kernels(CUDA, torch.float32) == fused_kernels()
    decoder.kernels = PLAIN
    for layer in decoder.layers:
        layer.kernels = PLAIN  # type: ignore[attr-defined]
    torch.testing.assert_close(stepped(decoder), fused, atol=1e-3, rtol=0)
