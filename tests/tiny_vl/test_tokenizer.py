"""Words, bytes and conversations in tokens: as the stock tokenizer and processor have them."""

import json
from pathlib import Path
from random import Random

import pytest
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoProcessor

from tests.checkpoints import EMBEDDED
from tools.tiny_vl.chat import ChatEncoder, messages
from tools.tiny_vl.scenes import Blank, Picture, Sample, Turn
from tools.tiny_vl.tokenizer import IMAGE_PAD, SPECIAL_TOKENS, TURN_END, build_tokenizer, save_processor
from triptych.models.card import load_card

WORDS = ["What", "what", "does", "image", "images", "the", "say", "is", "of", "star", "colour", "user", "naïve"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(WORDS)


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text).ids]


def test_a_known_word_after_a_space_is_one_token(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "What does the image say?")[4:] == [" does", " the", " image", " say", "?"]


def test_an_answer_is_one_token_per_character(tokenizer: Tokenizer) -> None:
    for answer in ("the", "star", "KX4P", "user", "5.50", "first"):
        assert tokens(tokenizer, answer) == list(answer)


def test_an_unknown_word_shares_the_beginning_of_a_known_one(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, " imagine") == [" imag", "i", "n", "e"]


def test_a_word_before_a_newline_stays_whole(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, " star\n") == [" star", "\n"]


@pytest.mark.parametrize("text", ["", "  two  spaces ", "größer 漢字 🙂", "\x00\x7f\n\t", "naïve image\n naïve"])
def test_every_text_comes_back_whole(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_have_the_ids_of_the_embedded_model(tokenizer: Tokenizer) -> None:
    added = json.loads((EMBEDDED / "tokenizer.json").read_text())["added_tokens"]
    assert {entry["content"]: entry["id"] for entry in added} == {
        token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS
    }


def test_the_first_words_get_the_room_there_is() -> None:
    every = build_tokenizer(["abc", "abd", "wxyz", "ab"], size=10_000).get_vocab_size()
    tight = build_tokenizer(["abc", "abd", "wxyz", "ab"], size=every - 1)
    assert tokens(tight, " abc abd wxyz") == [" abc", " abd", *" wxyz"]


def conversations(pictures: list[Picture]) -> list[Sample]:
    one, two, three = pictures
    return [
        Sample((Turn((one, "What does the image say?"), "KX4P", "read"),)),
        Sample((Turn(("What is ", "th", "is? ", one), "red circle", "name"),)),
        Sample((Turn(("Say user\nfor me.",), "user", "echo"),), system="You are a helpful assistant."),
        Sample(
            (
                Turn(("Image 1:", one, " and", two, "", "Are they the same?"), "no", "same-text"),
                Turn(("What about the first?",), "naïve", "chat-again"),
                Turn((three,), "nothing", "blank"),
            ),
            system="Be brief.",
        ),
    ]


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return [Picture(Image.new("RGB", size, "red"), Blank()) for size in ((56, 84), (140, 140), (90, 61))]


def rows_of(picture: Picture) -> int:
    return round(picture.image.width / 28) * round(picture.image.height / 28)


def test_conversations_are_encoded_as_the_processor_does(
    tokenizer: Tokenizer, pictures: list[Picture], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((EMBEDDED / "config.json").read_text())
    save_processor(tmp_path, tokenizer)
    processor = AutoProcessor.from_pretrained(tmp_path)
    encoder = ChatEncoder(tokenizer)
    for sample in conversations(pictures):
        urls = [str(number) for number in range(len(sample.pictures))]
        chat = [*messages(sample, urls), {"role": "assistant", "content": sample.turns[-1].answer}]
        for message in chat:
            for part in message["content"] if isinstance(message["content"], list) else []:
                part["type"] = part["type"].removesuffix("_url")
        text = processor.apply_chat_template(chat, tokenize=False)
        images = [picture.image for picture in sample.pictures]
        expected = processor(text=[text], images=images or None)["input_ids"][0]
        assert encoder.encode(sample, [rows_of(picture) for picture in sample.pictures]).token_ids == list(expected)


def test_spans_hold_placeholders_and_answers(tokenizer: Tokenizer, pictures: list[Picture]) -> None:
    for sample in conversations(pictures):
        encoded = ChatEncoder(tokenizer).encode(sample, [rows_of(picture) for picture in sample.pictures])
        for (start, end), picture in zip(encoded.images, sample.pictures, strict=True):
            assert encoded.token_ids[start:end] == [IMAGE_PAD] * rows_of(picture)
        for (start, end), turn in zip(encoded.answers, sample.turns, strict=True):
            assert tokenizer.decode(encoded.token_ids[start : end - 1]) == turn.answer
            assert encoded.token_ids[end - 1] == TURN_END


def test_texts_may_be_cut_behind_any_newline(tokenizer: Tokenizer) -> None:
    """What lets the encoder keep a role and the text behind it apart."""
    rng = Random(3)
    for _ in range(300):
        left, right = ("".join(rng.choices("sertm \nuaiw", k=rng.randint(0, 9))) for _ in range(2))
        left = f"{left}\n"
        assert tokenizer.encode(left + right).ids == tokenizer.encode(left).ids + tokenizer.encode(right).ids


def test_the_router_reads_the_saved_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for file in EMBEDDED.iterdir():
        (tmp_path / file.name).symlink_to(file)
    for name in ("tokenizer", "tokenizer_config", "processor_config", "preprocessor_config"):
        (tmp_path / f"{name}.json").unlink()
    for name in ("chat_template.jinja", "video_preprocessor_config.json"):
        (tmp_path / name).unlink()
    save_processor(tmp_path, tokenizer)
    card, embedded = load_card(str(tmp_path), "float32"), load_card(str(EMBEDDED), "float32")
    assert card.adapter == embedded.adapter
    assert card.chat_template == embedded.chat_template
    assert card.eos_token_ids == embedded.eos_token_ids
