"""What a worker's GPU memory is planned for."""

from dataclasses import replace

import torch

from triptych.config import GIB, LanguageSettings, Settings
from triptych.journey import Role
from triptych.services.memory_plan import in_words, kv_bytes, plan_memory

LANGUAGE = frozenset({Role.PREFILL, Role.DECODE})
ALL = LANGUAGE | {Role.ENCODE}
H200 = 140 * GIB
WEIGHTS = 15 * GIB


def test_kv_gets_what_weights_and_reserve_leave_of_the_share() -> None:
    plan = plan_memory(Settings(), LANGUAGE, 1.0, H200, WEIGHTS)
    assert plan.budget == int(0.9 * H200)
    assert plan.kv_bytes == plan.budget - plan.taken - plan.reserve
    assert plan.kv_bytes > 100 * GIB


def test_workers_that_share_a_gpu_never_plan_for_more_than_there_is() -> None:
    plans = [plan_memory(Settings(), frozenset({role}), 0.333, H200, WEIGHTS) for role in Role]
    assert sum(plan.taken + plan.reserve + plan.kv_bytes for plan in plans) <= 0.9 * H200


def test_a_tower_in_the_same_process_has_a_reserve() -> None:
    without, beside = (plan_memory(Settings(), roles, 1.0, H200, WEIGHTS).kv_bytes for roles in (LANGUAGE, ALL))
    assert 2 * GIB < without - beside < 8 * GIB


def test_on_a_small_gpu_the_reserve_gives_way() -> None:
    plan = plan_memory(Settings(), ALL, 1.0, 24 * GIB, WEIGHTS)
    assert GIB < plan.kv_bytes < plan.budget - plan.taken


def test_a_worker_that_has_taken_all_gets_nothing() -> None:
    assert plan_memory(Settings(), ALL, 0.5, 24 * GIB, WEIGHTS).kv_bytes == 0


def test_a_setting_decides_and_the_cpu_has_a_size_of_its_own() -> None:
    cpu = torch.device("cpu")
    assert kv_bytes(Settings(), ALL, 1.0, cpu) == 512 << 20
    asked = replace(Settings(), language=LanguageSettings(kv_bytes=5 << 20))
    assert kv_bytes(asked, ALL, 1.0, cpu) == 5 << 20


def test_what_a_workers_memory_is_for_is_told_in_words() -> None:
    told = in_words(Settings(), LANGUAGE, 20 * GIB, 42 * GIB)
    assert told == "KV 20.0 GiB, landing rows 256 MiB, of 42.0 GiB of its GPU"
    assert in_words(Settings(), frozenset({Role.ENCODE}), 0, 0) == "encoded rows 256 MiB"
