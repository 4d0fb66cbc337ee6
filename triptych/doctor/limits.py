"""What the system lets one user and one process have."""

import resource
from pathlib import Path

import psutil

from triptych.config import MIB, RouterSettings
from triptych.doctor.finding import Asked, Finding, fail, ok, warn

_OTHER_FILES = 512  # a router's or worker's own, beside connections
_LEAST_FILES = 1024
_LEAST_PROCESSES = 2048  # threads count, and Ray alone has hundreds of them
_GOOD_PROCESSES = 8192
_RDMA = Path("/sys/class/infiniband")
_PIDS_LIMITS = (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max"))
_UNLIMITED = resource.RLIM_INFINITY


def look_open_files(asked: Asked) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_open_files(soft, hard, asked.settings.router)


def judge_open_files(soft: int, hard: int, router: RouterSettings) -> Finding:
    wanted = router.max_connections + router.concurrent_fetches + _OTHER_FILES
    seen = f"a process may open {_told(soft)} files, {_told(hard)} if it asks"
    raise_it = f"ulimit -n {wanted} before the server starts (LimitNOFILE= in systemd, ulimits in a container)"
    if _below(soft, _LEAST_FILES):
        return fail(seen, raise_it)
    if _below(soft, wanted):
        return warn(f"{seen}; router.max_connections = {router.max_connections} wants {wanted}", raise_it)
    return ok(seen)


def look_processes(asked: Asked) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return judge_processes(soft, [limit for file in _PIDS_LIMITS if (limit := _number(file)) is not None])


def judge_processes(soft: int, of_cgroup: list[int]) -> Finding:
    """of_cgroup: a container's own limits, if it has any"""
    limits = [limit for limit in (soft, *of_cgroup) if limit != _UNLIMITED]
    least = min(limits, default=_UNLIMITED)
    seen = f"{_told(least)} processes and threads for this user, of them {len(psutil.pids())} processes on the machine"
    advice = f"allow {_GOOD_PROCESSES} (ulimit -u, TasksMax= in systemd, pids limit of the container)"
    if _below(least, _LEAST_PROCESSES):
        return fail(seen, advice)
    return warn(seen, advice) if _below(least, _GOOD_PROCESSES) else ok(seen)


def look_locked_memory(asked: Asked) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return judge_locked_memory(soft, sorted(card.name for card in _RDMA.iterdir()) if _RDMA.is_dir() else [])


def judge_locked_memory(soft: int, cards: list[str]) -> Finding:
    """cards: network cards that can RDMA, which pins what it reads and writes"""
    seen = f"{'any amount' if soft == _UNLIMITED else f'{soft // MIB} MiB'} of locked memory"
    if not cards:
        return ok(f"{seen}; no RDMA card here that would want more")
    if soft == _UNLIMITED:
        return ok(f"{seen}, for {', '.join(cards)}")
    advice = "ulimit -l unlimited (LimitMEMLOCK=infinity in systemd), or NIXL goes by TCP"
    return warn(f"{seen}, and RDMA by {', '.join(cards)} locks whole slabs", advice)


def _below(limit: int, wanted: int) -> bool:
    return limit != _UNLIMITED and limit < wanted


def _told(limit: int) -> str:
    return "any number of" if limit == _UNLIMITED else str(limit)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such limit
        return None
