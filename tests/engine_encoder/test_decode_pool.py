"""Images decoded in processes: the same pixels, and nobody pays for a stranger's file but the stranger."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import AvifImagePlugin, Image

from tests.engine_encoder.faulty_decode import MARK
from tests.engine_encoder.rig import item_of, picture, running
from triptych.config import EncoderSettings
from triptych.errors import Cancelled, ConfigError, InternalError, InvalidMedia, Overloaded
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.multimodal.canonical import UInt8Array, to_rgb
from triptych.multimodal.sniff import sniff
from triptych.services.encoder.decode_pool import DecodeLimits, DecodePool
from triptych.services.encoder.decode_wire import Allowance, Answer, Order, Outcome
from triptych.services.encoder.decoding import OnThreads, choose_decoder
from triptych.services.encoder.prepare import Preparer

FAULTY = "tests.engine_encoder.faulty_decode"
# Little time, so that tests take little; the clock stands still for nobody on a busy machine.
LIMITS = DecodeLimits(cpu_seconds=0.2, clock_factor=15.0)
FAULTS = ("crash", "spin", "memory")
NAMED = {"crash": "SIGSEGV", "spin": "processor's time", "memory": "MiB"}


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    made = DecodePool(2, LIMITS, FAULTY)
    yield made
    made.close()


def faulty(data: bytes, fault: str) -> bytes:
    return data + MARK + fault.encode()


def decoded(pool: DecodePool, data: bytes) -> UInt8Array:
    with pool.planes(data, sniff(data)) as planes:
        return planes.transpose(1, 2, 0).copy()


def held_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_pixels_are_those_of_a_thread_to_the_last_bit(card: ModelCard, prepare: Preparer, pool: DecodePool) -> None:
    isolated = Preparer(card, decoder=pool)
    for width, height in ((56, 56), (61, 33), (224, 224), (1030, 700)):
        data = picture(7, width, height)
        item = item_of(card, data)
        expected, found = prepare(data, item), isolated(data, item)
        assert torch.equal(found.pixels, expected.pixels)
        assert (found.grid, found.rows) == (expected.grid, expected.rows)


def test_an_image_larger_than_the_standing_memory_brings_its_own(pool: DecodePool) -> None:
    data = picture(8, 2600, 2300)
    before = held_descriptors()
    for _ in range(2):
        assert np.array_equal(decoded(pool, data), to_rgb(data))
    assert held_descriptors() == before


@pytest.mark.skipif(not AvifImagePlugin.SUPPORTED, reason="this Pillow has no AVIF")
def test_an_avif_needs_no_more_there_than_it_may_have(pool: DecodePool) -> None:
    for width, height in ((61, 33), (1030, 700)):
        file = BytesIO()
        Image.fromarray(to_rgb(picture(8, width, height))).save(file, "AVIF", speed=10)
        assert np.array_equal(decoded(pool, file.getvalue()), to_rgb(file.getvalue()))


def test_pixels_stay_when_the_memory_is_used_again(card: ModelCard, pool: DecodePool) -> None:
    isolated = Preparer(card, decoder=pool)
    files = [picture(seed) for seed in range(12)]  # of a size that needs no resizing
    made = [isolated(data, item_of(card, data)).pixels for data in files]
    for data, pixels in zip(files, made, strict=True):
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), to_rgb(data))


def test_what_the_decoder_says_of_a_file_is_said(pool: DecodePool) -> None:
    data = picture(1)[:-40]
    with pytest.raises(InvalidMedia) as expected:
        to_rgb(data, sniff(picture(1)))
    with pytest.raises(InvalidMedia) as found, pool.planes(data, sniff(picture(1))):
        pass
    assert (found.value.message, found.value.media_code) == (expected.value.message, expected.value.media_code)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_ends_its_process_is_an_invalid_image_by_its_index(
    card: ModelCard, pool: DecodePool, fault: str
) -> None:
    data = picture(3)
    with pytest.raises(InvalidMedia, match=NAMED[fault]) as caught:
        Preparer(card, decoder=pool)(faulty(data, fault), item_of(card, data, index=5))
    assert (caught.value.item_index, caught.value.media_code) == (5, "invalid_image")
    assert np.array_equal(decoded(pool, data), to_rgb(data))


def test_one_that_sleeps_is_ended_by_the_clock() -> None:
    pool = DecodePool(1, DecodeLimits(cpu_seconds=0.1, clock_factor=5.0), FAULTY)
    pool.await_started()
    data = picture(3)
    with pytest.raises(InvalidMedia, match=r"more than 0\.5\d* s"):
        decoded(pool, faulty(data, "sleep"))
    assert pool.gauges()["encoder_decode_lost_total"] == 2
    pool.close()


def test_an_image_whose_process_died_of_something_else_is_decoded_by_another(pool: DecodePool, tmp_path: Path) -> None:
    flag = tmp_path / "strike"
    flag.touch()
    data = picture(4)
    assert np.array_equal(decoded(pool, faulty(data, f"once {flag}")), to_rgb(data))
    assert not flag.exists()


def test_idle_processes_that_were_killed_cost_nobody_an_image(pool: DecodePool) -> None:
    pool.await_started()
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
        _await_death(pid)
    data = picture(5)
    assert np.array_equal(decoded(pool, data), to_rgb(data))


def test_a_bug_of_ours_is_not_the_files_fault_and_ends_nothing(pool: DecodePool) -> None:
    lost = pool.gauges()["encoder_decode_lost_total"]
    with pytest.raises(InternalError, match="KeyError"):
        decoded(pool, faulty(picture(1), "bug"))
    assert pool.gauges()["encoder_decode_lost_total"] == lost


@pytest.mark.slow
def test_a_hundred_bad_files_among_good_ones_cost_themselves_alone(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    before = held_descriptors()
    pool = DecodePool(2, DecodeLimits(cpu_seconds=0.05, clock_factor=100.0), FAULTY)
    good, bad = [picture(seed) for seed in range(100)], [picture(1000 + seed) for seed in range(100)]
    files = [faulty(data, FAULTS[at % len(FAULTS)]) for at, data in enumerate(bad)]
    with running(card, tower, Preparer(card, decoder=pool), settings=EncoderSettings()) as rig:
        wishes = [
            (rig.wish(data), rig.wish(file, index=at, item=item_of(card, plain, index=at)))
            for at, (data, file, plain) in enumerate(zip(good, files, bad, strict=True))
        ]
        for at, (sound, broken) in enumerate(wishes):
            assert broken.error.item_index == at
            assert isinstance(broken.error, InvalidMedia), broken.error
            item = item_of(card, good[at])
            patches = tower.patches([prepare(good[at], item).pixels], [item.grid])
            expected = tower.encode(patches, (item.grid,)).view_as(rig.rows(sound.ref))
            assert torch.allclose(rig.rows(sound.ref), expected, atol=1e-5)
        rig.release([sound for sound, _ in wishes])
        rig.settle()
    assert rig.fatal == []
    pids = pool.pids()
    pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert held_descriptors() == before


def test_several_threads_get_on_at_once(pool: DecodePool) -> None:
    files = [picture(seed, 100 + seed, 90) for seed in range(40)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda data: decoded(pool, data), files))
    assert all(np.array_equal(pixels, to_rgb(data)) for pixels, data in zip(found, files, strict=True))


def test_closing_ends_what_is_being_decoded() -> None:
    pool = DecodePool(1, DecodeLimits(), FAULTY)
    pool.await_started()
    (pid,) = pool.pids()
    failed: list[BaseException] = []

    def decode() -> None:
        try:
            decoded(pool, faulty(picture(1), "sleep"))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    _await(lambda: not pool._idle)
    pool.close()
    thread.join(10)
    assert isinstance(failed[0], Cancelled)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("fault", ["", "sleep"])
def test_processes_end_with_an_encoder_that_is_killed(fault: str) -> None:
    code = f"""
