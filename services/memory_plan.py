"""How a GPU's memory is shared out: KV gets what the plan leaves, never a race for what happens to be free.

A worker may use its share of each GPU's total memory: `serve.gpu_share` of it, by the number of workers there. What it
has taken by the time KV is made (weights, mostly) and a reserve for what comes later are subtracted.
"""

import logging
from dataclasses import dataclass

import torch

from triptych.config import CPU_KV_BYTES, GIB, MIB, Settings
from triptych.journey import Role

log = logging.getLogger(__name__)

_CONTEXT_BYTES = 1 * GIB  # of CUDA itself and of libraries, which no allocator of ours counts
_WORK_BYTES = 4 * GIB  # activations, what graphs keep, workspaces
_TOWER_BYTES = 3 * GIB  # a vision tower with its graphs, which is loaded after the language model
_LEAST_SHARE = 4  # of what is left after weights, one part at the least is KV: a small GPU reserves less


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one worker on one GPU."""

    budget: int  # all it may use
    taken: int  # by the time that KV is made
    reserve: int  # for what comes later

    @property
    def kv_bytes(self) -> int:
        left = max(0, self.budget - self.taken)
        return max(left - self.reserve, left // _LEAST_SHARE)

    def __str__(self) -> str:
        parts = {"budget": self.budget, "taken": self.taken, "reserve": self.reserve, "KV": self.kv_bytes}
        return ", ".join(f"{name} {num_bytes / GIB:.1f} GiB" for name, num_bytes in parts.items())


def plan_memory(
    settings: Settings, roles: frozenset[Role], device_share: float, total_bytes: int, allocated_bytes: int
) -> MemoryPlan:
    """The plan of a worker with these roles. Pure.

    device_share: of the GPU, among the workers placed on it; allocated_bytes: by this process so far
    """
    reserve = _WORK_BYTES + settings.language.landing_bytes
    if Role.ENCODE in roles:
        reserve += _TOWER_BYTES + settings.encoder.arena_bytes
    budget = int(total_bytes * settings.serve.gpu_share * device_share)
    return MemoryPlan(budget, allocated_bytes + _CONTEXT_BYTES, reserve)


def in_words(settings: Settings, roles: frozenset[Role], num_kv_bytes: int, budget: int) -> str:
    """What the memory of a worker that is ready is for.

    num_kv_bytes: of its KV slab, 0 where it has none; budget: bytes of its GPU that it may use, 0 without one
    """
    parts = {"KV": num_kv_bytes}
    if roles & {Role.PREFILL, Role.DECODE}:
        parts["landing rows"] = settings.language.landing_bytes
    if Role.ENCODE in roles:
        parts["encoded rows"] = settings.encoder.arena_bytes
    told = ", ".join(f"{name} {_size(num_bytes)}" for name, num_bytes in parts.items() if num_bytes)
    return f"{told}, of {_size(budget)} of its GPU" if budget else told


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"


def budget_of(settings: Settings, device_share: float, device: torch.device) -> int:
    """Bytes of its GPU that a worker may use; 0 without one."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory * settings.serve.gpu_share * device_share)


def kv_bytes(settings: Settings, roles: frozenset[Role], device_share: float, device: torch.device) -> int:
    """What `language.kv_bytes` asks for; where it leaves that open, what this worker's plan has for it."""
    if settings.language.kv_bytes or device.type != "cuda":
        return settings.language.kv_bytes or CPU_KV_BYTES
    total = torch.cuda.get_device_properties(device).total_memory
    plan = plan_memory(settings, roles, device_share, total, torch.cuda.memory_reserved(device))
    log.info("memory of this worker: %s", plan)
    return plan.kv_bytes
