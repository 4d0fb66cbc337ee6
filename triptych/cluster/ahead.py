"""Compiling kernels while the cluster is still being started; see models/ahead.py."""

import os
import subprocess
import sys
from pathlib import Path

from triptych.config import Settings
from triptych.journey import Role

_GPU = Path("/dev/nvidiactl")
_NICE = 5
_STOP_SECONDS = 5.0


class CompilingAhead:
    """Processes that compile; `stop` ends them, whatever they have come to. Without a GPU there are none."""

    def __init__(self, settings: Settings, roles: frozenset[Role]) -> None:
        """roles: of all workers that are about to start"""
        self._processes: list[subprocess.Popen[bytes]] = []
        if settings.serve.device == "cpu" or not _GPU.exists():
            return
        parts = (["tower"] if Role.ENCODE in roles else []) + (["decoder"] if roles - {Role.ENCODE} else [])
        for part in parts:
            self._processes.append(
                subprocess.Popen(
                    command(settings, part),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    preexec_fn=_be_nice,
                )
            )

    def __len__(self) -> int:
        return len(self._processes)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []


def command(settings: Settings, part: str) -> list[str]:
    """Of a process that compiles one part."""
    options = ["--dtype", settings.serve.dtype, "--block-size", str(settings.language.block_size)]
    options += ["--attention", settings.language.attention]
    return [sys.executable, "-m", "triptych.models.ahead", settings.serve.model, part, *options]


def _be_nice() -> None:
    os.nice(_NICE)
