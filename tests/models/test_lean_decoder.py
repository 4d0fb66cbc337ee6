"""The lean decoder's logits are those of transformers' modules, in whatever steps the tokens come."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_checkpoint
from tests.models.decoders import CPU, FAMILIES, lean_copy, lean_decoder, stock_model
from tests.models.stepper import BLOCK_SIZE, Stepper, Stepping
from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.base import DecodeInputs, GraphLanguageModel, LanguageModel, PagedInputs
from triptych.models.card import ModelCard, load_card
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.loading import load_language
from triptych.models.qwen2_5_vl.language import Qwen25VLLanguage

TOLERANCE = 1e-4
LENGTHS = (33, 5, 70, 16)
CHOICES = ("auto", "lean", "generic")


def prompts(model: LanguageModel, axes: bool = False) -> list[Stepping]:
    """Random tokens; with axes the three rope positions differ, as inside an image."""
    made = []
    for seed, length in enumerate(LENGTHS):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(7, model.vocab_size, (length,), generator=generator)
        positions = np.tile(np.arange(length), (3, 1))
        if axes:
            positions[1:, 2 : length // 2] = np.random.default_rng(seed).integers(0, 9, (2, length // 2 - 2))
        made.append(Stepping(model.embed(ids), positions))
    return made


def mixed_logits(model: LanguageModel, chunks: Sequence[Sequence[int]], axes: bool = False) -> Tensor:
    """Behind each stretch of steps in which sequences take so many tokens; 0: it sits this one out."""
    stepper, sequences = Stepper(model, 24), prompts(model, axes)
    rows = []
    for counts in chunks:
        rows.append(stepper.step([(each, n) for each, n in zip(sequences, counts, strict=True) if n]))
    return torch.cat(rows)


STEPS = [(20, 5, 0, 1), (12, 0, 40, 14), (1, 0, 29, 0), (0, 0, 1, 1)]  # first and later chunks beside branches


@pytest.mark.parametrize("host", [True, False], ids=["for the CPU", "for GPUs"])
@pytest.mark.parametrize("axes", [False, True], ids=["text", "images"])
def test_its_logits_are_the_generic_decoders(folder: Path, axes: bool, host: bool) -> None:
    generic = load_language(load_card(str(folder), "auto"), CPU, "auto", LanguageSettings(decoder="generic"))
    assert isinstance(generic, Qwen25VLLanguage)
    expected = mixed_logits(generic, STEPS, axes)
    found = mixed_logits(lean_decoder(folder, host=host), STEPS, axes)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("host", [True, False], ids=["for the CPU", "for GPUs"])
@pytest.mark.parametrize("family", FAMILIES)
def test_its_logits_are_those_of_transformers_causal_models(family: str, host: bool) -> None:
    stock = stock_model(FAMILIES[family])
    found = mixed_logits(lean_copy(stock, host), [LENGTHS])
    for seed, (length, row) in enumerate(zip(LENGTHS, found, strict=True)):
        ids = torch.randint(7, stock.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected = stock(input_ids=ids).logits[0, -1]
        torch.testing.assert_close(row, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_beside_branches_give_what_whole_prompts_give(family: str) -> None:
    model = lean_copy(stock_model(FAMILIES[family]))
    whole, mixed = mixed_logits(model, [LENGTHS]), mixed_logits(model, STEPS)
    ends = [6, 1, 8, 9]  # rows of `mixed` behind the last token of each
    torch.testing.assert_close(mixed[ends], whole, atol=TOLERANCE, rtol=0)


def decode_inputs(
    model: LanguageModel, stepper: Stepper, sequences: Sequence[Stepping], ids: Sequence[int]
) -> DecodeInputs:
    """The next token of each, and between them rows that stand for nobody, whose block tables name others' blocks."""
    rows = len(sequences) + 2
    width = max(len(each.blocks) for each in sequences) + 3
    tables = torch.ones(rows, width, dtype=torch.int32)
    numbers = {"token_ids": [3] * rows, "at": [0] * rows, "slots": [-1] * rows, "kv": [0] * rows}
    for row, (each, token) in enumerate(zip(sequences, ids, strict=True), start=1):
        if each.done // BLOCK_SIZE == len(each.blocks):
            each.blocks.append(stepper._free.pop())
        tables[row, : len(each.blocks)] = torch.tensor(each.blocks)
        slot = each.blocks[each.done // BLOCK_SIZE] * BLOCK_SIZE + each.done % BLOCK_SIZE
        numbers["token_ids"][row], numbers["at"][row] = token, int(each.positions[:, : each.done].max()) + 1
        numbers["slots"][row], numbers["kv"][row] = slot, each.done + 1
    return DecodeInputs(
        token_ids=torch.tensor(numbers["token_ids"]),
        positions=torch.tensor(numbers["at"]).expand(3, -1).contiguous(),
        slots=torch.tensor(numbers["slots"]),
        kv_lengths=torch.tensor(numbers["kv"], dtype=torch.int32),
        block_tables=tables,
    )


def decoded(model: GraphLanguageModel) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of one token behind each prompt by `decode` and by `forward`, and of the slab what they disagree on."""
    ids, slabs, logits = [9, 11, 30, 64], [], []
    for by_tensors in (True, False):
        stepper, sequences = Stepper(model, 24), prompts(model)
        stepper.step([(each, each.num_tokens) for each in sequences])
        if by_tensors:
            inputs = decode_inputs(model, stepper, sequences, ids)
            logits.append(model.decode(inputs, stepper.slab)[1:-1])
        else:
            for each, token in zip(sequences, ids, strict=True):
                stepper.extend(each, token)
            logits.append(stepper.step([(each, 1) for each in sequences]))
        slabs.append(stepper.slab)
    return logits[0], logits[1], slabs[0].nan_to_num(-9.0) - slabs[1].nan_to_num(-9.0)


@pytest.mark.parametrize("host", [True, False], ids=["for the CPU", "for GPUs"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_step_told_by_tensors_gives_what_one_told_on_the_host_gives(family: str, host: bool) -> None:
    found, expected, slabs_apart = decoded(lean_copy(stock_model(FAMILIES[family]), host))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert float(slabs_apart.abs().max()) <= TOLERANCE, "a row that stands for nobody wrote something"


def whole_prompt(length: int, asked: Sequence[int], deepstack: Tensor | None = None) -> PagedInputs:
    """One prompt in a step of its own, in the first blocks of a slab."""
    at = torch.arange(length)
    table = torch.arange(-(-length // BLOCK_SIZE))[None]
    logits_at = torch.tensor(asked, dtype=torch.int64)
    return PagedInputs(at.expand(3, -1).contiguous(), at, (length,), (length,), table, logits_at, deepstack)


def random_ids(model: LanguageModel, length: int) -> Tensor:
    return torch.randint(7, model.vocab_size, (length,), generator=torch.Generator().manual_seed(1))


def unwritten_slab(model: LanguageModel) -> Tensor:
    return torch.full(model.kv.slab_shape(3, BLOCK_SIZE), torch.nan)


@pytest.mark.parametrize("host", [True, False], ids=["for the CPU", "for GPUs"])
def test_logits_come_for_the_tokens_that_are_asked_for_and_keys_are_written_for_all(host: bool) -> None:
    model = lean_copy(stock_model(FAMILIES["qwen2"]), host)
    embeddings = model.embed(random_ids(model, 40))
    slabs = [unwritten_slab(model) for _ in range(3)]
    every = model.forward(embeddings, whole_prompt(40, range(40)), slabs[0])
    some = model.forward(embeddings, whole_prompt(40, [39, 7, 7]), slabs[1])
    none = model.forward(embeddings, whole_prompt(40, []), slabs[2])
    torch.testing.assert_close(some, every[[39, 7, 7]], atol=TOLERANCE, rtol=0)
    assert none.shape == (0, model.vocab_size)
    for slab in slabs[1:]:
        torch.testing.assert_close(slab, slabs[0], atol=TOLERANCE, rtol=0, equal_nan=True)


@pytest.mark.parametrize("host", [True, False], ids=["for the CPU", "for GPUs"])
def test_rows_for_early_layers_are_added_behind_them(host: bool) -> None:
    stock = stock_model(FAMILIES["qwen3"])
    model = lean_copy(stock, host)
    ids = random_ids(model, 12)
    deeper = torch.randn(2, 12, model.hidden_size, generator=torch.Generator().manual_seed(2))
    for layer, rows in zip(stock.model.layers[:2], deeper, strict=True):
        layer.register_forward_hook(lambda module, given, made, rows=rows: made + rows)
    with torch.no_grad():
        expected = stock(input_ids=ids[None]).logits[0]
    found = model.forward(model.embed(ids), whole_prompt(12, range(12), deeper), unwritten_slab(model))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_what_it_is_given_stays_as_it_is() -> None:
    model = lean_copy(stock_model(FAMILIES["qwen2"]))
    embeddings = model.embed(random_ids(model, 20))
    before = embeddings.clone()
    model.forward(embeddings, whole_prompt(20, [19]), unwritten_slab(model))
    assert torch.equal(embeddings, before)
    model.embed(torch.tensor([8])).fill_(7.0)  # as image rows are laid over it
    assert not (model.embed(torch.tensor([8])) == 7.0).any()


def changed(source: Path, target: Path, **change: Any) -> ModelCard:
    """The checkpoint with another decoder's part in its config.json."""
    folder = shutil.copytree(source, target)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    return load_card(str(folder), "auto")


def test_the_settings_choose_the_decoder(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    card = load_card(str(folder), "auto")
    kinds = {choice: type(load_language(card, CPU, "auto", LanguageSettings(decoder=choice))) for choice in CHOICES}
    assert kinds == {"auto": LeanDecoder, "lean": LeanDecoder, "generic": Qwen25VLLanguage}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_model_it_does_not_know_is_left_to_the_generic_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    card = changed(random_checkpoint(), tmp_path / "m", hidden_act="gelu")
    assert isinstance(load_language(card, CPU), Qwen25VLLanguage)
    assert "hidden_act is 'gelu', known: silu" in caplog.text
    with pytest.raises(ConfigError, match=r"decoder is lean, which cannot be had: hidden_act .*; set auto or generic"):
        load_language(card, CPU, "auto", LanguageSettings(decoder="lean"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_its_logits_are_as_near_as_the_generic_decoders(folder: Path, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    card = load_card(str(folder), name)
    exact = mixed_logits(lean_decoder(folder), [LENGTHS])
    found, generic = (
        mixed_logits(load_language(card, CPU, name, LanguageSettings(decoder=choice)), [LENGTHS])
        for choice in ("lean", "generic")
    )
    assert float((found - exact).norm()) <= 1.3 * float((generic - exact).norm())
