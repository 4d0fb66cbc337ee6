"""The engine alone gives transformers' own answers, however they are scheduled."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from tests.engine.prompts import layout_of, picture, rows_of, user
from tests.engine.rig import Asked, Pair, running
from tests.reference import Answer, Reference, compare
from triptych.journey import Token
from triptych.models.base import LanguageModel, VisionTower
from triptych.models.card import ModelCard
from triptych.sampling import Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=48, ignore_eos=True)
Question = tuple[str, Sequence[str | Image.Image]]

QUESTIONS: Sequence[Question] = (
    ("text", ["Tell me about the number seven in a few words."]),
    ("one image", [picture(1, 112, 84), "What is in the picture?"]),
    (
        "three images",
        ["First ", picture(2, 56, 56), " then ", picture(3, 84, 140), " last ", picture(4, 61, 173), " Compare them."],
    ),
    ("same image twice", [picture(5, 84, 56), " and again ", picture(5, 84, 56), " Are they the same?"]),
)


def pictures_in(parts: Sequence[str | Image.Image]) -> list[Image.Image]:
    return [part for part in parts if not isinstance(part, str)]


class Exam:
    """Questions as our engine takes them, with the reference's answers."""

    def __init__(
        self, card: ModelCard, tower: VisionTower, reference: Reference, questions: Sequence[Question]
    ) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Answer] = []
        for _, parts in questions:
            pictures = pictures_in(parts)
            answer = reference.generate([user(*parts)], pictures, max_new_tokens=48)
            layout = layout_of(card, answer.prompt_ids, pictures)
            self.asked.append(Asked(layout, GREEDY, rows_of(reference, tower, pictures)))
            self.answers.append(answer)

    def mark(self, place: int, tokens: Sequence[Token]) -> int:
        """Tokens equal to the reference's; raises AssertionError where the rule of tests/reference.py is broken."""
        report = compare(self.answers[place], [token.id for token in tokens], [token.logprob for token in tokens])
        return report.equal_tokens


@pytest.fixture(scope="module")
def exam(card: ModelCard, tower: VisionTower, reference: Reference) -> Exam:
    return Exam(card, tower, reference, QUESTIONS)


def sit(pair: Pair, asked: Sequence[Asked]) -> list[dict[int, list[Token]]]:
    """All questions at once."""
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(pair.answer, asked))


@pytest.mark.parametrize("chunk", [17, 4096])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
@pytest.mark.parametrize("place", range(len(QUESTIONS)), ids=[name for name, _ in QUESTIONS])
def test_an_answer_is_transformers_own(model: LanguageModel, exam: Exam, place: int, split: bool, chunk: int) -> None:
    with running(model, split, prefill_chunk_tokens=chunk) as pair:
        tokens = pair.answer(exam.asked[place])[0]
    assert exam.mark(place, tokens) == 48
    assert [token.position for token in tokens] == list(range(48))
    assert [token.finish_reason for token in tokens] == [""] * 47 + ["length"]


@pytest.mark.parametrize("pipeline", ["off", "on"], ids=["step by step", "ahead"])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_sixteen_at_once_get_the_same_answers(model: LanguageModel, exam: Exam, split: bool, pipeline: str) -> None:
    with running(model, split, prefill_chunk_tokens=64, max_sequences=10, pipeline=pipeline, graphs=pipeline) as pair:
        answers = sit(pair, [exam.asked[number % 4] for number in range(16)])
    assert sum(exam.mark(number % 4, answer[0]) for number, answer in enumerate(answers)) == 16 * 48


def test_atomic_items_are_computed_whole_and_change_nothing(card: ModelCard, model: LanguageModel, exam: Exam) -> None:
    pictures = pictures_in(QUESTIONS[2][1])
    layout = layout_of(card, exam.answers[2].prompt_ids, pictures, atomic=True)
    assert min(item.rows for item in layout.items) == 4
    assert max(item.rows for item in layout.items) > 11
    with running(model, prefill_chunk_tokens=11) as pair:
        tokens = pair.answer(Asked(layout, GREEDY, exam.asked[2].rows))[0]
    assert exam.mark(2, tokens) == 48


