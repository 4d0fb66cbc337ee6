"""Jobs that end early, listeners that misbehave, and the end of the engine itself."""

import threading
import time

import pytest

from tests.engine_encoder.rig import Gate, item_of, picture, running
from triptych.config import EncoderSettings
from triptych.engine.encoder_loop import EncodeJob, EncodeResult
from triptych.errors import (
    Cancelled,
    DeadlineExceeded,
    Overloaded,
    TransferFailed,
    WorkerLost,
)
from triptych.journey import new_request_id
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer

ROWS = 4  # of a picture of 56x56 pixels


def test_when_the_producer_leaves_its_item_is_made_for_those_who_joined(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate, data, reading, read_on = Gate(tower), picture(1), threading.Event(), threading.Event()

    def slowly() -> bytes:
        reading.set()
        assert read_on.wait(20)
        return data

    with running(card, gate, prepare) as rig:
        first, second = rig.wish(data, read=slowly), rig.wish(data, read=_never)
        assert reading.wait(20)
        rig.engine.cancel(first.job.request_id)
        assert isinstance(first.error, Cancelled)
        read_on.set()
        gate.open.set()
        assert second.ref.rows == ROWS
        assert gate.items_encoded == 1
        rig.release([second])
        rig.settle()


def test_an_item_nobody_waits_for_any_more_is_dropped(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        busy = rig.wish(picture(0))
        assert gate.reached.wait(20)
        dropped = [rig.wish(picture(1)), rig.wish(picture(1))]
        rig.eventually(lambda: rig.gauge("prepared_tokens") == 16)
        for wish in dropped:
            rig.engine.cancel(wish.job.request_id)
        assert rig.gauge("prepared_tokens") == 0
        gate.open.set()
        assert busy.ref
        rig.engine.cancel(busy.job.request_id)  # also ends what was granted
        rig.settle()
        assert gate.items_encoded == 1


def test_rows_of_a_request_that_left_while_they_were_computed_become_cache(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        left = rig.wish(picture(0))
        assert gate.reached.wait(20)
        rig.engine.cancel(left.job.request_id)
        assert isinstance(left.error, Cancelled)
        gate.open.set()
        rig.settle()
        assert rig.wish(picture(0), read=_never).result.cached


def test_a_source_that_is_gone_fails_its_own_request_alone(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    data, reading, read_on = picture(1), threading.Event(), threading.Event()

    def lose() -> bytes:
        reading.set()
        assert read_on.wait(20)
        raise TransferFailed("the sender has gone")

    with running(card, tower, prepare) as rig:
        first = rig.wish(data, index=1, read=lose)
        assert reading.wait(20)
        second = rig.wish(data, index=2)
        read_on.set()
        assert isinstance(first.error, TransferFailed)
        assert first.error.item_index == 1
        assert second.ref.rows == ROWS


def test_a_deadline_that_passes_in_the_queue_ends_the_job_alone(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare, arena_rows=ROWS) as rig:
        gate.open.set()
        holder = rig.wish(picture(0))
        assert holder.ref
        hasty, patient = rig.wish(picture(1), index=4, seconds=0.05), rig.wish(picture(1))
        assert isinstance(hasty.error, DeadlineExceeded)
        assert hasty.error.item_index == 4
        rig.release([holder])
        assert patient.ref.rows == ROWS
        rig.release([patient])
        rig.settle()


def test_a_full_queue_refuses_at_once_but_still_serves_what_is_ready(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    gate.open.set()
    with running(card, gate, prepare, settings=EncoderSettings(max_queued_items=2)) as rig:
        assert rig.wish(picture(0)).ref
        gate.open.clear()
        rig.wish(picture(1))
        rig.wish(picture(2))
        with pytest.raises(Overloaded, match=r"2 .* 2") as caught:
            rig.wish(picture(3), index=6)
        assert caught.value.item_index == 6
        assert rig.wish(picture(0)).result.cached


def test_a_callback_that_raises_stops_nobody(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    def fail(result: EncodeResult) -> None:
        raise RuntimeError("a listener's bug")

    with running(card, tower, prepare) as rig:
        data, request_id = picture(1), new_request_id()
        rig.engine.submit(EncodeJob(request_id, item_of(card, data), lambda: data, 60.0, time.monotonic() + 60), fail)
        assert rig.wish(picture(2)).ref
        rig.eventually(lambda: rig.gauge("queued_items") == 0)
        rig.engine.cancel(request_id)


def test_a_callback_may_call_the_engine(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    with running(card, tower, prepare) as rig:
        data, cancelled = picture(1), threading.Event()
        job = EncodeJob(new_request_id(), item_of(card, data), lambda: data, 60.0, time.monotonic() + 60)

        def leave(result: EncodeResult) -> None:
            rig.engine.cancel(job.request_id)
            rig.engine.check()
            cancelled.set()

        rig.engine.submit(job, leave)
        assert cancelled.wait(20)
        rig.settle()


def test_stopping_answers_everyone_and_takes_nothing_more(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        running_wish = rig.wish(picture(0))
        assert gate.reached.wait(20)
        queued = [rig.wish(picture(seed)) for seed in range(1, 9)]
        stopper = threading.Thread(target=rig.engine.stop)
        stopper.start()
        assert all(isinstance(wish.error, WorkerLost) for wish in queued)
        gate.open.set()
        stopper.join(20)
        assert running_wish.ref.rows == ROWS
        with pytest.raises(WorkerLost):
            rig.wish(picture(9))


def _never() -> bytes:
    raise AssertionError("nobody should have to read this")
