import random
import re
from collections.abc import Callable

import pytest

from tests.transfer.protocol.claims import OWNER, claim
from triptych.errors import ClaimExpired, InvalidRecord, Overloaded, TransferFailed, TriptychError
from triptych.journey import ClaimId
from triptych.transfer.protocol.takeover import (
    DropPull,
    FreeBlocks,
    GiveBack,
    KVSpan,
    Refuse,
    Start,
    StartPull,
    Takeover,
    TakeoverActions,
    TakeoverState,
)

BLOCK = 16


def span(number: int, begin: int, end: int, num_blocks: int | None = None, block_size: int = BLOCK) -> KVSpan:
    needed = -(-(end - begin) // block_size)
    return KVSpan(claim(number), OWNER, begin, end, needed if num_blocks is None else num_blocks, block_size)


def receiving(prompt_tokens: int = 40, cached_tokens: int = 0) -> Takeover:
    takeover = Takeover(prompt_tokens)
    assert takeover.reserved(0.0, cached_tokens) == ()
    return takeover


def refusal(actions: TakeoverActions) -> tuple[type[TriptychError], str]:
    (refuse,) = [action for action in actions if isinstance(action, Refuse)]
    return refuse.kind, refuse.reason


def test_decoding_starts_once_the_last_ref_has_come_and_every_pull_has_landed() -> None:
    takeover, first, last = receiving(), span(1, 0, 32), span(2, 32, 40)
    assert takeover.ref(0.0, first) == (StartPull(first, 0),)
    assert takeover.ref(0.0, last) == (StartPull(last, 0),)
    assert takeover.pull_landed(1.0, last.claim) == ()
    assert takeover.first(1.0) == ()
    assert takeover.pull_landed(2.0, first.claim) == (Start(),)
    assert takeover.cancelled(3.0) == takeover.expired(3.0) == takeover.first(3.0) == ()
    assert takeover.state is TakeoverState.STARTED
    takeover.check()


def test_first_tokens_behind_the_last_landing_start_it_at_once() -> None:
    takeover, only = receiving(), span(1, 0, 40)
    takeover.ref(0.0, only)
    takeover.pull_landed(1.0, only.claim)
    assert takeover.first(2.0) == (Start(),)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (span(2, 32, 40), r"KV of tokens \[32, 40\) came after 16 tokens"),
        (span(2, 0, 40), r"KV of tokens \[0, 40\) came after 16 tokens"),
        (span(2, 16, 30), r"ends inside a block of 16, ahead of the prompt's end 40"),
        (span(2, 16, 48), r"came for a prompt of 40"),
        (span(2, 16, 40, num_blocks=1), r"came in 1 blocks of 16, expected 2"),
    ],
)
def test_a_ref_out_of_place_ends_the_request_and_is_given_back(wrong: KVSpan, reason: str) -> None:
    takeover, right = receiving(), span(1, 0, 16)
    takeover.ref(0.0, right)
    actions = takeover.ref(1.0, wrong)
    assert actions[0] == GiveBack(OWNER, wrong.claim)
    kind, told = refusal(actions)
    assert kind is InvalidRecord
    assert re.search(reason, told)
    assert actions[2:] == (DropPull(right.claim),), "the pull that writes is awaited before the blocks are free"
    assert takeover.pull_landed(2.0, right.claim) == (FreeBlocks(),)


def test_missing_kv_is_told_with_the_first_tokens() -> None:
    takeover = receiving()
    takeover.ref(0.0, span(1, 0, 32))
    takeover.pull_landed(0.5, claim(1))
    actions = takeover.first(1.0)
    assert refusal(actions) == (InvalidRecord, "KV came for 32 tokens, the prompt has 40")
    assert actions[-1] == FreeBlocks()


def test_a_ref_that_comes_twice_is_pulled_once() -> None:
    takeover, only = receiving(), span(1, 0, 40)
    takeover.ref(0.0, only)
    assert takeover.ref(0.1, only) == ()
    takeover.first(0.2)
    takeover.pull_landed(0.3, only.claim)
    assert takeover.ref(0.4, only) == takeover.pull_landed(0.4, only.claim) == ()


def test_kv_that_is_here_already_is_given_back_and_its_place_counts_as_received() -> None:
    takeover = receiving(40, cached_tokens=32)
    assert takeover.ref(0.0, span(1, 0, 32)) == (GiveBack(OWNER, claim(1)),)
    last = span(2, 32, 40)
    assert takeover.ref(0.0, last) == (StartPull(last, 32),)


def test_a_block_of_the_sender_may_begin_ahead_of_what_is_cached_here() -> None:
    takeover, larger = receiving(80, cached_tokens=48), span(1, 32, 80, block_size=32)
    assert takeover.ref(0.0, larger) == (StartPull(larger, 48),)
    for wrong in (span(2, 64, 80), span(3, 32, 80), span(4, 0, 80, block_size=32)):
        assert refusal(receiving(80, cached_tokens=48).ref(0.0, wrong))[0] is InvalidRecord


