"""Whether a second set of workers fits beside the first, on a machine that is all there is."""

from collections.abc import Mapping
from pathlib import Path

import psutil

from triptych.cluster.groups import groups_of
from triptych.config import GIB, Settings
from triptych.config.host_memory import worker_bytes
from triptych.errors import InvalidRequest

_LEAST_SHARE = 0.001  # of a GPU: Ray counts no finer than ten thousandths
_CGROUP = Path("/sys/fs/cgroup")


def require_room_beside(
    settings: Settings, gpus: Mapping[str, float], counts: Mapping[str, int], free_gpus: float, free_bytes: float
) -> None:
    """Raises InvalidRequest, which says what to change. Pure.

    gpus: of each worker, by group; counts: workers, by group; free_bytes: of host memory
    """
    asked = sum(gpus.get(group, 0.0) * count for group, count in counts.items())
    if asked > free_gpus + _LEAST_SHARE:
        each = ", ".join(f"{count} x {gpus[group]:g} for {group}" for group, count in counts.items())
        raise InvalidRequest(
            f"a second set of workers asks for {asked:g} GPUs ({each}), and {free_gpus:g} are free; start the server "
            "with shares of which two sets fit, as by --gpu-share, or have fewer workers: triptych scale",
            param="model",
        )
    roles = groups_of(settings.serve.topology)
    has_gpu = asked > 0
    needed = sum(worker_bytes(settings, roles[group], has_gpu=has_gpu) * count for group, count in counts.items())
    if needed > free_bytes:
        raise InvalidRequest(
            f"a second set of workers takes up to {needed / GIB:.1f} GiB of memory besides weights, and "
            f"{free_bytes / GIB:.1f} GiB are free; lower language.kv_bytes, language.swap_bytes or "
            "encoder.arena_bytes, or have fewer workers: triptych scale",
            param="model",
        )


def available_bytes() -> float:
    """Of host memory, that may be taken here."""
    free = float(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        inactive = _inactive_file_bytes((_CGROUP / "memory.stat").read_text())
    except (OSError, ValueError):  # no container, or one of another kind
        return free
    return free if limit == "max" else min(free, float(int(limit) - used + inactive))


def _inactive_file_bytes(stat: str) -> int:
    """That the kernel gives up as soon as others ask."""
    lines = (line.split() for line in stat.splitlines())
    return next((int(value) for name, value in lines if name == "inactive_file"), 0)
