"""What a Ray on this node would stumble over."""

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from triptych.doctor.finding import Asked, Finding, fail, ok, warn

# Ray puts session_2026-11-30_11-03-01_000000_1234567/sockets/plasma_store.1 and the like below its folder, and the
# path of a socket ends at 107 bytes.
_SOCKET_BYTES = 107
_BELOW_BYTES = len("/ray/session_2026-11-30_11-03-01_000000_1234567/sockets/plasma_store.12")
_LEAST_SHARE = 0.05  # beyond 95 % full Ray calls the disk full


def look_folder(asked: Asked) -> Finding:
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return fail(f"{folder}: {error.strerror}", "let RAY_TMPDIR name a folder that is there")
    return judge_folder(folder, usage.free, usage.total, os.access(folder, os.W_OK))


def judge_folder(folder: Path, free: int, total: int, is_writable: bool) -> Finding:
    seen = f"{folder} has {free / 2**30:.1f} GiB free of {total / 2**30:.1f}"
    if not is_writable:
        return fail(f"{seen}, and may not be written", "let RAY_TMPDIR name a folder of this user")
    if len(os.fsencode(folder)) + _BELOW_BYTES > _SOCKET_BYTES:
        return fail(f"{folder} is too long a name for the sockets below it", "let RAY_TMPDIR name a shorter path")
    if free < _LEAST_SHARE * total:
        return warn(f"{seen}, less than 5 %", "free some: Ray stops writing to a disk that is 95 % full")
    return ok(seen)


def look_token(asked: Asked) -> Finding:
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = None
    return judge_token(os.environ, path, mode)


def judge_token(environment: Mapping[str, str], path: Path, mode: int | None) -> Finding:
    """mode: of the token's file; None where there is none. The token itself is never read."""
    wanted = environment.get("RAY_AUTH_MODE", "").lower()
    if wanted == "disabled":
        advice = "unset RAY_AUTH_MODE: whoever reaches Ray's ports may run any code"
        return warn("RAY_AUTH_MODE=disabled", advice)
    if environment.get("RAY_AUTH_TOKEN"):
        return ok("the token is in RAY_AUTH_TOKEN")
    if mode is None and (wanted == "token" or environment.get("RAY_AUTH_TOKEN_PATH")):
        return fail(
            f"a token is asked for, and there is no {path}", "ray get-auth-token --generate, or copy the head's"
        )
    if mode is None:
        seen = "no token yet: a server that starts its own Ray makes one, ray start does not ask for any"
        return ok(f"{seen}; for several nodes: ray get-auth-token --generate, and the same on each")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warn(
            f"{path} has mode {stat.S_IMODE(mode):o}", f"chmod 600 {path}: who reads it may run any code in Ray"
        )
    return ok(f"{path} is there, for this user alone")
