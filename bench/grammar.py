"""What grammars cost: python -m bench.grammar [--rounds 3] [--output PATH].

Twenty schemas are compiled and followed by llguidance and, where it is installed, by xgrammar (which no part of the
product needs), side by side: answers are drawn at random from what both allow, and both follow the same tokens. Once
with the embedded model's vocabulary, once with a made-up one as large as today's models have.

    compile_ms     a grammar, its first mask included: some compile late
    mask_us        the mask of one token and the step behind it: mean, and the 99th of a hundred
    vocabulary_ms  once per process
    schemas        that all answers drawn under a library's own masks keep to, that one breaks, and that are refused
                   when they are compiled; of the twenty, and of eight that say seldom things
    ratios         xgrammar's figure by llguidance's, of the same run
"""

import argparse
import importlib.metadata
import json
import random
import statistics
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from bench.grammar_schemas import SCHEMAS
from bench.grammar_validity import SELDOM, verdicts
from bench.grammar_vocabulary import embedded_tokenizer, synthetic_tokenizer
from triptych.grammar.check import LIMITS
from triptych.grammar.source import source_of
from triptych.grammar.spec import Grammar
from triptych.loadgen.provenance import provenance

RESULT = Path(__file__).resolve().parent / "results/grammar.json"
SEED = 7
_LONGEST_ANSWER = 80  # tokens

Bits = NDArray[np.int32]


class Follower(Protocol):
    """One grammar being followed."""

    def mask(self, into: Bits) -> None: ...

    def accept(self, token: int) -> bool: ...


class Library(Protocol):
    """A library with a vocabulary."""

    def compile(self, schema: str) -> Follower: ...


class LLGuidance:
    def __init__(self, tokenizer: dict[str, Any], vocab_size: int, end: int) -> None:
        self._tokenizer = LLTokenizer(json.dumps(tokenizer), n_vocab=vocab_size, eos_token=[end])

    def compile(self, schema: str) -> Follower:
        source = source_of(Grammar("json_schema", schema))
        return _LLFollower(LLMatcher(self._tokenizer, source, log_level=0, limits=LIMITS))


class _LLFollower:
    def __init__(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        self._matcher = matcher

    def mask(self, into: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(into.ctypes.data, into.nbytes)

    def accept(self, token: int) -> bool:
        return self._matcher.consume_token(token)


class XGrammar:
    def __init__(self, tokenizer: dict[str, Any], vocab_size: int, end: int) -> None:
        import torch
        import xgrammar

        self._torch, self._xgrammar = torch, xgrammar
        names = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
        kind = xgrammar.VocabType.BYTE_LEVEL
        info = xgrammar.TokenizerInfo(names, kind, vocab_size=vocab_size, stop_token_ids=[end])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: str) -> Follower:
        matcher = self._xgrammar.GrammarMatcher(self._compiler.compile_json_schema(schema))
        return _XFollower(matcher, self._torch)


class _XFollower:
    def __init__(self, matcher: Any, torch: Any) -> None:
        self._matcher, self._torch = matcher, torch

    def mask(self, into: Bits) -> None:
        self._matcher.fill_next_token_bitmask(self._torch.from_numpy(into).unsqueeze(0))

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))


