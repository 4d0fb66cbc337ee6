"""Where a figure comes from: kind of machine, versions, commit, date. No host names, no paths."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("triptych", "torch", "transformers", "ray", "grpcio", "aiohttp", "uvicorn")


def provenance() -> dict[str, Any]:
    """JSON-ready; the versions are those of this process's environment."""
    return {
        "machine": machine_kind(),
        "versions": {"python": platform.python_version()} | _installed(),
        "commit": commit_of(Path(__file__).parent),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def machine_kind() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
    }


def commit_of(folder: Path) -> str | None:
    """The commit of the checkout that tracks this folder, marked when its files differ; None outside a checkout."""
    try:
        if not _git(folder, "ls-files", "."):
            return None
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
