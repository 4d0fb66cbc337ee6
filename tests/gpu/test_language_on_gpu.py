"""The language engine on a GPU: the same answers, no wait inside a step, and memory that three streams share safely."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_checkpoint
from tests.engine.prompts import layout_of, picture, rows_of, user
from tests.engine.rig import GREEDY, Asked, running
from tests.engine.test_storm import Answers, ids_of, storm
from tests.reference import Reference, compare
from triptych.engine.batch import chunk_stretch, decode_stretch
from triptych.engine.fuse import Overlay
from triptych.engine.penalties import Draw
from triptych.engine.plan import Chunk
from triptych.engine.runner import Runner
from triptych.engine.sequence import DecodeSequence, PrefillSequence
from triptych.errors import TriptychError
from triptych.journey import RequestId
from triptych.models.base import LanguageModel
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_language, load_tower
from triptych.multimodal.rows import RowMap
from triptych.sampling import Sampling

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
LONG = Sampling(temperature=0.0, max_tokens=48, ignore_eos=True)


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return load_card(str(random_checkpoint()), "float32")


@pytest.fixture(scope="module")
def model(card: ModelCard) -> LanguageModel:
    return load_language(card, GPU, "float32")


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(random_checkpoint())


@pytest.fixture(scope="module")
def asked(card: ModelCard, reference: Reference) -> Asked:
    pictures = [picture(2, 56, 56), picture(3, 84, 140), picture(4, 61, 173)]
    one, two, three = pictures
    inputs = reference.inputs([user("First ", one, " then ", two, " last ", three, " Compare.")], pictures)
    rows = rows_of(reference, load_tower(card, torch.device("cpu"), "float32"), pictures)
    return Asked(layout_of(card, inputs["input_ids"][0].tolist(), pictures), LONG, [each.to(GPU) for each in rows])


@pytest.mark.parametrize("chunk", [17, 4096])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_the_answer_is_that_of_transformers_on_the_cpu(
    model: LanguageModel, reference: Reference, asked: Asked, split: bool, chunk: int
) -> None:
    pictures = [picture(2, 56, 56), picture(3, 84, 140), picture(4, 61, 173)]
    one, two, three = pictures
    answer = reference.generate([user("First ", one, " then ", two, " last ", three, " Compare.")], pictures)
    with running(model, split, prefill_chunk_tokens=chunk) as pair:
        tokens = pair.answer(asked)[0]
    report = compare(answer, [token.id for token in tokens], [token.logprob for token in tokens])
    assert report.equal_tokens == 48


def request_id(number: int) -> RequestId:
    return RequestId(bytes([number]) * 16)


def prompt(asked: Asked, blocks: Sequence[int]) -> PrefillSequence:
    sequence = PrefillSequence(request_id(1), asked.layout, RowMap(asked.layout), (), keep_kv=True)
    sequence.blocks = tuple(blocks)
    for item in asked.layout.items:
        sequence.mark_ready(item.index)
    return sequence


def branch(asked: Asked, tokens: list[int], blocks: Sequence[int]) -> DecodeSequence:
    return DecodeSequence(request_id(2), 0, 0, 0, asked.layout, LONG, tokens, np.array(blocks))


@pytest.fixture
def strict() -> Iterator[None]:
    """torch raises wherever the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def runner(model: LanguageModel, asked: Asked) -> Runner:
    """Warm: the first use of a kernel or of pinned memory may wait."""
    warm = Runner(model, None, 16 << 20, 16)
    launch(warm, asked)
    torch.cuda.synchronize()
    return warm


def launch(runner: Runner, asked: Asked) -> Tensor:
    """Two branches and a chunk with rows of all items, behind a chunk before it."""
    sequence = prompt(asked, range(20))
    whole = Chunk(sequence, 5, asked.layout.num_tokens)
    overlays = [
        Overlay(asked.rows[piece.item_index][piece.row_begin : piece.row_end], piece.positions - 5 + 2)
        for piece in sequence.rows.pieces(whole.begin, whole.end)
    ]
    branches = [branch(asked, [1, 2, 3], range(20, 40)), branch(asked, [1], range(40, 60))]
    return runner.launch([*map(decode_stretch, branches), chunk_stretch(whole)], overlays)


def test_a_step_never_makes_the_host_wait(runner: Runner, asked: Asked, strict: None) -> None:
    launch(runner, asked)
    runner.copy_blocks([(1, 61), (2, 62)])


def test_choosing_tokens_waits_for_the_device_once(runner: Runner, asked: Asked) -> None:
    sampling = Sampling(
        temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.3, max_tokens=48,
        logit_bias={7: 1.0}, min_tokens=9, stop_token_ids=(3,), top_logprobs=4,
    )  # fmt: skip
    draws = [Draw(sampling, 0, asked.layout.token_ids, [4, 5]), Draw(LONG, 1, asked.layout.token_ids, [4, 5])]
    logits = launch(runner, asked)
    runner.sample(logits, [0, 2], draws)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            runner.sample(logits, [0, 2], draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([wait for wait in waits if "synchroniz" in str(wait.message)]) == 1


@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_a_storm_of_requests_and_departures_spoils_no_answer(model: LanguageModel, asked: Asked, split: bool) -> None:
    drawn = Sampling(temperature=1.0, seed=4, top_p=0.9, max_tokens=12, ignore_eos=True)
    questions = [
        Asked(asked.layout, GREEDY, asked.rows),
        Asked(asked.layout, drawn, asked.rows, branches=2),
        Asked(asked.layout, GREEDY, asked.rows, generated=(5, 6, 7)),
    ]
    with running(model, split) as pair:
        alone: list[Answers] = [ids_of(pair.answer(question)) for question in questions]
    room = 40 * model.kv.block_bytes(16)
    with running(model, split, prefill_chunk_tokens=33, max_sequences=6, kv_bytes=room) as pair:
        outcomes = storm(pair, questions, seed=int(split))
    answered = [(place, outcome) for place, outcome in outcomes if not isinstance(outcome, TriptychError)]
    assert len(answered) > 30
    for place, answer in answered:
        assert answer == alone[place]
