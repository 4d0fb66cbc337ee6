"""Buckets and padding: arithmetic, checked against plain counting."""

import itertools
import random

import numpy as np
import pytest

from triptych.engine.encoder_buckets import Bucket, boundaries, choose, frame, pad_contexts, token_steps


def padded(lengths: list[int], bucket: Bucket, kind: int = 0, longest: tuple[int | None, ...] = (None,)) -> list[int]:
    fixed = frame(bucket, longest, grain=1)
    found = pad_contexts(np.array(lengths, np.int64), fixed.tokens, fixed.contexts[kind], fixed.longest[kind])
    return [int(length) for length in found]


def test_a_dummy_context_takes_the_rest_and_is_never_empty() -> None:
    assert padded([300], Bucket(512, (1,))) == [300, 213]
    assert padded([512], Bucket(512, (1,))) == [512, 1]


def test_fewer_contexts_than_captured_are_made_up_by_empty_ones() -> None:
    two = Bucket(512, (2,))
    assert choose([two], Bucket(300, (1,))) == two
    assert padded([300], two) == [300, 213, 0]
    assert choose([two], Bucket(300, (3,))) is None


def test_no_dummy_is_longer_than_its_kind_allows() -> None:
    bucket = Bucket(400, (4, 30))
    assert padded([200], bucket, kind=1, longest=(None, 256)) == [200, 201] + [0] * 30
    assert padded([60, 64, 6], bucket, kind=1, longest=(None, 64)) == [60, 64, 6, 64, 64, 64, 64, 15] + [0] * 29


def test_choosing_equals_trying_every_bucket_for_10_000_needs() -> None:
    numbers = random.Random(4)
    buckets = [
        Bucket(numbers.randint(1, 60), (numbers.randint(1, 8), numbers.randint(1, 30))) for _ in range(40)
    ]  # some of them unneeded: larger than another in all respects
    missed = 0
    for _ in range(10_000):
        need = Bucket(numbers.randint(1, 62), (numbers.randint(1, 8), numbers.randint(1, 30)))
        best: Bucket | None = None
        for bucket in buckets:
            fits = bucket.tokens >= need.tokens and all(
                room >= wanted for room, wanted in zip(bucket.contexts, need.contexts, strict=True)
            )
            if fits and (best is None or (bucket.tokens, *bucket.contexts) < (best.tokens, *best.contexts)):
                best = bucket
        assert choose(buckets, need) == best
        missed += best is None
    assert 0 < missed < 10_000


def test_any_batch_that_a_bucket_covers_is_padded_to_its_frame() -> None:
    numbers = random.Random(5)
    for _ in range(2_000):
        windows = [4 * numbers.randint(1, 16) for _ in range(numbers.randint(1, 40))]
        tokens, grain = sum(windows), 4
        bucket = Bucket(tokens + 4 * numbers.randint(0, 300), (1, len(windows) + numbers.randint(0, 5)))
        fixed = frame(bucket, (None, 64), grain)
        for kind, lengths in enumerate(([tokens], windows)):
            found = pad_contexts(np.array(lengths), fixed.tokens, fixed.contexts[kind], fixed.longest[kind])
            assert list(found[: len(lengths)]) == lengths
            assert len(found) == fixed.contexts[kind]
            assert found.sum() == fixed.tokens == bucket.tokens + grain
            assert found.min() >= 0
            assert found.max() <= fixed.longest[kind]
            assert found[len(lengths)] > 0
            bounds = boundaries(found)
            assert bounds.dtype == np.int32
            assert list(np.diff(bounds)) == list(found)
            assert (bounds[0], bounds[-1]) == (0, fixed.tokens)


@pytest.mark.parametrize("most", [4, 100, 256, 260, 1000, 16_384, 16_387, 65_536])
def test_token_steps_waste_little_and_reach_the_most(most: int) -> None:
    steps = token_steps(most, grain=4)
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == most // 4 * 4
    assert all(step % 4 == 0 for step in steps)
    assert len(steps) <= 25 + most // 500
    for below, step in itertools.pairwise(steps):
        assert step - (below + 4) <= min(0.12 * step, 512)
    assert steps[0] == min(256, steps[-1])


def test_steps_below_one_row_are_refused() -> None:
    with pytest.raises(ValueError, match="steps of 4 tokens up to 3"):
        token_steps(3, grain=4)


def test_contexts_that_do_not_fit_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        padded([65], Bucket(100, (3,)), longest=(64,))
    with pytest.raises(AssertionError):
        padded([101], Bucket(100, (1,)))
