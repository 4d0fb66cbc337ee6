"""The fast path on a GPU against the generic one and against transformers: logits, top choices, and whole answers.

How equality is decided in 16 bits. float32 transformers is the truth, and what transformers itself is off by in 16 bits
is the noise: two right programs round differently. Ours, fast or generic, may be off by as much again; and wherever the
truth's best two tokens are farther apart than twice that, ours has to choose the same token.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.engine.prompts import layout_of, user
from tests.engine.rig import GREEDY, Asked, running
from tests.gpu.teacher import Teacher
from tests.gpu.waits import no_host_synchronisation
from tests.reference import Reference, compare
from tools.make_random_checkpoint import WORDS, make_checkpoint
from triptych.config import LanguageSettings
from triptych.models.base import LanguageModel
from triptych.models.card import load_card
from triptych.models.loading import load_language

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
# The heads of the 7B model, and its width; two layers of it.
WIDE = {
    "hidden_size": 3584,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [16, 24, 24]},
}
LENGTHS = (1, 17, 300, 2100)
SINGLES = 12  # tokens at the end that are computed as decode steps

Record = Callable[[str, Any], None]


@pytest.fixture(scope="module", params=["random", "embedded", "wide"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    if request.param != "wide":
        yield random_checkpoint() if request.param == "random" else EMBEDDED
        return
    made = Path(tempfile.mkdtemp())
    make_checkpoint(made, seed=3, shapes=WIDE)
    yield made
    shutil.rmtree(made)


def texts(vocab_size: int) -> list[Tensor]:
    """Random ids, none of them special; with SINGLES more tokens behind each length."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(7, vocab_size, (length + SINGLES,), generator=generator) for length in LENGTHS]


@dataclass(frozen=True)
class Truth:
    """What transformers makes of the texts: logits [tokens, vocab] in float32, and how far 16 bits are from them."""

    ids: list[Tensor]
    exact: list[Tensor]
    noise: float  # the largest difference of a logit
    spread: float  # the root of the mean square of all differences


def along(folder: Path, dtype: torch.dtype, ids: list[Tensor]) -> list[Tensor]:
    model = Reference(folder, dtype).model.to(GPU)
    with torch.inference_mode():
        return [model(input_ids=each[None].to(GPU)).logits[0].float() for each in ids]


@pytest.fixture(scope="module")
def truth(folder: Path) -> Truth:
    ids = texts(load_card(str(folder), "float32").vocab_size)
    exact = along(folder, torch.float32, ids)
    rounded = along(folder, torch.bfloat16, ids)
    return Truth(ids, exact, *apart(rounded, exact))