def main() -> None:
    arguments = read_arguments()
    kinds: dict[str, Any] = {"llguidance": LLGuidance} | ({"xgrammar": XGrammar} if find_spec("xgrammar") else {})
    for kind in kinds.values():  # what is imported late is nobody's cost
        kind(embedded_tokenizer(), 1536, 0)
    found = {
        name: measure(kinds, tokenizer, arguments.rounds)
        for name, tokenizer in (("tiny-vl", embedded_tokenizer()), ("synthetic", synthetic_tokenizer()))
    }
    result = {
        "what": {"script": "bench/grammar.py", "rounds": arguments.rounds, "seed": SEED, "schemas": len(SCHEMAS)},
        **provenance(),
        "libraries": {name: _version(name) for name in kinds},
        "vocabularies": found,
        "schemas": {name: validity(kind) for name, kind in kinds.items()},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args()


def measure(kinds: dict[str, Any], tokenizer: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Figures of each library with this vocabulary."""
    size = -(-len(tokenizer["model"]["vocab"]) // 32) * 32
    end = tokenizer["added_tokens"][0]["id"]
    libraries: dict[str, Library] = {}
    figures: dict[str, Any] = {}
    for name, kind in kinds.items():
        began = time.perf_counter()
        libraries[name] = kind(tokenizer, size, end)
        figures[name] = {"vocabulary_ms": round(1e3 * (time.perf_counter() - began), 1)}
    compiles: dict[str, list[float]] = {name: [] for name in libraries}
    steps: dict[str, list[float]] = {name: [] for name in libraries}
    refused: dict[str, int] = dict.fromkeys(libraries, 0)
    for number in range(rounds):
        for place, schema in enumerate(SCHEMAS):
            _run(libraries, json.dumps(schema), size, end, random.Random(f"{number} {place}"), compiles, steps, refused)
    for name in libraries:
        figures[name] |= {
            "compile_ms": _spread([1e3 * each for each in compiles[name]]),
            "mask_us": _spread([1e6 * each for each in steps[name]]),
            "tokens": len(steps[name]),
            "refused": refused[name],
        }
    if len(libraries) > 1:
        ours, other = figures["llguidance"], figures["xgrammar"]
        figures["ratios"] = {
            f"{what}_{of}": round(other[what][of] / ours[what][of], 2)
            for what in ("compile_ms", "mask_us")
            for of in ("mean", "p99")
        }
    return {"tokens": len(tokenizer["model"]["vocab"])} | figures


def validity(kind: Any) -> dict[str, dict[str, int]]:
    tokenizer = embedded_tokenizer()
    size, end = -(-len(tokenizer["model"]["vocab"]) // 32) * 32, tokenizer["added_tokens"][0]["id"]
    compile = kind(tokenizer, size, end).compile
    return {
        name: verdicts(compile, tokenizer, end, schemas, draws=20)
        for name, schemas in (("twenty", SCHEMAS), ("seldom", SELDOM))
    }


def _run(
    libraries: dict[str, Library],
    schema: str,
    size: int,
    end: int,
    rng: random.Random,
    compiles: dict[str, list[float]],
    steps: dict[str, list[float]],
    refused: dict[str, int],
) -> None:
    """One answer, the same tokens for all; in an order that changes, since the first finds colder caches."""
    followers: dict[str, Follower] = {}
    masks = {name: np.full(size // 32, -1, dtype=np.int32) for name in libraries}
    for name in rng.sample(list(libraries), len(libraries)):
        began = time.perf_counter()
        try:
            follower = libraries[name].compile(schema)
        except (ValueError, RuntimeError):
            refused[name] += 1
            continue
        follower.mask(masks[name])
        compiles[name].append(time.perf_counter() - began)
        followers[name] = follower
    for _ in range(_LONGEST_ANSWER):
        allowed = np.bitwise_and.reduce([masks[name] for name in followers])
        ids = np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))
        ids = ids[ids != end]
        if not len(ids):
            return
        token = int(rng.choice(ids))
        for name in rng.sample(list(followers), len(followers)):
            began = time.perf_counter()
            if not followers[name].accept(token):
                raise RuntimeError(f"{name} refuses a token that its mask allowed")
            followers[name].mask(masks[name])
            steps[name].append(time.perf_counter() - began)


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    mean, last = statistics.fmean(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"mean": round(mean, 3), "p50": round(statistics.median(ordered), 3), "p99": round(last, 3)}


def _version(name: str) -> str:
    return importlib.metadata.version(name)


if __name__ == "__main__":
    main()
