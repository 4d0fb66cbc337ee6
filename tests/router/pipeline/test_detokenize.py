"""Text out, token by token: equal to decoding at once, never half a character, never half a stop string."""

import random
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from triptych.models.card import load_card
from triptych.router.pipeline.detokenize import Detokenizer, StopScanner, TextStream
from triptych.router.pipeline.prompt import PromptBuilder

TEXTS = (
    "hello world",
    "äöüß ñandú Ångström",
    "漢字かな交じり文 한국어",
    "🙂👨‍👩‍👧🏳️‍🌈 flags",
    "mixed: é e\u0301 \u200b\u2028 \x00 �",
    "<|im_end|> typed",
)


@pytest.fixture(scope="session", params=["embedded", "random"])
def detokenizer(request: pytest.FixtureRequest, checkpoint_folders: dict[str, Path]) -> Detokenizer:
    card = load_card(str(checkpoint_folders[request.param]), "float32")
    return Detokenizer(PromptBuilder(card).tokenizer, card.vocab_size)


def streamed(stream: TextStream, ids: list[int]) -> list[str]:
    return [*map(stream.feed, ids), stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_whole_and_in_whole_characters(detokenizer: Detokenizer, text: str) -> None:
    ids = detokenizer.tokenizer.encode(text, add_special_tokens=False).ids
    pieces = streamed(detokenizer.stream(), ids)
    assert "".join(pieces) in (text, unicodedata.normalize("NFC", text))  # one of the tokenizers does that
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(10))
def test_any_ids_read_as_decoding_them_at_once(detokenizer: Detokenizer, seed: int) -> None:
    rng = random.Random(seed)
    size = detokenizer.tokenizer.get_vocab_size()
    for _ in range(50):
        ids = [rng.randrange(size) for _ in range(rng.randrange(40))]
        whole = detokenizer.tokenizer.decode(ids, skip_special_tokens=True)
        assert "".join(streamed(detokenizer.stream(), ids)) == whole


def test_special_tokens_have_no_text_in_a_stream_but_can_be_shown(detokenizer: Detokenizer) -> None:
    special = _id_of(detokenizer.tokenizer, "<|im_end|>")
    assert detokenizer.stream().feed(special) == ""
    assert detokenizer.token_bytes(special, with_specials=False) == b""
    assert detokenizer.token_bytes(special, with_specials=True) == b"<|im_end|>"


def test_ids_beyond_the_tokenizer_have_no_text(detokenizer: Detokenizer) -> None:
    stream = Detokenizer(detokenizer.tokenizer, vocab_size=100_000).stream()
    assert stream.feed(99_999) == ""


def test_an_incomplete_character_waits_for_the_end(detokenizer: Detokenizer) -> None:
    encoded = (detokenizer.tokenizer.encode(character, add_special_tokens=False).ids for character in "漢é🦀𒀀")
    ids = next(ids for ids in encoded if len(ids) > 1)
    stream = detokenizer.stream()
    assert "".join(map(stream.feed, ids[:-1])) == ""
    assert stream.flush() == "�"


@pytest.mark.parametrize("text", TEXTS[:4])
def test_other_vocabularies_are_decoded_by_a_window(text: str) -> None:
    tokenizer = _byte_fallback_tokenizer(text)
    detokenizer = Detokenizer(tokenizer, tokenizer.get_vocab_size())
    ids = [_id_of(tokenizer, f"<0x{byte:02X}>") for byte in text.encode()]
    pieces = streamed(detokenizer.stream(), ids)
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def _byte_fallback_tokenizer(text: str) -> Tokenizer:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


# ------------------------------------------------------------------------------------------------------- stop strings


def shown(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    scanner = StopScanner(stops)
    out = [scanner.feed(piece) for piece in pieces]
    if not scanner.found:
        out.append(scanner.flush())
    return out, scanner.found


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    assert shown([], ["a", "b"]) == (["a", "b", ""], False)


def test_a_stop_string_over_several_pieces_ends_the_text_before_it() -> None:
    out, found = shown(["STOP"], ["abcS", "TO", "P and more", "x"])
    assert (out, found) == (["abc", "", "", ""], True)


def test_what_cannot_become_a_stop_string_any_more_is_shown() -> None:
    assert shown(["STOP"], ["abcST", "x"]) == (["abc", "STx", ""], False)


def test_what_may_still_become_one_at_the_end_is_shown_at_the_end() -> None:
    assert shown(["STOP"], ["abcSTO"]) == (["abc", "STO"], False)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert shown(["world", "lo"], ["hello world"]) == (["hel"], True)
    assert shown(["aab"], ["aaab"]) == (["a"], True)


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_into_pieces_shows_the_same_and_holds_back_no_more_than_needed(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        stops = ["".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
        text = "".join(rng.choices("abc", k=rng.randrange(30)))
        pieces = _cut(rng, text)
        ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
        expected = text[: min(ends)[1]] if ends else text  # the one that is complete first
        scanner, seen, given = StopScanner(stops), "", ""
        for piece in pieces:
            seen += piece
            given += scanner.feed(piece)
            assert expected.startswith(given)
            held = seen[len(given) :]
            assert scanner.found or held == "" or any(stop.startswith(held) for stop in stops)
        assert scanner.found == bool(ends)
        assert given + scanner.flush() == expected


def _cut(rng: random.Random, text: str) -> list[str]:
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
