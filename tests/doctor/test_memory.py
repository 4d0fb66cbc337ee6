"""Shared memory and memory in all."""

import os

import pytest

from triptych.config import GIB, MIB, load_settings
from triptych.doctor import memory
from triptych.doctor.finding import Asked, Verdict
from triptych.doctor.memory import judge_memory, judge_shared_memory, look_memfd, needed_bytes
from triptych.errors import TransferFailed
from triptych.multimodal.memfd import MemfdDescriptor, host_id

ASKED = Asked(load_settings(environment={}))


@pytest.mark.parametrize(
    ("free", "verdict"), [(64 * MIB, Verdict.FAIL), (256 * MIB, Verdict.WARN), (2 * GIB, Verdict.OK)]
)
def test_a_small_dev_shm_is_found(free: int, verdict: Verdict) -> None:
    assert judge_shared_memory(2 * GIB, free).verdict is verdict


def test_a_memfd_is_read_by_another_process() -> None:
    assert look_memfd(ASKED).verdict is Verdict.OK


def test_a_memfd_that_another_process_cannot_read_fails_with_its_reason() -> None:
    where = MemfdDescriptor(host_id(), os.getpid(), fd=99_999)
    assert "cannot read media memory" in memory._read_elsewhere(where)


def test_a_host_without_memfd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(TransferFailed):
        memory.MediaMemory(b"")
    assert look_memfd(ASKED).verdict is Verdict.FAIL


def test_more_workers_need_more_memory() -> None:
    one = load_settings(environment={})
    two = load_settings(environment={}, flags={"serve.decodes": 2})
    assert needed_bytes(two) - needed_bytes(one) == 850 * MIB + 512 * MIB + one.language.swap_bytes


def test_roles_in_one_process_need_one_processs_memory() -> None:
    apart = load_settings(environment={})
    together = load_settings(environment={}, flags={"serve.topology": "epd"})
    assert needed_bytes(apart) - needed_bytes(together) == 2 * 850 * MIB + 512 * MIB


@pytest.mark.parametrize(
    ("total", "verdict"), [(GIB // 2, Verdict.FAIL), (4 * GIB, Verdict.WARN), (8 * GIB, Verdict.OK)]
)
def test_a_machine_that_is_too_small_is_found(total: int, verdict: Verdict) -> None:
    assert judge_memory(total, 5 * GIB).verdict is verdict