def apart(found: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    """The largest difference, and the root of the mean square."""
    differences = torch.cat([(each - wanted).flatten() for each, wanted in zip(found, exact, strict=True)])
    return float(differences.abs().max()), float(differences.square().mean().sqrt())


def ours(folder: Path, dtype: str, ids: list[Tensor], chunk: int, **settings: Any) -> list[Tensor]:
    model = load_language(load_card(str(folder), dtype), GPU, dtype, LanguageSettings(**settings))
    return forced(model, ids, chunk)


def forced(model: LanguageModel, ids: list[Tensor], chunk: int) -> list[Tensor]:
    with torch.inference_mode():
        return [Teacher(model, each, seed=len(each)).logits(chunk, SINGLES) for each in ids]


@pytest.mark.parametrize("decoder", ["lean", "generic"])
def test_in_16_bits_ours_is_as_close_to_float32_as_transformers_is(
    folder: Path, truth: Truth, decoder: str, record_property: Record
) -> None:
    found = ours(folder, "bfloat16", truth.ids, chunk=512, decoder=decoder)
    largest, spread = apart(found, truth.exact)
    chosen, compared = 0, 0
    for each, exact in zip(found, truth.exact, strict=True):
        best = exact.topk(2).values
        sure = best[:, 0] - best[:, 1] > 2 * truth.noise
        compared += int(sure.sum())
        chosen += int((each.argmax(-1) == exact.argmax(-1))[sure].sum())
    record_property("largest_logit_error", largest)
    record_property("largest_logit_error_of_transformers", truth.noise)
    record_property("mean_square_error_ratio", spread / truth.spread)
    record_property("tokens_beyond_noise", compared)
    record_property("tokens_of_equal_choice", chosen)
    assert spread <= 1.5 * truth.spread
    assert largest <= 2 * truth.noise
    assert chosen == compared
    assert compared > 50, "the truth is hardly ever sure: this compares nothing"


@pytest.mark.parametrize("chunk", [64, 4096])
def test_in_float32_the_fast_path_gives_the_logits_of_transformers(
    folder: Path, truth: Truth, chunk: int, record_property: Record
) -> None:
    largest, _ = apart(ours(folder, "float32", truth.ids, chunk, decoder="lean"), truth.exact)
    record_property("largest_logit_error", largest)
    assert largest <= 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_by_itself_has_the_logits_that_it_has_within_a_chunk(folder: Path, truth: Truth, dtype: str) -> None:
    """A decode step and a prompt's chunk are different kernels for the same numbers."""
    model = load_language(load_card(str(folder), dtype), GPU, dtype, LanguageSettings(decoder="lean"))
    with torch.inference_mode():
        for ids in truth.ids:
            singles = Teacher(model, ids).logits(512, SINGLES)[-SINGLES:]
            chunked = Teacher(model, ids).logits(512, 0)[-SINGLES:]
            assert float((singles - chunked).abs().max()) <= (1e-3 if dtype == "float32" else 2 * truth.noise)


def questions(folder: Path, reference: Reference) -> list[tuple[Asked, Any]]:
    """Text prompts of many lengths, with what the reference answers."""
    card = load_card(str(folder), "float32")
    found = []
    for number in range(24):
        words = " ".join(WORDS[(7 * number + place) % len(WORDS)] for place in range(3 + 6 * number))
        inputs = reference.inputs([user(words)])
        answer = reference.generate_from(inputs, GREEDY.max_tokens)[0]
        found.append((Asked(layout_of(card, inputs["input_ids"][0].tolist()), GREEDY), answer))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"decoder": "lean", "graphs": "on", "pipeline": "on"},
        {"decoder": "lean", "graphs": "off", "pipeline": "on"},
        {"decoder": "lean", "graphs": "on", "pipeline": "off"},
        {"decoder": "generic", "graphs": "off", "pipeline": "on"},
        {"decoder": "generic", "graphs": "off", "pipeline": "off"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
@pytest.mark.parametrize("folder", ["random", "embedded"], indirect=True)
def test_answers_of_many_at_once_are_those_of_generate(folder: Path, settings: dict[str, str]) -> None:
    """Recorded steps of changing batches, prompts that come in between, and no two of a length."""
    asked = questions(folder, Reference(folder))
    model = load_language(load_card(str(folder), "float32"), GPU, "float32", LanguageSettings(**settings))  # type: ignore[arg-type]
    with running(model, False, prefill_chunk_tokens=64, **settings) as pair, ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda each: pair.answer(each[0])[0], asked))
    for (_, answer), tokens in zip(asked, answers, strict=True):
        compare(answer, [token.id for token in tokens], [token.logprob for token in tokens])


@pytest.mark.parametrize("folder", ["random"], indirect=True)
def test_serving_never_waits_for_the_device_but_to_read_its_tokens(folder: Path) -> None:
    """With torch raising wherever the host would wait; reading a step's tokens waits for an event, which may be."""
    asked = [each for each, _ in questions(folder, Reference(folder))]
    model = load_language(load_card(str(folder), "bfloat16"), GPU, "bfloat16")
    with running(model, False, prefill_chunk_tokens=64) as pair, ThreadPoolExecutor(8) as pool:
        list(pool.map(pair.answer, asked[:8]))  # the first use of a kernel or of pinned memory may wait
        with no_host_synchronisation():
            answers = list(pool.map(pair.answer, asked))
    assert all(len(answer[0]) == GREEDY.max_tokens for answer in answers)
