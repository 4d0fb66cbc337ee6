"""The language engine on a GPU: the same answers, no wait inside a step, and memory that three streams share safely."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.checkpoints import random_checkpoint
from tests.engine.prompts import layout_of, picture, rows_of, user
from tests.engine.rig import GREEDY, Asked, running
from tests.engine.test_storm import Answers, ids_of, storm
from tests.gpu.waits import no_host_synchronisation
from tests.reference import Reference, compare
from triptych.config import LanguageSettings
from triptych.engine.batch import chunk_stretch
from triptych.engine.fuse import Overlay
from triptych.engine.launched import Drawing
from triptych.engine.penalties import Draw
from triptych.engine.plan import Chunk
from triptych.engine.runner import Logits, Runner, Work
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


PENALISED = Sampling(
    temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.3, max_tokens=48,
    logit_bias={7: 1.0}, min_tokens=9, stop_token_ids=(3,), top_logprobs=4,
)  # fmt: skip


@pytest.fixture(scope="module", params=["off", "on"], ids=["eager", "recorded"])
def runner(model: LanguageModel, asked: Asked, request: pytest.FixtureRequest) -> Runner:
    """Warm: the first use of a kernel or of pinned memory may wait."""
    assert getattr(model, "recordable", False), "the decoder that is served cannot be recorded, see the warnings"
    warm = Runner(model, None, LanguageSettings(kv_bytes=16 << 20, max_sequences=4, graphs=request.param))
    warm.record()
    launch_all(warm, asked)
    torch.cuda.synchronize()
    return warm


def works(asked: Asked) -> Iterator[Work]:
    """Two branches and a chunk with rows of all items, behind a chunk before it; then the branches alone.

    Their second tokens are on the device alone by then. One of them is drawn and penalised in every way.
    """
    sequence = prompt(asked, range(20))
    whole = Chunk(sequence, 5, asked.layout.num_tokens)
    overlays = [
        Overlay(asked.rows[piece.item_index][piece.row_begin : piece.row_end], piece.positions - 5 + 2)
        for piece in sequence.rows.pieces(whole.begin, whole.end)
    ]
    branches = [branch(asked, [1, 2, 3], range(20, 40)), branch(asked, [1], range(40, 60))]
    branches[1].sampling = PENALISED
    yield Work(branches, [chunk_stretch(whole)], overlays, [[Draw(LONG, 0, asked.layout.token_ids, [])]])
    for each in branches:
        each.num_inflight = 1
    yield Work(branches)


def launch_all(runner: Runner, asked: Asked) -> list[tuple[Logits, Drawing]]:
    steps = []
    for work in works(asked):
        made = runner.launch(work)
        steps.append((replace(made, logits=made.logits.clone()), runner.choose(made)))
    return steps


def test_a_step_never_makes_the_host_wait(runner: Runner, asked: Asked, strict: None) -> None:
    steps = launch_all(runner, asked)
    runner.copy_blocks([(1, 61), (2, 62)])
    runner.fence([3, 4])
    assert [len(drawing.read()) for _, drawing in steps] == [3, 2]


def test_a_replay_makes_the_logits_and_tokens_of_an_eager_step(
    model: LanguageModel, asked: Asked, runner: Runner
) -> None:
    """Logits up to rounding: other kernels may compute them."""
    eager = Runner(model, None, LanguageSettings(kv_bytes=16 << 20, max_sequences=4, graphs="off"))
    pairs = zip(launch_all(runner, asked), launch_all(eager, asked), strict=True)
    for (found, drawn), (wanted, expected) in pairs:
        assert torch.allclose(found.logits, wanted.logits, atol=1e-3)
        assert [token.id for token in drawn.read()] == [token.id for token in expected.read()]


def test_a_fence_waits_for_launched_work_on_these_blocks_alone(runner: Runner, asked: Asked) -> None:
    launch_all(runner, asked)
    torch.cuda.synchronize()
    with runner.stream():
        torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]  # about half a second
        made = runner.launch(Work([branch(asked, [1, 2, 3], range(20, 40))]))
        ended = runner.choose(made).ended
        written = int(made.blocks[0])
        runner.fence([block for block in range(60) if block != written])
        assert ended is not None
        assert not ended.query(), "a fence for other blocks must not wait for a step"
        runner.fence([written])
        assert ended.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("graphs", ["off", "auto"], ids=["eager", "recorded"])
def test_whole_answers_never_make_the_host_wait_but_for_their_tokens(
    model: LanguageModel, asked: Asked, graphs: str
) -> None:
    questions = [replace(asked, sampling=sampling, branches=2) for sampling in (LONG, PENALISED)]
    with running(model, split=False, pipeline="on", graphs=graphs, prefill_chunk_tokens=33) as pair:
        wanted = [ids_of(pair.answer(question)) for question in questions]
        with no_host_synchronisation():
            found = [ids_of(pair.answer(question)) for question in questions]
    assert found == wanted


@pytest.mark.parametrize("pipeline", ["off", "on"], ids=["step by step", "ahead"])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_a_storm_of_requests_and_departures_spoils_no_answer(
    model: LanguageModel, asked: Asked, split: bool, pipeline: str
) -> None:
    drawn = Sampling(temperature=1.0, seed=4, top_p=0.9, max_tokens=12, ignore_eos=True)
    questions = [
        Asked(asked.layout, GREEDY, asked.rows),
        Asked(asked.layout, drawn, asked.rows, branches=2),
        Asked(asked.layout, GREEDY, asked.rows, generated=(5, 6, 7)),
    ]
    with running(model, split) as pair:
        alone: list[Answers] = [ids_of(pair.answer(question)) for question in questions]
    room = 40 * model.kv.block_bytes(16)
    with running(model, split, prefill_chunk_tokens=33, max_sequences=6, kv_bytes=room, pipeline=pipeline) as pair:
        outcomes = storm(pair, questions, seed=int(split))
    answered = [(place, outcome) for place, outcome in outcomes if not isinstance(outcome, TriptychError)]
    assert len(answered) > 30
    for place, answer in answered:
        assert answer == alone[place]
