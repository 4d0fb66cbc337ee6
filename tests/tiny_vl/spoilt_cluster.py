"""Three tiers in three processes with a router in this one, and a switch for faults between them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import ProcessCluster, WorkerProcess, toml_of
from tests.tiny_vl.spoil import Fault, Switch
from tests.tiny_vl.spoilt_worker import SWITCH_VARIABLE
from triptych.config import MIB, TOPOLOGIES, Settings, load_settings
from triptych.journey import Role
from triptych.models.card import load_card
from triptych.router.server import RouterServer

TABLES: dict[str, dict[str, object]] = {
    # Three workers on two cores: with a thread each they got a third more done than with as many as there are cores.
    "serve": {"cpu_threads": 1},
    "router": {"log_level": "warning"},
    "encoder": {"arena_bytes": 64 * MIB},
    "language": {"kv_bytes": 128 * MIB},
    "transfer": {"checksums": True},
}


def settings_of(model: str) -> Settings:
    """float32 on the CPU, every check on."""
    flags = {f"{table}.{name}": value for table, entries in TABLES.items() for name, value in entries.items()}
    flags |= {"serve.model": model, "serve.topology": "e+p+d", "serve.device": "cpu", "serve.dtype": "float32"}
    return load_settings(environment={}, flags=flags | {"router.port": 0})


class SpoiltWorker(WorkerProcess):
    """A worker whose entry point is the faulty one."""

    def __init__(self, name: str, roles: frozenset[Role], settings: Settings, config: Path, log: Path) -> None:
        self.worker_id = name
        self.roles = roles
        self._log = log.open("w")
        self._log_path = log
        command = [sys.executable, "-m", "tests.tiny_vl.spoilt_worker", "--roles", ",".join(sorted(roles))]
        command += ["--model", settings.serve.model, "--device", settings.serve.device, "--dtype", settings.serve.dtype]
        command += ["--worker-id", name, "--config", str(config)]
        environment = os.environ | {SWITCH_VARIABLE: str(config.parent / "fault")}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)


class SpoiltCluster(ProcessCluster):
    """Up once the constructor returns; healthy until `switch` says otherwise."""

    def __init__(self, model: str, folder: Path) -> None:
        self.switch = Switch(folder / "fault")
        self.switch.set(Fault.NONE)
        settings = settings_of(model)
        config = folder / "settings.toml"
        config.write_text(toml_of(TABLES))
        self._processes = [
            SpoiltWorker(f"worker-{index}", roles, settings, config, folder / f"worker-{index}.log")
            for index, roles in enumerate(TOPOLOGIES[settings.serve.topology])
        ]
        self.router = RouterServer(settings, load_card(settings.serve.model, settings.serve.dtype))
        try:
            self.workers = [process.wait_ready() for process in self._processes]
            self.url = f"http://127.0.0.1:{self.router.start()}"
            self.router.update(self.workers)
            self._wait_healthy()
        except BaseException:
            self.stop()
            raise
