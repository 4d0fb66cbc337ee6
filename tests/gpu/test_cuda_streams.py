"""Copies between GPU processes wait for what they must, and for nothing else: run where there is an NVIDIA GPU."""

import time

import pytest
import torch

from tests.gpu.gpu_neighbour import numbers_of, sleep_on_device
from tests.gpu.rig import GPU, NUMBERS, UNIT_BYTES, reader_of, rows
from tests.transfer.neighbours import OWNER, Neighbour, blocks_ref, rows_ref
from triptych.errors import TransferFailed
from triptych.transfer.cuda_events import has_completed, new_event, new_stream
from triptych.transfer.reader import Reader
from triptych.transfer.slab import create_slab

pytestmark = pytest.mark.gpu


def test_a_read_waits_for_no_other_stream_of_this_process(encoder: Neighbour, reader: Reader) -> None:
    """Neither a busy default stream nor a busy compute stream holds a copy up."""
    event = encoder.ask("fill", range(4), 80)
    into, compute = rows(4), new_stream(GPU)
    reader.read_rows(rows_ref(80, 4, NUMBERS, event=event), into)  # streams and pinned memory exist from here on
    into.zero_()
    torch.cuda.synchronize()
    busy = new_event(), new_event()
    sleep_on_device(3.0)
    busy[0].record()
    with torch.cuda.stream(compute):
        sleep_on_device(3.0)
        busy[1].record()
    began = time.monotonic()
    reader.read_rows(rows_ref(80, 4, NUMBERS, event=event), into)
    took = time.monotonic() - began
    assert not has_completed(busy[0])
    assert not has_completed(busy[1])
    assert took < 1.0
    torch.cuda.synchronize()
    assert (into == 80).all()


def test_a_copy_given_up_is_quarantined_until_it_ends(prefill: Neighbour) -> None:
    """The destination's own stamps are stuck behind a busy stream: the copy is queued, and then overdue."""
    slab = create_slab("kv", 3, UNIT_BYTES, 8, GPU)
    reader = reader_of(prefill.info, slabs=(slab,))
    event = prefill.ask("fill", [1, 2], 90)
    ref, into = blocks_ref([(1, 90), (2, 90)], event=event), slab.data.view(8, UNIT_BYTES)
    reader.read_blocks(ref, into, [0, 1])
    with torch.cuda.stream(new_stream(GPU)):
        sleep_on_device(2.0)
        slab.stamp([4, 5], [1, 1])
    with pytest.raises(TransferFailed, match="copying 2 units of kv arena 2 is overdue"):
        reader.read_blocks(ref, into, [4, 5], deadline=time.monotonic() + 0.2)
    assert reader.still_writing(into[4])
    reader.forget(OWNER)  # the mapping must stay open under the copy
    assert reader.wait_until_quiet(into, 20.0)
    assert (numbers_of(slab)[4:6] == 90).all()
    reader.read_blocks(ref, into, [6, 7])
    assert (numbers_of(slab)[6:8] == 90).all()
    reader.close()


def test_a_copy_never_overtakes_the_stamps_of_its_destination(prefill: Neighbour) -> None:
    slab = create_slab("kv", 3, UNIT_BYTES, 8, GPU)
    reader = reader_of(prefill.info, slabs=(slab,))
    event = prefill.ask("fill", [1], 91)
    reader.open(OWNER)
    began = time.monotonic()
    with torch.cuda.stream(new_stream(GPU)):
        sleep_on_device(0.5)
        slab.stamp([4], [1])
    reader.read_blocks(blocks_ref([(1, 91)], event=event), slab.data.view(8, UNIT_BYTES), [4])
    assert time.monotonic() - began > 0.1
    assert slab.words[4] == 1
    reader.close()


def test_stamping_and_recording_never_wait_for_the_device() -> None:
    slab = create_slab("kv", 3, 4096, 6000, GPU)
    with torch.cuda.stream(new_stream(GPU)):
        slab.stamp(range(6000), range(1, 6001))  # pinned memory for the first three uploads
        torch.cuda.current_stream().synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            sleep_on_device(1.0)
            began = time.monotonic()
            slab.stamp(range(6000), range(10_001, 16_001))
            event = slab.record_event()
            took = time.monotonic() - began
            done = slab.event_done(event)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert took < 0.5
        assert not done
        torch.cuda.current_stream().synchronize()
    assert slab.event_done(event)
    assert slab.words.tolist() == list(range(10_001, 16_001))


def test_a_ring_of_events_is_reused_in_order() -> None:
    slab = create_slab("kv", 3, 4096, 4, GPU)
    assert [slab.record_event() for _ in range(600)] == list(range(1, 601))
    torch.cuda.synchronize()
    assert all(slab.event_done(number) for number in (1, 256, 257, 600))
    for number in (0, 601):
        with pytest.raises(TransferFailed, match=f"event {number} named"):
            slab.event_done(number)
