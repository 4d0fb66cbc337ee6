"""Two of each tier under every fault, on virtual time: no wrong byte is taken for right, nothing reused under a reader.

A world that breaks a promise says at which step; `Simulation(seed).run(step)` brings it back.
"""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import pytest

from tests.transfer.model.faults import NONE
from tests.transfer.model.oracle import Broken
from tests.transfer.model.world import Simulation
from triptych.errors import InvariantViolation

SEEDS = int(os.environ.get("TRIPTYCH_MODEL_SEEDS", "50"))
STEPS = int(os.environ.get("TRIPTYCH_MODEL_STEPS", "20000"))
_PROCESSES = 2

CALLS = ("connect", "reserve", "prefill", "encode", "rows", "kv", "start", "release", "renew")
STREAMED = ("kv", "first", "failed", "finished", "cancel")
INSIDE = (
    "open",
    "ready",
    "copied",
    "verify",
    "pull-deadline",
    "renew-due",
    "publish",
    "announce",
    "computed",
    "decode",
)


def _run(seed: int) -> tuple[str, Counter[str], Counter[tuple[str, str]]]:
    """What was broken, if anything; what happened; which faults struck where."""
    simulation = Simulation(seed)
    try:
        simulation.run(STEPS)
        simulation.settle()
    except (Broken, InvariantViolation) as error:
        return f"seed {seed}: {type(error).__name__} {error}", simulation.oracle.counts, simulation.faults.seen
    except Exception as error:
        error.add_note(f"in the world of seed {seed}, at step {simulation.timeline.steps}")
        raise
    return "", simulation.oracle.counts, simulation.faults.seen


@cache
def _all() -> tuple[list[str], Counter[str], Counter[tuple[str, str]]]:
    """Of all seeds, on two processes that share nothing with this one's threads."""
    broken, counts, seen = [], Counter[str](), Counter[tuple[str, str]]()
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as processes:
        for what, happened, struck in processes.map(_run, range(SEEDS)):
            broken += [what] if what else []
            counts += happened
            seen += struck
    return broken, counts, seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_interleaving_of_faults_breaks_a_promise_of_the_hand_over() -> None:
    broken, _, _ = _all()
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_fault_struck_every_step_of_the_protocol() -> None:
    seen = _all()[2]
    wanted = [(fault, step) for fault in ("drop", "delay", "duplicate", "reorder") for step in CALLS]
    wanted += [(fault, step + "-reply") for fault in ("drop", "delay", "duplicate", "reorder") for step in CALLS]
    wanted += [(fault, step) for fault in ("drop", "straggle", "duplicate", "reorder") for step in STREAMED]
    wanted += [(fault, step) for fault in ("kill", "pause", "isolate") for step in (*CALLS, *STREAMED, *INSIDE)]
    wanted += [(fault, "copy") for fault in ("corrupt", "lose", "linger")]
    assert not [f"{fault} at {step}" for fault, step in wanted if not seen[fault, step]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_worlds_do_what_they_are_there_for() -> None:
    """Without these, keeping every promise would mean little."""
    counts = _all()[1]
    for what in (
        "finished",
        "delivered",
        "quarantined",
        "renewed",
        "deaths",
        "ended by release",
        "ended by sweep",
        "ended by request",
        "failed: ClaimExpired",
        "failed: TransferFailed",
        "failed: WorkerLost",
        "failed: Cancelled",
    ):
        assert 2 * counts[what] >= SEEDS, f"{what} came {counts[what]} times in {SEEDS} worlds"


def test_a_world_without_faults_finishes_every_request_and_loses_no_claim() -> None:
    simulation = Simulation(1, NONE, seconds_between=1.5)
    simulation.run(6000)
    simulation.finish()
    counts = simulation.oracle.counts
    assert counts["finished"] == counts["requests"] > 50
    assert not [what for what in counts if "failed" in what or what in ("ended by sweep", "ended by request")]


def test_rows_that_wait_for_five_leases_are_still_there() -> None:
    """Landing memory is full meanwhile, so prompts queue for prefill workers with their rows encoded."""
    simulation = Simulation(1, NONE, seconds_between=0.5)
    simulation.fill_landing()
    simulation.timeline.run_until(3.0)
    simulation.finish()
    counts = simulation.oracle.counts
    assert counts["leases waited"] >= 5
    assert counts["finished"] == counts["requests"] > 5
    assert counts["ended by sweep"] == 0 < counts["renewed"]


def test_a_seed_is_a_run() -> None:
    first, second = Simulation(4), Simulation(4)
    first.run(1500)
    second.run(1500)
    assert first.oracle.counts == second.oracle.counts
    assert first.faults.seen == second.faults.seen
    assert first.timeline.now == second.timeline.now