@pytest.mark.parametrize("kept", [1, 7, 30])
def test_a_continuation_goes_on_as_if_nothing_had_happened(model: LanguageModel, exam: Exam, kept: int) -> None:
    """The worker dies after some tokens; prompt and tokens are prefilled again elsewhere."""
    asked = exam.asked[2]
    generated = exam.answers[2].token_ids[:kept]
    with running(model, prefill_chunk_tokens=17) as pair:
        again = pair.answer(Asked(asked.layout, GREEDY, asked.rows, generated=generated))[0]
    assert [token.position for token in again] == list(range(kept, 48))
    assert tuple(token.id for token in again) == exam.answers[2].token_ids[kept:]
    assert again[-1].finish_reason == "length"


def test_a_sampled_continuation_draws_the_same_tokens_and_is_penalised_the_same(
    model: LanguageModel, exam: Exam
) -> None:
    sampling = Sampling(
        temperature=1.0, top_p=0.95, seed=77, max_tokens=24, ignore_eos=True, frequency_penalty=0.6,
        presence_penalty=0.3, repetition_penalty=1.2,
    )  # fmt: skip
    asked = Asked(exam.asked[1].layout, sampling, exam.asked[1].rows, choice=3)
    with running(model) as pair:
        whole = [token.id for token in pair.answer(asked)[3]]
        rest = pair.answer(Asked(asked.layout, sampling, asked.rows, choice=3, generated=tuple(whole[:9])))[3]
    assert [token.id for token in rest] == whole[9:]


def test_seeded_branches_are_the_same_in_every_engine_and_batch(model: LanguageModel, exam: Exam) -> None:
    sampling = Sampling(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)
    asked = [Asked(one.layout, sampling, one.rows, branches=2) for one in exam.asked]
    with running(model, split=True, prefill_chunk_tokens=17) as pair:
        alone = [ids(pair.answer(one)) for one in asked]
    with running(model, split=False, prefill_chunk_tokens=4096) as pair:
        together = [ids(answer) for answer in sit(pair, asked * 3)]
    with running(model, split=True, max_sequences=3) as pair:
        narrow = [ids(answer) for answer in sit(pair, asked)]
    assert together == alone * 3
    assert narrow == alone
    assert all(one[0] != one[1] for one in alone), "choices draw for themselves"


def ids(answer: dict[int, list[Token]]) -> dict[int, list[int]]:
    return {choice: [token.id for token in tokens] for choice, tokens in answer.items()}


def test_greedy_branches_agree(model: LanguageModel, exam: Exam) -> None:
    """Each branch has a copy of the prompt's tail block; one that read another's would go astray."""
    asked = exam.asked[1]
    assert asked.layout.num_tokens % 16, "the prompt must end inside a block"
    with running(model) as pair:
        answer = pair.answer(Asked(asked.layout, GREEDY, asked.rows, branches=3))
    assert [exam.mark(1, answer[choice]) for choice in range(3)] == [48, 48, 48]


def test_the_repetition_penalty_is_transformers_own(
    card: ModelCard, model: LanguageModel, tower: VisionTower, reference: Reference
) -> None:
    image = picture(6, 84, 84)
    inputs = reference.inputs([user(image, "What is in the picture?")], [image])
    made = reference.model.generate(
        **inputs, max_new_tokens=32, do_sample=False, repetition_penalty=1.5, eos_token_id=None, pad_token_id=0
    )
    prompt_ids = inputs["input_ids"][0].tolist()
    layout = layout_of(card, prompt_ids, [image])
    rows = rows_of(reference, tower, [image])
    sampling = Sampling(temperature=0.0, repetition_penalty=1.5, max_tokens=32, ignore_eos=True)
    with running(model) as pair:
        tokens = pair.answer(Asked(layout, sampling, rows))[0]
    assert [token.id for token in tokens] == made[0, len(prompt_ids) :].tolist()
