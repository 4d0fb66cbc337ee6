"""KV that makes room on a GPU: copies wait for nobody, are in order with the work, and the answers stay the same."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.checkpoints import random_checkpoint
from tests.engine.prompts import text_layout
from tests.engine.rig import Asked, running
from tests.engine.test_crowded import answer
from tests.reference import Reference
from triptych.engine.plan import Swap
from triptych.engine.swap import SwapSpace
from triptych.models.card import load_card
from triptych.models.loading import load_language
from triptych.sampling import Sampling

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
BLOCK_BYTES = 1 << 20


@pytest.fixture
def space() -> SwapSpace:
    """With memory that is made already: to pin it may wait for the device."""
    space = SwapSpace(BLOCK_BYTES, 64, GPU)
    slab = torch.zeros(1, BLOCK_BYTES, dtype=torch.uint8, device=GPU)
    space.move(slab, [Swap((0,), (0,), out=True)])
    torch.cuda.synchronize()
    return space


@pytest.fixture
def strict(space: SwapSpace) -> Iterator[None]:
    """torch raises wherever the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_copies_run_behind_what_fills_a_block_and_ahead_of_what_overwrites_it(space: SwapSpace, strict: None) -> None:
    slab = torch.zeros(64, BLOCK_BYTES, dtype=torch.uint8, device=GPU)
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream())
    slots = tuple(range(32))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # a step that has only begun when the copies are queued
        slab[:32] = 7
        space.move(slab, [Swap(slots, slots[::-1], out=True)])
        slab[:32] = 9
        space.move(slab, [Swap(tuple(range(32, 64)), slots[::-1], out=False)])
        assert not stream.query(), "the copies have waited for the step"
    torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    assert (slab[:32] == 9).all()
    assert (slab[32:] == 7).all()


def test_copies_are_as_fast_as_pinned_memory_is(
    space: SwapSpace, record_property: Callable[[str, object], None]
) -> None:
    slab = torch.zeros(64, BLOCK_BYTES, dtype=torch.uint8, device=GPU)
    every = tuple(range(0, 64, 2)) + tuple(range(1, 64, 2))  # nothing side by side
    for out in (True, False):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        space.move(slab, [Swap(every, tuple(range(64)), out)])
        begin.record()
        for _ in range(8):
            space.move(slab, [Swap(every, tuple(range(64)), out)])
        end.record()
        end.synchronize()
        rate = 8 * 64 * BLOCK_BYTES / (begin.elapsed_time(end) / 1e3) / 1e9
        record_property(f"gigabytes_per_second_{'out' if out else 'in'}", round(rate, 1))
        assert rate > 5, "pageable memory reaches that at best"


@pytest.mark.parametrize("swap_blocks", [0, 200])
def test_three_times_what_fits_gets_the_answers_of_each_alone(swap_blocks: int) -> None:
    card, reference = load_card(str(random_checkpoint()), "float32"), Reference(random_checkpoint())
    model = load_language(card, GPU, "float32")
    greedy = Sampling(temperature=0.0, max_tokens=90, ignore_eos=True)
    questions = [
        Asked(text_layout(card, reference, f"Say something long about number {number}."), greedy) for number in range(9)
    ]
    with running(model, prefix_cache=False) as pair:
        alone = [[token.id for token in pair.answer(asked)[0]] for asked in questions]
    block_bytes = model.kv.block_bytes(16)
    kv_bytes = sum(asked.num_blocks for asked in questions) // 3 * block_bytes
    room = {"kv_bytes": kv_bytes, "swap_bytes": swap_blocks * block_bytes, "decode_margin_tokens": 1}
    with running(model, split=False, pipeline="on", **room) as pair:
        with ThreadPoolExecutor(len(questions)) as pool:
            assert list(pool.map(lambda asked: answer(pair, asked), questions)) == alone
        kind = "swapped" if swap_blocks else "ended"
        assert pair.decode.snapshot()[f"preemptions_{kind}_total"] > 0
