"""The arrows between the rooms: who may import whom, read from the source itself."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"triptych": ROOT / "triptych", "triptych.services": ROOT / "services", "triptych.router": ROOT / "router"}

NOUNS = {"journey", "sampling", "stages", "dtypes", "errors"}
BASE = NOUNS | {"config", "metrics", "multimodal", "grammar"}
ROUTER = BASE | {"wire", "pb", "models", "transfer.protocol", "json_lines", "logs", "garbage"}
TIER = BASE | {"models", "transfer", "engine", "wire", "pb"}

# Room -> rooms it may import. A dotted name is one module or folder of a room.
ARROWS: Mapping[str, set[str]] = {
    "errors": set(),
    "dtypes": {"errors"},
    "journey": {"errors", "dtypes"},
    "sampling": {"errors", "grammar.spec"},
    "grammar": {"errors", "sampling"},
    "stages": {"errors"},
    "config": NOUNS,
    "metrics": NOUNS,
    "pb": set(),
    "wire": NOUNS | {"pb", "grammar.spec"},
    "multimodal": NOUNS,
    "models": BASE,
    "transfer": BASE,
    "engine": BASE | {"models.base", "transfer"},
    "services": TIER | {"garbage", "logs"},
    "services.encoder": TIER | {"services", "logs"},
    "services.prefill": TIER | {"services", "logs"},
    "services.decode": TIER | {"services", "logs"},
    # Of models the torch-free half, see the closure below; of transfer the rules for whoever keeps claims alive.
    "router": ROUTER,
    "router.fleet": ROUTER,
    "router.media": ROUTER
    | {"router.api.messages", "router.common_memory", "router.edge.budget", "router.observe.timeline", "router.tasks"},
    "router.observe": ROUTER | {"router.api.usage", "router.pipeline.request"},
    "cluster": TIER - {"wire", "pb"} | {"services", "router", "client", "json_lines", "logs", "garbage"},
    "json_lines": set(),
    "logs": set(),
    "garbage": set(),
    "batch": {"errors"},
    "doctor": BASE | {"transfer"},
    "loadgen": {"errors", "config"},
    "client": {"errors", "config"},
    "cli": {"errors", "config"},  # loads the chosen command's module by name
}

FRAMEWORKS = {"grpc", "fastapi", "starlette", "uvicorn", "ray"}
DEVICES = {"torch", "torchvision", "transformers", "triton", "cuda"}
# Room -> packages it must not import.
BANNED: Mapping[str, set[str]] = {
    "dtypes": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "journey": FRAMEWORKS | DEVICES | {"PIL"},
    "sampling": FRAMEWORKS | DEVICES | {"PIL"},
    "grammar": FRAMEWORKS | DEVICES | {"PIL"},
    "stages": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "errors": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "config": FRAMEWORKS | DEVICES | {"PIL"},
    "metrics": FRAMEWORKS | DEVICES | {"PIL"},
    "wire": {"ray", "fastapi", "starlette", "uvicorn"} | DEVICES,
    "multimodal": FRAMEWORKS | DEVICES,
    "models": FRAMEWORKS,
    "transfer": FRAMEWORKS | {"transformers"},
    "engine": FRAMEWORKS,
    "services": {"ray", "fastapi", "starlette", "uvicorn"},
    "router": {"ray", "PIL"} | DEVICES,
    "json_lines": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "logs": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "garbage": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "batch": FRAMEWORKS | DEVICES | {"PIL", "numpy"},
    "doctor": FRAMEWORKS | {"transformers", "torchvision"},
    "loadgen": FRAMEWORKS | DEVICES,
    "client": FRAMEWORKS | DEVICES,
    "cli": FRAMEWORKS | DEVICES | {"numpy"},
}
BANNED_EVERYWHERE = {
    "pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "services",
    "router",
    "encoder",
    "prefill",
    "decode",
}

# Decisions and bookkeeping that must run, and be tested, without a device.
WITHOUT_TORCH = (
    *("engine.blocks", "engine.scheduler", "engine.sequence", "engine.block_keys", "engine.prefix_index"),
    *("engine.windows", "engine.decode_places", "engine.encoder_scheduler", "engine.encoder_waiting"),
    *("engine.encoder_budgets", "engine.encoder_buckets", "engine.store_entry", "engine.host_books"),
    *(
        "engine.store_books",
        "engine.embedding_store",
        "engine.eviction",
        "engine.extents",
        "engine.prefixes",
        "engine.landing_books",
    ),
    "transfer.leases",
    *("transfer.protocol.pulling", "transfer.protocol.takeover"),
    *("transfer.protocol.renewing", "transfer.protocol.peering"),
)
ONLY_PILLOW = "multimodal.canonical"
OPTIONAL_HARDWARE = {"cuda", "triton", "nixl_cu13", "flashinfer", "pynvml"}
BY_NAME = {"import_module", "__import__"}
LATE = {
    *("cli", "cluster.actors"),  # the chosen command's module; what a Ray actor loads in its own process
    "doctor.child",  # the one check that this process is for
    "router.observe.traces",  # OpenTelemetry's packages, where spans are wanted
    # A worker's roles; the vision tower's half, and the modules of transformers; torch's compiler: seconds of a start.
    *("cluster.roles", "models.loading", "models.qwen2_5_vl.decoders"),
    *("models.attention.sdpa_step", "models.attention.choice"),
}
THREADED = ("engine", "models", "transfer", "multimodal")
LIVE_ROUTER = DEVICES | {"ray", "PIL"}


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where."""

    name: str
    line: int
    in_function: bool
    relative: bool = False
    by_name: bool = False  # importlib.import_module("...")


