"""One fault under load, measured: how long, how many, and whether anything was wrong, twice, lost or left."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.cluster.fault_kinds import Kind, Struck
from tests.cluster.fault_load import QUESTIONS, Asked, FaultLoad, Question
from tests.cluster.fault_server import FaultServer

IN_FLIGHT = 4
IDLE_SECONDS = 90.0  # three leases
_ENOUGH_REQUESTS = 200  # for a share of them to mean anything
MOST_RETRIED_SHARE = 0.1

Right = Callable[[Question], tuple[list[int], str]]


@dataclass(frozen=True)
class Row:
    """pause:    longest silence of a stream, waiting for its first token included, that the fault may have to do with
    ready:    until there are as many workers and routers as before, and all are given work
    idle:     until nothing is held anywhere, from the last answer
    asked, in_flight: requests while it was measured, and of these when it struck
    wrong:    answers with another token, or text, than the right ones; twice_or_missing: with another number of them
    again:    items encoded again, of which so many as lost_items may be; below 0 for some that never were, of clients
              that left, or that nobody had counted, as whoever encoded them was killed
    retries:  by stage, which has to be one of may_retry; most_retries: of one request at one stage
    left:     what was held though nothing was asked any more
    Times are in seconds.
    """

    kind: str
    pause: float
    ready: float
    idle: float
    asked: int
    in_flight: int
    failed: Sequence[str]
    wrong: int
    twice_or_missing: int
    again: int
    lost_items: int
    retries: Mapping[str, int]
    most_retries: int
    left: Sequence[str]
    may_break: bool = False
    may_retry: Sequence[str] = ()

    def complaints(self) -> list[str]:
        """What must not be, whatever the times."""
        most_failed = self.in_flight if self.may_break else 0
        found = [f"left: {each}" for each in self.left]
        found += [f"failed: {each}" for each in self.failed] if len(self.failed) > most_failed else []
        most_by_name = {"wrong": 0, "twice_or_missing": 0, "again": self.lost_items, "most_retries": 1}
        found += [f"retries: {dict(self.retries)}"] if self.retries.keys() - set(self.may_retry) else []
        for name, most in most_by_name.items():
            if getattr(self, name) > most:
                found.append(f"{name}: {getattr(self, name)}")
        return [f"{self.kind}: {each}" for each in found]


def measure(server: FaultServer, kind: Kind, right: Right) -> Row:
    """The cluster is as before when it returns: all there, nothing asked."""
    since, retries, encoded = server.log_length, server.retries(), server.encoded()
    with FaultLoad(server.url, server.headers, IN_FLIGHT, QUESTIONS) as load:
        server.wait(lambda: load.answered_since(0.0) >= IN_FLIGHT, "a steady load")
        before = len(load.asked) - len(load.in_flight())
        struck = kind.strike(server, load)
        in_flight = [each for each in load.asked[before:] if each.has_left or not each.ended_at]
        ready_at = _wait_ready(server, struck)
        for settle in struck.settle:
            settle()
        server.wait(lambda: load.answered_since(ready_at) >= IN_FLIGHT, "answers as before")
    ended_at = time.monotonic()
    left = _left_over(server, ended_at)
    idle_at = time.monotonic()
    wrong, twice_or_missing = compared(load.asked, right)
    return Row(
        kind=kind.name,
        pause=max((each.pause(struck.at, ready_at) for each in load.asked if not each.has_left), default=0.0),
        ready=ready_at - struck.at,
        idle=idle_at - ended_at,
        asked=len(load.asked),
        in_flight=len(in_flight),
        failed=[each.error for each in load.asked if each.error and not each.has_left],
        wrong=wrong,
        twice_or_missing=twice_or_missing,
        again=_again(server, struck, load.asked, since, encoded),
        lost_items=struck.lost_items,
        retries=dict(server.retries() - retries),
        most_retries=max(server.retries_told(since).values(), default=0),
        left=left,
        may_break=kind.may_break,
        may_retry=sorted(kind.retried),
    )


def _wait_ready(server: FaultServer, struck: Struck) -> float:
    """The moment from which everybody is there, others in the place of those that have gone."""
    for back in struck.back:
        server.wait(back, "what takes the place of what has gone")
    return server.wait(server.all_ready, "ready workers")


def _left_over(server: FaultServer, ended_at: float) -> list[str]:
    """Nothing as soon as nothing is held; else what is, after as long as anything may be."""
    while (left := server.left_over()) and time.monotonic() - ended_at < IDLE_SECONDS:
        time.sleep(0.02)
    return left


def compared(asked: Sequence[Asked], right: Right) -> tuple[int, int]:
    """How many answers have other tokens or text, and another number of tokens, than they should; as far as they go."""
    wrong = miscounted = 0
    for each in asked:
        ids, text = right(each.question)
        if each.error:
            wrong += each.ids != ids[: len(each.ids)] or not text.startswith(each.text)
        elif len(each.ids) != len(ids):
            miscounted += 1
        else:
            wrong += (each.ids, each.text) != (ids, text)
    return wrong, miscounted


def _again(server: FaultServer, struck: Struck, asked: Sequence[Asked], since: int, before: Mapping[str, int]) -> int:
    """Items that encoders have encoded, without those of the routers' self-tests, beyond one time each."""
    after = server.encoded()
    after |= struck.encoded
    num_encoded = sum(count - before.get(address, 0) for address, count in after.items())
    num_asked = sum(len(each.question.pictures) for each in asked)
    return num_encoded - server.items_of_self_tests(since) - num_asked


def too_many_retries(rows: Sequence[Row]) -> str:
    """Of all traffic; empty where they are few enough, or there was too little of it."""
    num_asked = sum(row.asked for row in rows)
    num_retries = sum(count for row in rows for count in row.retries.values())
    if num_asked < _ENOUGH_REQUESTS or num_retries <= MOST_RETRIED_SHARE * num_asked:
        return ""
    return f"{num_retries} retries of {num_asked} requests"