def test_a_prompt_that_is_cached_whole_starts_with_its_first_tokens() -> None:
    assert receiving(32, cached_tokens=32).first(1.0) == (Start(),)


def test_a_failed_pull_is_told_once_and_blocks_wait_for_the_others() -> None:
    takeover = receiving()
    takeover.ref(0.0, span(1, 0, 16))
    takeover.ref(0.0, span(2, 16, 32))
    takeover.ref(0.0, span(3, 32, 40))
    actions = takeover.pull_failed(1.0, claim(2), ClaimExpired, "overwritten")
    assert actions == (Refuse(ClaimExpired, "overwritten"), DropPull(claim(1)), DropPull(claim(3)))
    assert takeover.pull_failed(1.1, claim(1), TransferFailed, "also") == ()
    assert takeover.cancelled(1.2) == ()
    takeover.check()
    assert takeover.pull_dropped(1.3, claim(3)) == (GiveBack(OWNER, claim(3)), FreeBlocks())
    assert takeover.is_over


def test_a_cancel_frees_blocks_only_behind_the_last_pull() -> None:
    takeover = receiving()
    takeover.ref(0.0, span(1, 0, 40))
    assert takeover.cancelled(1.0) == (DropPull(claim(1)),)
    assert not takeover.is_over
    assert takeover.ref(1.1, span(2, 32, 40)) == (GiveBack(OWNER, claim(2)),), "late refs are given back"
    assert takeover.pull_landed(2.0, claim(1)) == (FreeBlocks(),)
    assert takeover.ref(3.0, span(3, 32, 40)) == (GiveBack(OWNER, claim(3)),)


def test_a_router_that_never_comes_leaves_nothing() -> None:
    takeover = receiving()
    assert takeover.expired(9.0) == (
        Refuse(ClaimExpired, "the decode reservation has expired; reserve again"),
        FreeBlocks(),
    )


def test_a_reservation_granted_too_late_is_given_back() -> None:
    takeover = Takeover(40)
    assert takeover.cancelled(0.0) == (FreeBlocks(),)
    assert takeover.reserved(1.0, 0) == (FreeBlocks(),)
    refused = Takeover(40)
    assert refused.refused(0.0, Overloaded, "full") == (Refuse(Overloaded, "full"), FreeBlocks())


def test_a_ref_ahead_of_the_reservation_is_refused() -> None:
    actions = Takeover(40).ref(0.0, span(1, 0, 40))
    assert refusal(actions)[0] is InvalidRecord
    assert GiveBack(OWNER, claim(1)) in actions


def test_more_cached_tokens_than_the_prompt_has_are_refused() -> None:
    assert refusal(Takeover(40).reserved(0.0, 48))[0] is InvalidRecord


@pytest.mark.parametrize("seed", range(200))
def test_any_storm_of_events_frees_once_and_never_under_a_writer(seed: int) -> None:
    chance = random.Random(seed)
    takeover, writing = Takeover(64), set[ClaimId]()
    given_back: list[bytes] = []
    ends: list[object] = []
    spans = [span(number, begin, end) for number, (begin, end) in enumerate([(0, 16), (16, 32), (32, 48), (48, 64)])]
    spans += [span(9, 16, 64), span(10, 0, 13)]

    events: list[Callable[[], TakeoverActions]] = [
        lambda: takeover.reserved(0.0, chance.choice([0, 0, 16])),
        *(lambda given=given: takeover.ref(0.0, given) for given in spans[:4]),
        lambda: takeover.ref(0.0, chance.choice(spans)),
        lambda: takeover.first(0.0),
        lambda: takeover.cancelled(0.0),
        lambda: takeover.expired(0.0),
    ]
    weights = [4, 4, 4, 4, 4, 0.3, 1, 0.2, 0.1]
    for _ in range(80):
        if writing and chance.random() < 0.4:
            ended = chance.choice(sorted(writing))
            writing.discard(ended)
            how = chance.choices(["landed", "failed", "dropped"], [5, 0.5, 0.5])[0]
            if how == "landed":
                actions = takeover.pull_landed(0.0, ended)
            elif how == "failed":
                actions = takeover.pull_failed(0.0, ended, TransferFailed, "?")
            else:
                actions = takeover.pull_dropped(0.0, ended)
        else:
            actions = chance.choices(events, weights)[0]()
        for action in actions:
            if isinstance(action, StartPull):
                writing.add(action.span.claim)
            elif isinstance(action, GiveBack):
                given_back.append(action.claim)
            elif isinstance(action, Start | FreeBlocks):
                assert not writing
                ends.append(action)
        takeover.check()
    assert len(given_back) == len(set(given_back))
    assert not (Start() in ends and FreeBlocks() in ends)
    assert ends.count(Start()) <= 1
