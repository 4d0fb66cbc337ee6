"""Host memory that a worker takes once it is full, without weights. Pure."""

from collections.abc import Set

from triptych.config import CPU_KV_BYTES, MIB, Settings
from triptych.journey import Role

WORKER_BYTES = 850 * MIB  # of one that has started, nearly all of it PyTorch


def worker_bytes(settings: Settings, roles: Set[Role], *, has_gpu: bool = False) -> int:
    """has_gpu: its KV and rows lie there"""
    language, encoder = settings.language, settings.encoder
    needed = WORKER_BYTES
    if Role.ENCODE in roles:
        needed += encoder.host_cache_bytes + (0 if has_gpu else encoder.arena_bytes)
    if roles - {Role.ENCODE} and not has_gpu:
        needed += language.kv_bytes or CPU_KV_BYTES
    if Role.PREFILL in roles and not has_gpu:
        needed += language.landing_bytes
    if Role.DECODE in roles:
        needed += language.swap_bytes
    return needed