import sys, threading
from tests.engine_encoder.rig import picture
from tests.engine_encoder.test_decode_pool import FAULTY, decoded, faulty
from triptych.services.encoder.decode_pool import DecodePool
pool = DecodePool(1, module=FAULTY)
pool.await_started()
print(*pool.pids(), flush=True)
decoded(pool, faulty(picture(1), {fault!r}))
threading.Event().wait(60)
"""
    encoder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert encoder.stdout is not None
    pid = int(encoder.stdout.readline())
    encoder.kill()
    encoder.wait()
    encoder.stdout.close()
    _await_death(pid)


def test_a_process_has_no_secret_of_ours_and_few_rights(pool: DecodePool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.await_started()
    monkeypatch.setenv("TRIPTYCH_SECRET", "hush")
    made = DecodePool(1)
    made.await_started()
    (pid,) = made.pids()
    assert b"TRIPTYCH" not in Path(f"/proc/{pid}/environ").read_bytes()
    status = Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    for name in ("Max core file size", "Max file size", "Max processes"):
        assert next(line for line in limits if line.startswith(name)).removeprefix(name).split()[:2] == ["0", "0"]
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert sum(link.startswith("socket:") for link in links) == 1
    assert sum(link.startswith("/memfd:triptych-decode") for link in links) == 1
    assert len(links) <= 6  # besides these, the standard three and what the process is measured by
    made.close()


def test_processes_that_do_not_start_are_said_at_start() -> None:
    pool = DecodePool(1, module="tests.engine_encoder.nothing_here")
    with pytest.raises(ConfigError, match=r"decode_isolation.*do not start"):
        pool.await_started()
    pool.close()


def test_a_process_that_is_got_at_the_last_moment_is_not_lost_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    made = DecodePool(1, LIMITS, FAULTY)
    deadline = time.monotonic() + 30
    while not made.pids():
        assert time.monotonic() < deadline
    monkeypatch.setattr("triptych.services.encoder.decode_pool._START_SECONDS", 0.0)
    data = picture(3)
    with contextlib.suppress(InternalError, Overloaded):  # it had not started yet
        decoded(made, data)
    monkeypatch.undo()
    assert decoded(made, data).size
    assert len(made.pids()) == 1
    made.close()


def test_the_setting_chooses() -> None:
    assert isinstance(choose_decoder("threads", 2), OnThreads)
    for setting in ("auto", "processes"):
        made = choose_decoder(setting, 1)
        assert isinstance(made, DecodePool)
        made.close()
    with pytest.raises(ConfigError, match=r"encoder\.decode_isolation"):
        EncoderSettings(decode_isolation="none")


def test_time_and_memory_follow_the_header_and_are_bounded() -> None:
    limits = DecodeLimits()
    small, large, absurd = limits.of(224 * 224, 10_000), limits.of(12_000_000, 4_000_000), limits.of(1 << 40, 1)
    assert small.cpu_seconds < large.cpu_seconds < absurd.cpu_seconds == limits.most_cpu_seconds
    assert small.memory_bytes < large.memory_bytes
    assert absurd.seconds == limits.most_seconds


def test_what_is_told_comes_back_from_bytes() -> None:
    data = picture(1)
    order = Order(len(data), sniff(data), Allowance(1.5, 7.0, 1 << 33), brings_memory=True)
    assert Order.from_bytes(order.to_bytes()) == order
    answer = Answer(Outcome.INVALID, "invalid_image", "the PNG is truncated \N{EM DASH} so it is")
    assert Answer.from_bytes(answer.to_bytes()) == answer


def _await(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < limit, "never came about"
        time.sleep(0.002)


def _await_death(pid: int) -> None:
    """Gone, or a zombie that its parent has yet to see."""

    def is_dead() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    _await(is_dead)