@dataclass(frozen=True)
class Module:
    """One source file of ours; its name lacks the leading `triptych.`"""

    name: str
    tree: ast.Module

    @property
    def room(self) -> str:
        first, _, rest = self.name.partition(".")
        inner = f"{first}.{rest.partition('.')[0]}"
        return inner if inner in ARROWS else first

    def imports(self) -> Iterator[Import]:
        yield from _imports(self.tree, in_function=False)

    def ours(self) -> Iterator[tuple[str, int]]:
        """Names of imported modules of ours, without the leading `triptych.`"""
        for found in self.imports():
            if found.name.startswith("triptych."):
                yield found.name.removeprefix("triptych."), found.line


def _imports(node: ast.AST, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, in_function)
        elif isinstance(child, ast.ImportFrom):
            # `from triptych.models import base` names a module or a value: both are held to the arrows.
            for alias in child.names:
                name = f"{child.module}.{alias.name}" if child.module in PACKAGES else str(child.module)
                yield Import(name, child.lineno, in_function, relative=child.level > 0)
        elif isinstance(child, ast.Call) and ast.unparse(child.func).rpartition(".")[2] in BY_NAME:
            known = isinstance(child.args[0], ast.Constant)
            yield Import(ast.literal_eval(child.args[0]) if known else "?", child.lineno, in_function, by_name=True)
        yield from _imports(child, inside)


def _read_modules() -> dict[str, Module]:
    modules = {}
    for prefix, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            name = ".".join((prefix, *parts)).removeprefix("triptych").removeprefix(".")
            modules[name] = Module(name, ast.parse(file.read_text(), str(file)))
    return modules


def _packages() -> set[str]:
    return {
        ".".join((prefix, *init.parent.relative_to(folder).parts))
        for prefix, folder in FOLDERS.items()
        for init in folder.rglob("__init__.py")
    }


PACKAGES = _packages()
MODULES = _read_modules()
ROOM_MODULES = [module for module in MODULES.values() if module.name]


def wrong_arrows(module: Module) -> list[str]:
    allowed = ARROWS[module.room] | {module.room}
    return [
        f"{module.name}:{line} imports triptych.{name}"
        for name, line in module.ours()
        if not any(name == room or name.startswith(f"{room}.") for room in allowed) or _other_tier(module.room, name)
    ]


def _other_tier(room: str, name: str) -> bool:
    tiers = {"services.encoder", "services.prefill", "services.decode"}
    return room in tiers and any(name == tier or name.startswith(f"{tier}.") for tier in tiers - {room})


def banned_packages(module: Module) -> list[str]:
    first = module.room.partition(".")[0]
    banned = BANNED_EVERYWHERE | BANNED.get(first, set())
    banned |= {"torch"} if module.name in WITHOUT_TORCH else set()
    banned |= {"PIL"} if first == "multimodal" and module.name != ONLY_PILLOW else set()
    return [
        f"{module.name}:{found.line} imports {found.name}"
        for found in module.imports()
        if found.name.partition(".")[0] in banned
    ]


