"""The committed protobuf code is what the contracts in proto/ generate."""

import importlib
from pathlib import Path

import pytest

import triptych.pb
from tools.generate_proto import ROOT, generate

COMMITTED = Path(triptych.pb.__file__).parent
SERVICES = {"encoder": "Encoder", "prefill": "Prefill", "decode": "Decode", "worker": "Worker"}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    generate(folder)
    return folder / "triptych" / "pb"


def test_the_committed_code_equals_a_regeneration(generated: Path) -> None:
    names = sorted(file.name for file in generated.iterdir())
    assert names == sorted(file.name for file in COMMITTED.glob("*_pb2*.py*"))
    changed = [name for name in names if (generated / name).read_text() != (COMMITTED / name).read_text()]
    assert changed == [], "run: make proto"


def test_every_contract_is_generated() -> None:
    contracts = {file.stem for file in (ROOT / "proto").glob("*.proto")}
    assert contracts == {file.name.removesuffix("_pb2.py") for file in COMMITTED.glob("*_pb2.py")}
    assert set(SERVICES) | {"common"} == contracts


@pytest.mark.parametrize("name", SERVICES)
def test_generated_imports_need_no_patching(name: str) -> None:
    """Their virtual path is the import path."""
    messages = importlib.import_module(f"triptych.pb.{name}_pb2")
    stubs = importlib.import_module(f"triptych.pb.{name}_pb2_grpc")
    service = messages.DESCRIPTOR.services_by_name[SERVICES[name]]
    assert {method.name for method in service.methods} <= set(vars(getattr(stubs, f"{SERVICES[name]}Servicer")))


def test_the_generator_is_the_pinned_one() -> None:
    """Code made by a newer generator would refuse older grpcio and protobuf than pyproject.toml allows."""
    pinned = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "grpcio-tools==" in line)
    version = (COMMITTED / "worker_pb2_grpc.py").read_text().partition("GRPC_GENERATED_VERSION = '")[2].split("'")[0]
    assert f"grpcio-tools=={version}" in pinned
