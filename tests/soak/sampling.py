"""What a process holds, read from /proc."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = resource.getpagesize()
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Limit:
    """How much growth over a run still counts as none: what pools and allocators take late, and no leak stays below."""

    unit: str
    allowed: float


LIMITS: Mapping[str, Limit] = {
    "rss": Limit("MiB", 10.0),
    "descriptors": Limit("", 4.0),
    "mappings": Limit("", 24.0),  # glibc maps and unmaps arenas and large blocks as it goes
    "threads": Limit("", 2.0),
    "memfd": Limit("MiB", 1.0),
    "shm": Limit("MiB", 1.0),
    "shm_files": Limit("", 1.0),
}


def sample(pid: int) -> dict[str, float]:
    """Of one process. Raises OSError when it is gone."""
    folder = Path(f"/proc/{pid}")
    resident = int((folder / "statm").read_text().split()[1]) * PAGE_BYTES
    return {
        "rss": resident / 2**20,
        "descriptors": len(os.listdir(folder / "fd")),
        "mappings": (folder / "maps").read_bytes().count(b"\n"),
        "threads": len(os.listdir(folder / "task")),
        "memfd": _memfd_bytes(folder / "fd") / 2**20,
    }


def children(pid: int) -> list[int]:
    """Processes it has started and not ended, by their ids."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        found.update(int(child) for child in file.read_text().split())
    return sorted(found)


def sample_host() -> dict[str, float]:
    """Of /dev/shm, which outlives processes."""
    usage = os.statvfs(SHM)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    return {"shm": used / 2**20, "shm_files": len(os.listdir(SHM))}


def _memfd_bytes(descriptors: Path) -> int:
    """Allocated bytes behind open memfds, each counted once."""
    found: dict[int, int] = {}
    for name in os.listdir(descriptors):
        path = descriptors / name
        try:
            if os.readlink(path).startswith("/memfd:"):
                status = path.stat()
                found[status.st_ino] = status.st_blocks * 512
        except OSError:  # closed meanwhile
            continue
    return sum(found.values())
