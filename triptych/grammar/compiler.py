"""Grammars are compiled once per worker, on threads of their own, however many requests ask for them."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from llguidance import LLMatcher

from triptych.errors import ConfigError, InvalidRequest, Overloaded
from triptych.grammar.check import LIMITS
from triptych.grammar.matcher import GrammarMatcher, Vocabulary, following, read_vocabulary
from triptych.grammar.source import shown, source_of
from triptych.grammar.spec import Grammar
from triptych.sampling import Sampling

COMPILE_SECONDS = 20.0  # after which a request is not kept waiting; the limits make it milliseconds
_KEPT = 128  # compiled grammars
_THREADS = 2

Made = TypeVar("Made")


class GrammarCompiler:
    """Of one model. The tokenizer is read when the first grammar comes: that takes a second for a large vocabulary."""

    def __init__(self, read: Callable[[], Vocabulary]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._vocabulary: Future[Vocabulary] | None = None
        self._compiled: OrderedDict[Grammar, Future[LLMatcher]] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammars")

    @property
    def num_compiled(self) -> int:
        return len(self._compiled)

    def matchers(self, sampling: Sampling, stems: Sequence[Sequence[int]]) -> Future[list[GrammarMatcher]]:
        """One for each of these beginnings of an answer with a grammar.

        Fails with InvalidRequest for a grammar that cannot be compiled, or that a beginning does not fit.
        """
        if sampling.grammar is None:
            raise InvalidRequest("no grammar is asked for")
        return self._threads.submit(self._matchers, sampling.grammar, sampling, stems)

    def expect(self, grammar: Grammar) -> None:
        """Compile what will be asked for soon; returns at once."""
        try:
            self._threads.submit(self._ready, grammar)
        except RuntimeError:  # closed
            pass

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _matchers(self, grammar: Grammar, sampling: Sampling, stems: Sequence[Sequence[int]]) -> list[GrammarMatcher]:
        vocabulary, compiled = self._ready(grammar)
        return following(vocabulary, sampling, compiled, stems)

    def _ready(self, grammar: Grammar) -> tuple[Vocabulary, LLMatcher]:
        vocabulary = self._once_read()
        with self._lock:
            waiting = self._compiled.get(grammar)
            is_mine = waiting is None
            if waiting is None:
                waiting = self._compiled[grammar] = Future()
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        if is_mine:
            _settle(waiting, lambda: _compile(vocabulary, grammar))
        return vocabulary, _within(waiting)

    def _once_read(self) -> Vocabulary:
        with self._lock:
            waiting, is_mine = self._vocabulary, self._vocabulary is None
            if waiting is None:
                waiting = self._vocabulary = Future()
        if is_mine:
            _settle(waiting, self._read)
        try:
            return _within(waiting)
        except ConfigError as error:
            raise InvalidRequest(error.message) from error


def compiler_of(folder: Path, vocab_size: int, ends: Sequence[int]) -> GrammarCompiler:
    """Of the checkpoint in a folder, whose model has so many logits."""

    def read() -> Vocabulary:
        try:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"grammars need tokenizer.json: {error}") from error
        return read_vocabulary(text, vocab_size, ends)

    return GrammarCompiler(read)


def _compile(vocabulary: Vocabulary, grammar: Grammar) -> LLMatcher:
    compiled = LLMatcher(vocabulary.tokenizer, source_of(grammar), log_level=0, limits=LIMITS)
    if compiled.is_error():
        raise InvalidRequest(f"the {grammar.kind} grammar cannot be followed: {shown(compiled.get_error())}")
    return compiled


def _settle(waiting: Future[Made], make: Callable[[], Made]) -> None:
    try:
        waiting.set_result(make())
    except Exception as error:
        waiting.set_exception(error)


def _within(waiting: Future[Made]) -> Made:
    """What another thread makes. Raises Overloaded when that takes too long."""
    try:
        return waiting.result(timeout=COMPILE_SECONDS)
    except TimeoutError as error:
        raise Overloaded(f"a grammar was not compiled within {COMPILE_SECONDS:g} s") from error
