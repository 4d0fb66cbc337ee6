"""Each refusal of CUDA IPC forced on a real GPU: it says why, and NIXL carries the rows. Run where there is a GPU."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu.gpu_neighbour import ACTIONS
from tests.gpu.rig import GPU, NUM_UNITS, NUMBERS, UNIT_BYTES, reader_of, rows
from tests.transfer.neighbours import HERE, OWNER, Neighbour, rows_ref
from triptych.config import TransferSettings
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_start import start_nixl
from triptych.transfer.pull import IsWanted
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab, create_slab
from triptych.transfer.staging import Prepare

pytestmark = pytest.mark.gpu

RUNTIME = "cuda.bindings.runtime"
SETTINGS = TransferSettings(copy_timeout_seconds=20.0)
NIXL = TransferSettings(copy_timeout_seconds=20.0, transports=("nixl",))
_agents: list[NixlAgent] = []


def _join(slab: Slab, _published: Any) -> ArenaInfo | None:
    """The slab as an agent of the owner's process has it; None without NIXL."""
    agent = start_nixl(SETTINGS)
    if agent is None:
        return None
    _agents.append(agent)
    return agent.describe(slab)


def _settle(_slab: Slab, _published: Any) -> None:
    torch.cuda.synchronize()


def _not_asked(owner: Endpoint, claim: ClaimId, pack: bool, deadline: float, is_wanted: IsWanted) -> None:
    raise AssertionError("the slab itself says that the rows are written, and the owner was asked")


@pytest.fixture(scope="module")
def owner() -> Iterator[Neighbour]:
    actions = {**ACTIONS, "join": _join, "settle": _settle}
    with Neighbour("embedding", UNIT_BYTES, NUM_UNITS, device=GPU, actions=actions) as neighbour:
        yield neighbour


@pytest.fixture(scope="module")
def arena(owner: Neighbour) -> ArenaInfo:
    pytest.importorskip("nixl_cu13")
    info: ArenaInfo | None = owner.ask("join")
    assert info is not None, "nixl is installed and does not start"
    return info


@pytest.fixture
def agent() -> Iterator[NixlAgent]:
    pytest.importorskip("nixl_cu13")
    made = start_nixl(SETTINGS)
    assert made is not None, "nixl is installed and does not start"
    yield made
    made.close()


class Refusing:
    """The real runtime, in which one call is answered by an error."""

    def __init__(self, real: Any, name: str, status: str) -> None:
        self._real = real
        answer = getattr(real.cudaError_t, status)
        setattr(self, name, lambda *arguments: (answer, None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def runtime() -> Any:
    return pytest.importorskip(RUNTIME)


def _as_it_is(owner: Endpoint, claim: ClaimId, pack: bool, deadline: float, is_wanted: IsWanted) -> None:
    """What rpc Prepare would answer: the rows are written, and lie where the claim says."""


def carried_by_nixl(
    owner: Neighbour, arena: ArenaInfo, agent: NixlAgent, generation: int, prepare: Prepare = _not_asked
) -> None:
    event = owner.ask("fill", range(8, 24), generation)
    owner.ask("settle")
    reader = Reader(lambda endpoint: [arena], HERE, {}, GPU, SETTINGS, nixl=agent, prepare=prepare)
    into = rows(16)
    reader.read_rows(rows_ref(generation, 16, NUMBERS, offset=8 * UNIT_BYTES, event=event), into)
    assert bool((into == generation).all())
    assert reader.transport_of(OWNER) == "nixl"
    reader.close()


@pytest.mark.parametrize(
    "status", ["cudaErrorNotPermitted", "cudaErrorPeerAccessUnsupported", "cudaErrorMapBufferObjectFailed"]
)
def test_a_consumer_that_may_not_open_gets_the_rows_by_nixl(
    *,
    owner: Neighbour,
    arena: ArenaInfo,
    agent: NixlAgent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, RUNTIME, Refusing(runtime(), "cudaIpcOpenMemHandle", status))
    carried_by_nixl(owner, arena, agent, 60)
    assert f"cuda_ipc: opening a neighbour's GPU memory failed: {status}" in caplog.text


def test_a_consumer_without_the_bindings_gets_the_rows_by_nixl(
    owner: Neighbour, arena: ArenaInfo, agent: NixlAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, None)
    carried_by_nixl(owner, arena, agent, 61)


def test_an_arena_of_a_gpu_that_is_not_seen_comes_by_nixl(owner: Neighbour, arena: ArenaInfo, agent: NixlAgent) -> None:
    assert arena.cuda_ipc is not None
    elsewhere = replace(arena, cuda_ipc=replace(arena.cuda_ipc, device_uuid="GPU-elsewhere"))
    carried_by_nixl(owner, elsewhere, agent, 62)


def test_an_arena_that_its_owner_may_not_export_comes_by_nixl(
    owner: Neighbour, arena: ArenaInfo, agent: NixlAgent
) -> None:
    carried_by_nixl(owner, replace(arena, cuda_ipc=None, no_cuda_ipc="not permitted"), agent, 63, _as_it_is)


def test_an_owner_that_is_still_writing_is_asked(owner: Neighbour, arena: ArenaInfo, agent: NixlAgent) -> None:
    """By rpc Prepare, whose answer comes behind the event; here it comes when the device is done."""
    asked: list[float] = []

    def wait(endpoint: Endpoint, claim: ClaimId, pack: bool, deadline: float, is_wanted: IsWanted) -> None:
        asked.append(deadline)
        owner.ask("settle")

    reader = Reader(lambda endpoint: [arena], HERE, {}, GPU, NIXL, nixl=agent, prepare=wait)
    assert reader.open(OWNER) == "nixl"
    event, into = owner.ask("announce", 0, 16, 64, 1.0), rows(16)
    reader.read_rows(rows_ref(64, 16, NUMBERS, event=event), into)
    assert len(asked) == 1
    assert bool((into == 64).all())
    reader.close()


def test_a_slab_is_made_where_its_export_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, Refusing(runtime(), "cudaIpcGetMemHandle", "cudaErrorNotPermitted"))
    slab = create_slab("kv", 2, UNIT_BYTES, 4, GPU)
    assert slab.describe().cuda_ipc is None
    assert "exporting GPU memory failed: cudaErrorNotPermitted" in slab.describe().no_cuda_ipc
    _is_a_slab(slab)


def test_a_slab_is_made_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, None)
    slab = create_slab("kv", 2, UNIT_BYTES, 4, GPU)
    assert "without cuda.bindings" in slab.describe().no_cuda_ipc
    _is_a_slab(slab)


def _is_a_slab(slab: Slab) -> None:
    assert not slab.data.any()
    slab.stamp([1], [5])
    slab.data[UNIT_BYTES : 2 * UNIT_BYTES].fill_(9)
    event = slab.record_event()
    torch.cuda.synchronize()
    assert slab.event_done(event)
    assert slab.words.tolist() == [0, 5, 0, 0]


def test_expandable_segments_of_torch_do_not_reach_a_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slab is memory of its own: what torch's allocator does is not its matter."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with Neighbour("embedding", UNIT_BYTES, NUM_UNITS, device=GPU, actions=ACTIONS) as neighbour:
        event, into = neighbour.ask("fill", range(4), 70), rows(4)
        reader = reader_of(neighbour.info)
        reader.read_rows(rows_ref(70, 4, NUMBERS, event=event), into)
        assert bool((into == 70).all())
        assert reader.transport_of(OWNER) == "cuda_ipc"
        reader.close()
