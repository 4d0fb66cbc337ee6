"""What a worker may be to a router, and what may become of it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class LinkState(enum.StrEnum):
    UNKNOWN = "unknown"  # has not answered (yet, or lately), or is loading
    TESTING = "testing"  # has answered, and waits for the self-test to let it in
    READY = "ready"
    FAULTY = "faulty"  # the self-test came out wrong; another process at its place may try again
    DRAINING = "draining"  # finishes what it has, takes nothing new
    UNFIT = "unfit"  # another model or protocol
    LOST = "lost"  # the end


LINK_MOVES: Mapping[LinkState, tuple[LinkState, ...]] = {
    LinkState.UNKNOWN: (
        *(LinkState.TESTING, LinkState.READY, LinkState.FAULTY),
        *(LinkState.DRAINING, LinkState.UNFIT, LinkState.LOST),
    ),
    LinkState.TESTING: (LinkState.UNKNOWN, LinkState.READY, LinkState.FAULTY, LinkState.DRAINING, LinkState.LOST),
    LinkState.READY: (LinkState.UNKNOWN, LinkState.DRAINING, LinkState.LOST),
    LinkState.FAULTY: (LinkState.UNKNOWN, LinkState.DRAINING, LinkState.LOST),
    LinkState.DRAINING: (LinkState.UNKNOWN, LinkState.TESTING, LinkState.READY, LinkState.FAULTY, LinkState.LOST),
    LinkState.UNFIT: (LinkState.UNKNOWN, LinkState.DRAINING, LinkState.LOST),
    LinkState.LOST: (),
}


# Why such a worker takes nothing; empty where its trial tells.
WHY: Mapping[LinkState, str] = {
    LinkState.TESTING: "",
    LinkState.FAULTY: "",
    LinkState.UNFIT: "it holds another model, or speaks another version of the protocol",
    LinkState.DRAINING: "it finishes what it has",
    LinkState.LOST: "it is lost",
}


@dataclass(slots=True)
class Trial:
    """How far the self-test has come with one worker."""

    passed: bool
    verdict: str = ""  # why it never will pass
    trouble: str = ""  # why it has not passed so far
    tries: int = 0  # that have failed
    next_at: float = 0.0  # on the event loop's clock: not to be tried before
