"""One process struck at one step while requests are under way: what must then hold, for CI and for a night of it."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults.cluster import LEASE_SECONDS, FaultyCluster, Outcome
from tests.journey.conversations import conversations
from triptych.journey import Role
from triptych.transfer.faults import Action, Fault

MAX_TOKENS = 12
SLACK_SECONDS = 1.0  # beyond one lease, until all others are idle
ASKED = tuple(conversation.messages for conversation in conversations(7)[1:4])  # with images, all at once


@dataclass(frozen=True)
class Place:
    """A step that one side of one edge comes to.

    new_pair: only when the two meet for the first time
    slow:     what must be slow for it to come to that at all
    """

    edge: str
    role: Role
    step: str
    new_pair: bool = False
    slow: str = ""

    def __str__(self) -> str:
        return f"{self.edge}-{self.role}-{self.step}"

    def faults(self, action: Action) -> list[Fault]:
        """The blow, and what makes it possible."""
        slow = [Fault(self.slow, Action.DELAY, seconds=0.6 * LEASE_SECONDS, every=True)] if self.slow else []
        return [*slow, Fault(self.step, action, at=self.role)]


def _places(edge: str, role: Role, *steps: str, copies: str = "") -> tuple[Place, ...]:
    return tuple(
        Place(edge, role, step, step.startswith("connect"), copies if step.startswith("renew") else "")
        for step in steps
    )


def _pull(kind: str) -> tuple[str, ...]:
    return f"{kind}.begin", f"{kind}.middle", f"{kind}.copied", f"{kind}.verified"


PLACES = (
    *_places(
        *("rows", Role.ENCODE),
        *("encode.begin", "encode.ref", "encode.sent", "connect.serve", "release.serve", "renew.serve"),
        copies="rows.begin",
    ),
    *_places(
        *("rows", Role.PREFILL),
        *("prefill.begin", "prefill.accepted", "rows.ref", "connect.ask", *_pull("rows"), "release.ask", "renew.ask"),
        copies="rows.begin",
    ),
    *_places(
        *("kv", Role.PREFILL),
        *("kv.export", "kv.ref", "prefill.first", "connect.serve", "release.serve", "renew.serve"),
        copies="kv.begin",
    ),
    *_places(
        *("kv", Role.DECODE),
        *("reserve.serve", "decode.begin", "kv.take", "connect.ask", *_pull("kv"), "release.ask", "renew.ask"),
        *("decode.start", "decode.tokens"),
        copies="kv.begin",
    ),
)


# What readers over a network come to besides, or otherwise: owners then take no part in the copy, and end claims
# by the reader's last notice.
NETWORK_PLACES = (
    *_places("rows", Role.ENCODE, "connect.serve"),
    *_places("rows", Role.PREFILL, "rows.begin", "rows.copied"),
    *_places("kv", Role.PREFILL, "kv.export", "prepare.serve"),
    *_places("kv", Role.DECODE, "prepare.ask", "kv.begin", "kv.copied"),
)


@dataclass(frozen=True)
class Trial:
    """How it went, in seconds."""

    answered_after: float
    idle_after: float


def strike(cluster: FaultyCluster, place: Place, action: Action, wanted: Sequence[Outcome]) -> Trial:
    """AssertionError unless every request ends as promised and all others are idle in time.

    The cluster is whole when it begins and whole again when it ends.
    """
    if place.new_pair:
        cluster.restart(cluster.of_role(place.role))
    for fault in place.faults(action):
        cluster.faults.set(fault)
    began = time.monotonic()
    outcomes = cluster.together(ASKED, MAX_TOKENS)
    answered = time.monotonic() - began
    struck = [cluster.of_pid(pid) for fault, pid in cluster.faults.struck() if fault.action is action]
    cluster.faults.clear()
    try:
        assert len(struck) == 1, f"{len(struck)} processes came to {place}, expected one"
        others = [outcome for outcome, right in zip(outcomes, wanted, strict=True) if outcome != right]
        assert not others, f"requests did not end as if nothing had been, after {answered:.1f} s: {others}"
        idle = cluster.seconds_until_idle(cluster.lease_seconds + SLACK_SECONDS, without=struck)
    finally:
        heal(cluster, struck, action)
    # Whoever wakes up, or comes new, finds nothing of the old times to hold on to.
    cluster.seconds_until_idle(cluster.lease_seconds + SLACK_SECONDS)
    return Trial(answered, idle)


def heal(cluster: FaultyCluster, struck: Sequence[str], action: Action) -> None:
    """Stopped processes go on; killed ones are replaced."""
    if action is Action.STOP:
        for worker_id in struck:
            cluster.workers[worker_id].signal(signal.SIGCONT)
        cluster.wait_ready()
    elif action is Action.KILL:
        cluster.restart(struck)


def answers(cluster: FaultyCluster) -> list[Outcome]:
    """What a whole cluster says."""
    outcomes = cluster.together(ASKED, MAX_TOKENS)
    assert [outcome.status for outcome in outcomes] == [200] * len(ASKED), outcomes
    return outcomes
