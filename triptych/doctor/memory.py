"""Memory that processes of this node share, and how much of it there is."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from triptych.config import GIB, MIB, TOPOLOGIES, Settings
from triptych.config.host_memory import WORKER_BYTES, worker_bytes
from triptych.doctor.finding import Asked, Finding, fail, ok, warn
from triptych.errors import TransferFailed
from triptych.journey import Role
from triptych.multimodal.memfd import MediaMemory, MemfdDescriptor, read_memfd

_RAY_STORE_BYTES = 100 * MIB  # of a Ray that a server starts for itself
_RAY_ROOM_BYTES = 1 * GIB  # of one that is started by hand it takes more, and falls back to files without
_SHM = Path("/dev/shm")
_READER_SECONDS = 20.0
_CONTENT = b"triptych doctor" * 100
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def look_shared_memory(asked: Asked) -> Finding:
    try:
        status = os.statvfs(_SHM)
    except OSError as error:
        return fail(f"{_SHM}: {error.strerror}", f"mount a tmpfs on {_SHM}; Ray keeps its object store there")
    return judge_shared_memory(status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail)


def judge_shared_memory(total: int, free: int) -> Finding:
    seen = f"{_SHM} has {_told(free)} free of {_told(total)}"
    advice = f"enlarge {_SHM}: docker run --shm-size=2g, in Kubernetes an emptyDir with medium Memory"
    if free < _RAY_STORE_BYTES:
        return fail(f"{seen}; Ray's object store alone takes {_told(_RAY_STORE_BYTES)}", advice)
    if free < _RAY_ROOM_BYTES:
        return warn(seen, f"enough for a Ray that a server starts for itself; for one you start, {advice}")
    return ok(seen)


def look_memfd(asked: Asked) -> Finding:
    """Written here, read by another process: what rows, KV blocks and media bytes do on a host without GPUs."""
    advice = "let processes of one user open each other's /proc/PID/fd (hidepid, seccomp or a sandbox forbids it)"
    try:
        with MediaMemory(_CONTENT) as memory:
            reason = _read_elsewhere(memory.descriptor)
    except TransferFailed as error:
        return fail(error.message, "Linux with memfd_create is needed; see whether seccomp forbids it")
    if reason:
        return fail(f"another process cannot read a memfd of this one: {reason}", advice)
    return ok(f"another process has read {len(_CONTENT)} bytes out of a memfd of this one")


def _read_elsewhere(where: MemfdDescriptor) -> str:
    """Why not; empty where it went well."""
    command = [sys.executable, "-m", "triptych.doctor.memory", where.host_id, str(where.pid), str(where.fd)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_READER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took longer than {_READER_SECONDS:g} s"
    if done.returncode:
        return (done.stdout or done.stderr).strip().splitlines()[-1] if done.stdout or done.stderr else "it crashed"
    return ""


def look_memory(asked: Asked) -> Finding:
    total = min([psutil.virtual_memory().total, *_cgroup_bytes()])
    return judge_memory(total, needed_bytes(asked.settings))


def needed_bytes(settings: Settings) -> int:
    """Host memory of all workers once they are full, on the CPU and without weights. Pure."""
    serve = settings.serve
    counts = {Role.ENCODE: serve.encoders, Role.PREFILL: serve.prefills, Role.DECODE: serve.decodes}
    return sum(
        worker_bytes(settings, roles) * max(counts[role] for role in roles) for roles in TOPOLOGIES[serve.topology]
    )


def judge_memory(total: int, needed: int) -> Finding:
    seen = f"{_told(total)} here; all workers of this server on the CPU take up to {_told(needed)} besides weights"
    if total < WORKER_BYTES:
        return fail(seen, "give the machine or container more memory: one worker alone takes more")
    if total < needed:
        return warn(seen, "put workers on several nodes, or lower language.kv_bytes, swap_bytes or encoder.arena_bytes")
    return ok(seen)


def _cgroup_bytes() -> list[int]:
    """What a container may use, where it has a limit."""
    found = []
    for file in _CGROUP_LIMITS:
        try:
            found.append(int(file.read_text()))
        except (OSError, ValueError):  # there is no such file, or no limit: "max"
            continue
    return found


def _told(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"


def _read_here(host: str, pid: str, fd: str) -> int:
    try:
        found = read_memfd(MemfdDescriptor(host, int(pid), int(fd)), len(_CONTENT))
    except TransferFailed as error:
        print(error.message)
        return 1
    return 0 if found == _CONTENT else 2


if __name__ == "__main__":
    sys.exit(_read_here(*sys.argv[1:4]))
