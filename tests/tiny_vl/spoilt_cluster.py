"""Three tiers in three processes with a router in this one, and a switch for faults between them."""

from pathlib import Path

from tests.processes import ProcessCluster
from tests.tiny_vl.spoil import Fault, Switch
from tests.tiny_vl.spoilt_worker import SWITCH_VARIABLE
from triptych.config import MIB, Settings, load_settings

TABLES: dict[str, dict[str, object]] = {
    # Three workers on two cores: with a thread each they got a third more done than with as many as there are cores.
    "serve": {"cpu_threads": 1},
    "router": {"log_level": "warning"},
    "encoder": {"arena_bytes": 64 * MIB},
    # Spoilt rows are of all items at once: none may be left out because its KV was there already.
    "language": {"kv_bytes": 128 * MIB, "prefix_cache": False},
    "transfer": {"checksums": True},
}


def settings_of(model: str) -> Settings:
    """float32 on the CPU, every check on."""
    flags = {f"{table}.{name}": value for table, entries in TABLES.items() for name, value in entries.items()}
    flags |= {"serve.model": model, "serve.topology": "e+p+d", "serve.device": "cpu", "serve.dtype": "float32"}
    return load_settings(environment={}, flags=flags | {"router.port": 0})


class SpoiltCluster(ProcessCluster):
    """Up once the constructor returns; healthy until `switch` says otherwise."""

    def __init__(self, model: str, folder: Path) -> None:
        self.switch = Switch(folder / "fault")
        self.switch.set(Fault.NONE)
        environment = {SWITCH_VARIABLE: str(self.switch.file)}
        super().__init__(settings_of(model), folder, TABLES, "tests.tiny_vl.spoilt_worker", environment)