def async_lines(module: Module) -> list[str]:
    kinds = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    lines = [node.lineno for node in ast.walk(module.tree) if isinstance(node, kinds)]
    lines += [found.line for found in module.imports() if found.name.partition(".")[0] == "asyncio"]
    return [f"{module.name}:{line}" for line in lines]


def closure(start: str) -> dict[str, Module]:
    """All modules of ours that importing this room's modules brings in, packages on the way included."""
    waiting = [name for name in MODULES if name == start or name.startswith(f"{start}.")]
    reached: dict[str, Module] = {}
    while waiting:
        name = waiting.pop()
        if name in reached or name not in MODULES:
            continue
        reached[name] = MODULES[name]
        for imported, _ in MODULES[name].ours():
            parts = imported.split(".")
            waiting += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return reached


@pytest.mark.parametrize("module", ROOM_MODULES, ids=lambda module: module.name)
def test_a_module_imports_only_what_its_room_may(module: Module) -> None:
    assert wrong_arrows(module) + banned_packages(module) == []


def test_every_room_has_its_arrows() -> None:
    assert {module.room for module in ROOM_MODULES} == set(ARROWS)


def test_imports_stand_on_top_and_are_absolute() -> None:
    assert [
        f"{module.name}:{found.line}"
        for module in ROOM_MODULES
        for found in module.imports()
        if found.relative
        or (found.in_function and not found.by_name and found.name.partition(".")[0] not in OPTIONAL_HARDWARE)
    ] == []


def test_modules_are_imported_by_name_only_where_a_process_must_stay_light() -> None:
    assert {
        module.name
        for module in ROOM_MODULES
        for found in module.imports()
        if found.by_name and found.name.partition(".")[0] not in OPTIONAL_HARDWARE
    } <= LATE


def test_below_the_services_nothing_is_async() -> None:
    below = [module for module in ROOM_MODULES if module.room in THREADED or module.name.endswith(".worker")]
    assert [line for module in below if module.name != "cluster.worker" for line in async_lines(module)] == []


def test_nothing_the_router_imports_brings_a_device_library() -> None:
    assert [
        f"{module.name}:{found.line} imports {found.name}"
        for module in closure("router").values()
        for found in module.imports()
        if found.name.partition(".")[0] in LIVE_ROUTER
    ] == []


def test_importing_the_router_loads_no_device_library() -> None:
    names = sorted(f"triptych.{name}" for name in MODULES if name.startswith("router") and "__main__" not in name)
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert set(done.stdout.split()) & LIVE_ROUTER == set()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("multimodal.layout", "from triptych.models import base"),
        ("multimodal.layout", "from triptych.models.base import KVGeometry"),
        ("multimodal.rows", "import torch.nn"),
        ("multimodal.sniff", "from PIL import Image"),
        ("engine.loop", "import triptych.models.loading"),
        ("engine.loop", "from triptych import wire"),
        ("engine.loop", "import grpc.aio"),
        ("engine.scheduler", "import torch"),
        ("transfer.reader", "from triptych.engine.blocks import BlockPool"),
        ("models.card", "def late():\n    from triptych.engine import loop"),
        ("services.encoder.worker", "import triptych.services.prefill.worker"),
        ("services.host", "import ray"),
        ("router.app", "import triptych.engine.blocks"),
        ("router.app", "if True:\n    import torch"),
        ("journey", "from triptych.config import Settings"),
        ("wire", "import pickle"),
        ("cluster.serve", "import services"),
    ],
)
def test_a_wrong_import_is_seen(name: str, source: str) -> None:
    module = Module(name, ast.parse(source))
    assert wrong_arrows(module) + banned_packages(module)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("engine.loop", "from triptych.models.base import LanguageModel"),
        ("engine.loop", "from triptych.models import base\nimport torch"),
        ("services.encoder.worker", "from triptych import wire\nfrom triptych.services.host import Host"),
        ("cluster.actors", "import ray\nimport triptych.services.prefill.worker"),
        ("multimodal.canonical", "from PIL import Image"),
    ],
)
def test_a_right_import_is_not_seen(name: str, source: str) -> None:
    module = Module(name, ast.parse(source))
    assert wrong_arrows(module) + banned_packages(module) == []
