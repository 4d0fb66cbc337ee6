"""Owners that stop or die while what they announced is not written yet: run where there is an NVIDIA GPU.

Each test also has a form with the owner on a second GPU, which skips where there is one.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch

from tests.gpu.gpu_neighbour import ACTIONS
from tests.gpu.rig import GPU, NUM_UNITS, NUMBERS, SETTINGS, UNIT_BYTES, reader_of, rows
from tests.transfer.neighbours import HERE, OWNER, Neighbour, rows_ref
from triptych.errors import ClaimExpired, TransferFailed, WorkerLost
from triptych.journey import EmbeddingRef, Endpoint
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.cuda_events import has_completed, new_event, new_stream
from triptych.transfer.cuda_ipc import open_cuda_ipc
from triptych.transfer.reader import Reader

pytestmark = pytest.mark.gpu

HUNG = Endpoint("127.0.0.1:7009", 19)
SPIN_SECONDS = 6.0
PATIENCE_SECONDS = 2.5  # of a pull; less than the spin
OTHERS_SECONDS = 0.5  # within which other requests are served: the two processes share the GPU in time slices
BACK_SECONDS = 10.0  # within which the driver has a dead process's memory back
SLACK_BYTES = 96 << 20  # of device memory, over twenty kills: what the driver keeps for itself
SLAB_UNITS = 4096  # 256 MiB
KILLS = 20

Record = Callable[[str, Any], None]
two_gpus = pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
DEVICES = [pytest.param(0, id="one GPU"), pytest.param(1, id="two GPUs", marks=two_gpus)]


@pytest.fixture(params=DEVICES)
def hung(request: pytest.FixtureRequest) -> Iterator[Neighbour]:
    """An encoder that will hang, on the reader's GPU or on another."""
    device = torch.device("cuda", request.param)
    with Neighbour("embedding", UNIT_BYTES, NUM_UNITS, device=device, actions=ACTIONS) as neighbour:
        yield neighbour


@pytest.fixture
def consumer(hung: Neighbour, encoder: Neighbour) -> Iterator[Reader]:
    """A prefill worker's reader, with both of them open."""
    arenas: dict[Endpoint, tuple[ArenaInfo, ...]] = {OWNER: (encoder.info,), HUNG: (hung.info,)}
    reader = Reader(arenas.__getitem__, HERE, {}, GPU, SETTINGS)
    for endpoint in arenas:
        assert reader.open(endpoint) == "cuda_ipc"
    yield reader
    reader.close()


def pull(reader: Reader, event: int, generation: int, into: torch.Tensor) -> None:
    ref = rows_ref(generation, into.shape[0], NUMBERS, event=event, owner=HUNG)
    reader.read_rows(ref, into, deadline=time.monotonic() + PATIENCE_SECONDS)


def others_go_on(encoder: Neighbour, reader: Reader, generation: int) -> float:
    """The longest that one of a few pulls from a healthy neighbour took, with compute beside them; all are right."""
    longest, compute = 0.0, new_stream(GPU)
    for number in range(6):
        event = encoder.ask("fill", range(20, 36), generation + number)
        into, done, began = rows(16), new_event(), time.monotonic()
        with torch.cuda.stream(compute):
            torch.ones(256, 256, device=GPU).matmul(torch.ones(256, 256, device=GPU))
            done.record()
        reader.read_rows(rows_ref(generation + number, 16, NUMBERS, offset=20 * UNIT_BYTES, event=event), into)
        while not has_completed(done):
            assert time.monotonic() - began < OTHERS_SECONDS, "the compute stream waits for the neighbour that hangs"
        longest = max(longest, time.monotonic() - began)
        assert bool((into == generation + number).all())
    return longest


def warmed(encoder: Neighbour, reader: Reader) -> None:
    """Streams, pinned memory and kernels exist from here on."""
    others_go_on(encoder, reader, 1000)


