"""Which tokens a grammar leaves, step by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from numpy.typing import NDArray

from triptych.errors import ConfigError, InvalidRequest
from triptych.grammar.added_tokens import spell_added_tokens
from triptych.grammar.source import shown
from triptych.sampling import Sampling

Int32Array = NDArray[np.int32]

_THREADS = 4
_FEW = 3  # masks that are made sooner than other threads are woken

_NO_TOKEN = "the grammar leaves no token that could follow"
_NOTHING_FOLLOWS = "NoExtensionBias"  # how the library says it


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """A tokenizer's tokens as the bytes that they stand for.

    text: [words] int32, a bit for each token of the model's vocabulary that is text and nothing else
    ends: ids of the model's own end tokens
    """

    tokenizer: LLTokenizer
    text: Int32Array
    ends: tuple[int, ...]

    @property
    def num_words(self) -> int:
        return len(self.text)


def read_vocabulary(tokenizer_json: str, vocab_size: int, ends: Sequence[int]) -> Vocabulary:
    """Of a tokenizer.json, for a model of so many logits; takes up to a second. Raises ConfigError if unknown."""
    try:
        tokenizer = LLTokenizer(spell_added_tokens(tokenizer_json), n_vocab=vocab_size, eos_token=list(ends))
    except Exception as error:  # the library has no class of its own
        raise ConfigError(f"grammars cannot be followed with this tokenizer: {shown(error)}") from error
    is_text = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    is_text[:vocab_size] = [not tokenizer.is_special_token(id) for id in range(vocab_size)]
    is_text[list(ends)] = 0
    return Vocabulary(tokenizer, np.packbits(is_text, bitorder="little").view(np.int32), tuple(ends))


@dataclass(slots=True, eq=False)
class GrammarMatcher:
    """Where one answer is in its grammar. Everything in it follows from the answer's tokens, so any worker can go on.

    End tokens (the request's own stop tokens) are allowed where the grammar may end. Under ignore_eos, and up to
    min_tokens, they are only where nothing else is left: the grammar is done then, and the answer ends whatever else
    was wished. Special tokens are never allowed, whatever the grammar asks for.
    """

    vocabulary: Vocabulary
    sampling: Sampling
    matcher: LLMatcher
    num_followed: int = 0
    _ends: tuple[tuple[int, np.int32], ...] = field(init=False)  # (word, bit) of each

    def __post_init__(self) -> None:
        self._ends = tuple(_place(id) for id in self.sampling.stop_token_ids)

    def follow(self, tokens: Sequence[int]) -> None:
        """All tokens of the answer so far; those followed before come first. No end token is among them.

        Raises InvalidRequest for a token that does not fit, and where the library gives the grammar up.
        """
        fresh = list(tokens[self.num_followed :])
        if fresh and not self.matcher.consume_tokens(fresh):
            raise InvalidRequest(f"the answer cannot be continued by its grammar: {shown(self.matcher.get_error())}")
        self.num_followed = len(tokens)

    def spares_ends(self) -> bool:
        """Whether the answer should not end with the next token, if it can be helped."""
        return self.sampling.ignore_eos or self.num_followed < self.sampling.min_tokens

    def finish(self, mask: Int32Array) -> None:
        """Make of the library's mask, in place, the one that is sampled under. Raises InvalidRequest as `follow`."""
        if self.matcher.is_error():
            why = shown(self.matcher.get_error())
            if why.startswith(_NOTHING_FOLLOWS):
                raise InvalidRequest(_NO_TOKEN)
            raise InvalidRequest(f"the grammar cannot be followed any further: {why}")
        may_end = any(mask[word] & bit for word, bit in map(_place, self.vocabulary.ends))
        mask &= self.vocabulary.text
        for word, bit in self._ends:
            mask[word] &= ~bit
        goes_on = mask.any()
        if may_end and not (goes_on and self.spares_ends()):
            for word, bit in self._ends:
                mask[word] |= bit
        elif not goes_on:
            raise InvalidRequest(_NO_TOKEN)


class MaskMaker:
    """Masks of one step, beside one another on a few threads where there are many. Used by one thread."""

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None  # its threads are made when they are needed

    def masks(self, matchers: Sequence[GrammarMatcher]) -> Int32Array:
        """[matchers, words] int32, raw: each one's `finish` is still to be called."""
        words = matchers[0].vocabulary.num_words
        masks = np.zeros((len(matchers), words), dtype=np.int32)
        if len(matchers) <= _FEW:
            for each, mask in zip(matchers, masks, strict=True):
                each.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            return masks
        if self._executor is None:
            self._executor = LLExecutor(_THREADS)
        numbered = [(each.matcher, row) for row, each in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(numbered, masks.ctypes.data, 4 * words, len(masks))
        return masks


def allowed_ids(mask: Int32Array) -> list[int]:
    """The ids that a mask leaves; for whoever looks at one."""
    ids: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return ids


def following(
    vocabulary: Vocabulary, sampling: Sampling, compiled: LLMatcher, stems: Iterable[Sequence[int]]
) -> list[GrammarMatcher]:
    """A matcher behind each of these beginnings. Raises InvalidRequest for one that does not fit."""
    made = [(GrammarMatcher(vocabulary, sampling, compiled.deep_copy()), stem) for stem in stems]
    for matcher, stem in made:
        matcher.follow(stem)
    return [matcher for matcher, _ in made]


def _place(id: int) -> tuple[int, np.int32]:
    bit = 1 << id % 32
    return id // 32, np.int32(bit if bit < 1 << 31 else bit - (1 << 32))
