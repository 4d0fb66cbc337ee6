"""Where the time of a hand-over goes: a clock around each of its steps, on whatever thread takes it.

Steps that others are made of are timed along with them, so columns do not add up; a clock costs about a microsecond.
"""

import functools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from triptych import wire
from triptych.services.peers import Peers
from triptych.transfer import cuda_copy
from triptych.transfer.local import LocalMapping
from triptych.transfer.nixl import NixlCopier, NixlMapping
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_company import Company
from triptych.transfer.nixl_passage import Passage
from triptych.transfer.protocol.pulling import PullMachine
from triptych.transfer.reading import Reading
from triptych.transfer.staging import Staging


class Step(NamedTuple):
    """Something that is called: in words, and where."""

    what: str
    home: Any  # a class or a module
    name: str


CONSUMER = (
    Step("parse, rows", wire, "embedding_ref_from_pb"),
    Step("parse, KV", wire, "kv_ref_from_pb"),
    Step("read: all behind the parsing", Reading, "run"),
    Step("  plan", Reading, "_connect"),
    Step("  await the event", Reading, "_await_ready"),
    Step("  copy by NIXL", NixlCopier, "copy"),
    Step("    waited for others", Company, "wait"),
    Step("    the event's word", NixlMapping, "is_written"),
    Step("    Prepare", Peers, "prepare"),
    Step("    bring", Passage, "bring"),
    Step("    bring several", Passage, "bring_together"),
    Step("      a READ begun", Passage, "_read"),
    Step("        its descriptors", NixlAgent, "_list"),
    Step("        its request, posted", NixlAgent, "_start"),
    Step("      a READ waited for", Passage, "_wait"),
    Step("      a copy begun", Passage, "_copy_on"),
    Step("      words fetched", Passage, "_fetched"),
    Step("      copies waited for", Passage, "_wait_for_copies"),
    Step("  copy by CUDA", cuda_copy.DeviceCopier, "copy"),
    Step("    queued", cuda_copy, "queue_copies"),
    Step("    waited for", cuda_copy.DeviceCopier, "_wait"),
    Step("  words compared", PullMachine, "copied"),
    Step("  release handed on", Peers, "release"),
)
OWNER = (
    Step("owner's Prepare", Staging, "prepare"),
    Step("  waits for the event", LocalMapping, "wait_event"),
    Step("  packs", Staging, "_fill"),
    Step("    behind the stamp", cuda_copy.DeviceCopier, "pack"),
)


class Clocks:
    """Calls and seconds of each step since the last `figures`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent: dict[str, tuple[int, float]] = {}

    @contextmanager
    def around(self, steps: Iterable[Step]) -> Iterator[None]:
        """While this is open, the steps are timed."""
        plain = [(step, getattr(step.home, step.name)) for step in steps]
        for step, call in plain:
            setattr(step.home, step.name, self._timed(step.what, call))
        try:
            yield
        finally:
            for step, call in plain:
                setattr(step.home, step.name, call)

    def figures(self, hand_overs: int) -> dict[str, dict[str, float]]:
        """Calls and milliseconds for each hand-over, of steps that were called; begins anew."""
        with self._lock:
            spent, self._spent = self._spent, {}
        return {
            what: {"calls": calls / hand_overs, "ms": seconds / hand_overs * 1e3}
            for what, (calls, seconds) in spent.items()
        }

    def _timed(self, what: str, call: Any) -> Any:
        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                with self._lock:
                    calls, seconds = self._spent.get(what, (0, 0.0))
                    self._spent[what] = (calls + 1, seconds + took)

        return timed


def lines(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Steps in their order, for people."""
    for step in (*CONSUMER, *OWNER):
        if step.what in found:
            yield f"  {step.what:32s} {found[step.what]['calls']:6.1f} calls {found[step.what]['ms']:8.3f} ms"


def pause_seconds() -> float:
    """What the shortest sleep takes here: what waits for less looks instead."""
    taken = []
    for _ in range(50):
        began = time.perf_counter()
        time.sleep(1e-6)
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]