def test_a_stopped_encoder_holds_up_its_own_pull_alone(
    hung: Neighbour, encoder: Neighbour, consumer: Reader, record_property: Record
) -> None:
    warmed(encoder, consumer)
    into = rows(16)
    event = hung.ask("announce", 0, 16, 40, SPIN_SECONDS)
    os.kill(hung.process.pid or 0, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[None] = pool.submit(pull, consumer, event, 40, into)
        longest = others_go_on(encoder, consumer, 2000)
        assert not waiting.done(), "the pull was to hang while others went on"
        with pytest.raises(TransferFailed, match="overdue"):
            waiting.result(timeout=10 * PATIENCE_SECONDS)
    record_property("longest_other_pull_seconds", longest)
    assert longest < OTHERS_SECONDS
    assert not into.any()
    os.kill(hung.process.pid or 0, signal.SIGCONT)
    end = time.monotonic() + 3 * SPIN_SECONDS
    while True:  # what was announced comes in the end, and the same claim can be read
        try:
            pull(consumer, event, 40, into)
            break
        except TransferFailed:
            assert time.monotonic() < end, "the stopped owner's rows never came"
    assert bool((into == 40).all())


def test_an_encoder_killed_before_its_event_gives_an_error_and_never_wrong_rows(
    hung: Neighbour, encoder: Neighbour, consumer: Reader, record_property: Record
) -> None:
    """Its generations stand in the slab already, its rows do not; what CUDA says of its event is undefined."""
    warmed(encoder, consumer)
    into, mapping = rows(16), open_cuda_ipc(hung.info, GPU)
    event = hung.ask("announce", 0, 16, 41, SPIN_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[None] = pool.submit(pull, consumer, event, 41, into)
        time.sleep(0.2)
        hung.kill()
        longest = others_go_on(encoder, consumer, 3000)
        outcome = _error_or_right(lambda: waiting.result(timeout=10 * PATIENCE_SECONDS), into, 41)
    record_property("longest_other_pull_seconds", longest)
    record_property("outcome", outcome)
    record_property("event_of_the_dead", _says(mapping, event))
    mapping.close()
    assert longest < OTHERS_SECONDS
    consumer.forget(HUNG)
    assert torch.ones(3, device=GPU).sum() == 3  # the reader's own context is whole
    others_go_on(encoder, consumer, 4000)


def _says(mapping: Any, event: int) -> str:
    """What CUDA says of a dead process's event; for the record."""
    try:
        mapping.wait_event(event, time.monotonic() + 0.1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "completed"


@pytest.mark.parametrize("home", DEVICES)
def test_twenty_killed_encoders_leave_no_device_memory_behind(
    home: int, encoder: Neighbour, consumer: Reader, record_property: Record
) -> None:
    """Each is killed with its slab open at the reader and its event not come to pass."""
    device = torch.device("cuda", home)
    warmed(encoder, consumer)
    before = _used(device)
    with ExitStack() as ending, ThreadPoolExecutor(KILLS) as pool:
        started = [pool.submit(_start, device, ending) for _ in range(KILLS)]
        neighbours = [each.result() for each in started]
        at_most = _used(device)
        _die_while_read(neighbours)
    end = time.monotonic() + BACK_SECONDS
    while (after := _used(device)) > before + SLACK_BYTES and time.monotonic() < end:
        time.sleep(0.05)
    record_property("device_bytes_used", [before, at_most, after])
    assert at_most > before + KILLS * SLAB_UNITS * UNIT_BYTES
    assert after <= before + SLACK_BYTES, f"{(after - before) >> 20} MiB are not given back"
    others_go_on(encoder, consumer, 5000)


def _start(device: torch.device, ending: ExitStack) -> Neighbour:
    neighbour = Neighbour("embedding", UNIT_BYTES, SLAB_UNITS, device=device, actions=ACTIONS)
    ending.callback(neighbour.kill)
    return neighbour


def _die_while_read(neighbours: list[Neighbour]) -> None:
    into, readers, events = rows(16), [reader_of(neighbour.info) for neighbour in neighbours], []
    for neighbour, reader in zip(neighbours, readers, strict=True):
        event = neighbour.ask("fill", range(16), 50)
        reader.read_rows(rows_ref(50, 16, NUMBERS, event=event), into)
        assert bool((into == 50).all())
    for neighbour in neighbours:
        events.append(neighbour.ask("announce", 16, 32, 51, SPIN_SECONDS))
    for neighbour in neighbours:
        neighbour.process.kill()
    for neighbour, reader, event in zip(neighbours, readers, events, strict=True):
        neighbour.kill()
        ref = rows_ref(51, 16, NUMBERS, offset=16 * UNIT_BYTES, event=event)
        _error_or_right(partial(_pull_briefly, reader, ref, into), into, 51)
        reader.close()


def _pull_briefly(reader: Reader, ref: EmbeddingRef, into: torch.Tensor) -> None:
    reader.read_rows(ref, into, deadline=time.monotonic() + 0.1)


def _error_or_right(read: Callable[[], None], into: torch.Tensor, generation: int) -> str:
    """What a read of a dead owner's rows came to: one of the errors that say so, or the rows; never anything else."""
    try:
        read()
    except (TransferFailed, ClaimExpired, WorkerLost) as error:
        return f"{type(error).__name__}: {error}"
    assert bool((into == generation).all()), "rows that the owner never wrote came as right"
    return "the rows, which the device had written before the owner was gone"


def _used(device: torch.device) -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)
