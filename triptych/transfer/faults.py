"""Faults on purpose, for tests: any step of the protocol between workers may be late, lost, doubled, wrong or deadly.

A fault is a small file in the folder that `transfer.faults` names. Whoever comes to its step first has it: the file is
renamed, so that of all processes and threads one alone is struck, and the test sees that it was. A process obeys only
when ALLOW_FAULT_INJECTION=1 stands in its environment, and refuses to start otherwise.
"""

import enum
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from triptych.errors import ConfigError, InvalidRecord

SWITCH_VARIABLE = "ALLOW_FAULT_INJECTION"

Message = TypeVar("Message")


class Action(enum.StrEnum):
    DELAY = "delay"  # go on after `seconds`
    DROP = "drop"  # the message is lost; a call is never answered
    DUPLICATE = "duplicate"  # the message goes twice
    REORDER = "reorder"  # the message goes behind the next one of its step; without a next one it is lost
    CORRUPT = "corrupt"  # a byte of what was copied is another
    KILL = "kill"  # this process ends, as by kill -9
    STOP = "stop"  # this process stands still until SIGCONT


POINT = frozenset({Action.DELAY, Action.KILL, Action.STOP})
CALL = POINT | {Action.DROP}
MESSAGE = POINT | {Action.DROP, Action.DUPLICATE, Action.REORDER}
COPY = POINT | {Action.CORRUPT}

# Every step, in the order of a request's journey, and what may happen there.
STEPS: Mapping[str, frozenset[Action]] = {
    "reserve.serve": CALL,  # D has the blocks, its answer has not left
    "prefill.begin": CALL,  # P has read the layout, nothing is reserved
    "prefill.accepted": CALL,  # P has room, the router does not know
    "encode.begin": CALL,  # E has read what to encode
    "encode.ref": MESSAGE,  # E's rows are claimed, the ref has not left
    "encode.sent": POINT,  # the ref has left E
    "rows.ref": MESSAGE,  # a ref of rows has come to P
    "connect.ask": POINT,  # a consumer does not know the owner's arenas yet
    "connect.serve": CALL,  # the owner has been asked for them
    "prepare.ask": POINT,  # a reader over a network wants a claim made ready
    "prepare.serve": CALL,  # the owner has been asked to
    "rows.begin": POINT,  # P's pull: before the first byte
    "rows.middle": POINT,  # between the first and the last byte
    "rows.copied": COPY,  # data and generation words are here, nothing is verified
    "rows.verified": POINT,  # P may use the rows, the claim is still held
    "release.ask": MESSAGE,  # a consumer gives claims back
    "release.serve": CALL,  # the owner has been given claims back
    "renew.ask": MESSAGE,  # a consumer keeps claims alive
    "renew.serve": CALL,  # the owner has been asked to keep claims alive
    "kv.export": POINT,  # P has claimed a chunk's blocks for D; on the engine's thread
    "kv.ref": MESSAGE,  # the ref has not left P
    "prefill.first": CALL,  # nor have the first tokens
    "decode.begin": CALL,  # D has read what to decode
    "kv.take": MESSAGE,  # a ref of blocks has come to D
    "kv.begin": POINT,  # D's pull, as P's of rows
    "kv.middle": POINT,
    "kv.copied": COPY,
    "kv.verified": POINT,
    "decode.start": POINT,  # all blocks are D's, the sequence has not begun
    "decode.tokens": POINT,  # tokens have been made, the router does not know
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a step, to the first process of a role that comes there; to all of them, always, when `every`.

    at:      the role of the process; empty: any
    seconds: of a delay
    skip:    how often a process passes the step unharmed
    Raises InvalidRecord for a step that does not exist, or where such a thing cannot happen.
    """

    step: str
    action: Action
    at: str = ""
    seconds: float = 0.2
    skip: int = 0
    every: bool = False

    def __post_init__(self) -> None:
        if self.step not in STEPS:
            raise InvalidRecord(f"there is no step {self.step!r}, expected one of {', '.join(STEPS)}")
        if self.action not in STEPS[self.step]:
            raise InvalidRecord(f"{self.action} cannot happen at {self.step}, only {', '.join(STEPS[self.step])}")

    def to_text(self) -> str:
        return f"{self.step} {self.action} at={self.at} seconds={self.seconds} skip={self.skip} every={int(self.every)}"

    @classmethod
    def from_text(cls, text: str) -> "Fault":
        """Raises InvalidRecord for what `to_text` would not write."""
        try:
            step, action, *rest = text.split()
            named = dict(entry.split("=") for entry in rest)
            return cls(
                step,
                Action(action),
                at=named.get("at", ""),
                seconds=float(named.get("seconds", 0.2)),
                skip=int(named.get("skip", 0)),
                every=named.get("every", "0") == "1",
            )
        except ValueError as error:
            raise InvalidRecord(f"a fault is {text!r}, expected STEP ACTION [NAME=VALUE ...]: {error}") from None


class FaultFolder:
    """The test's side: sets faults and sees which ones have struck."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self._numbers = itertools.count()

    def set(self, fault: Fault) -> None:
        """In force at once, beside those already there."""
        written = self.path / "writing"
        written.write_text(fault.to_text())
        written.rename(self.path / f"{next(self._numbers):06}.fault")

    def waiting(self) -> list[Fault]:
        """Those that have not struck, and those in force always."""
        return [Fault.from_text(file.read_text()) for file in sorted(self.path.glob("*.fault"))]

    def struck(self) -> list[tuple[Fault, int]]:
        """What has struck, and the process each has struck."""
        files = sorted(self.path.glob("*.struck-*"))
        return [(Fault.from_text(file.read_text()), int(file.suffix.removeprefix(".struck-"))) for file in files]

    def clear(self) -> None:
        for file in self.path.iterdir():
            file.unlink(missing_ok=True)


class Faults:
    """A worker's side. Without a folder, as always outside tests, every method does nothing. Thread-safe."""

    def __init__(self, folder: str = "", roles: Collection[str] = ()) -> None:
        self._folder = folder
        self._roles = frozenset(roles)
        self._lock = threading.Lock()
        self._passed: dict[str, int] = {}  # by the fault's file: how often this process has come by
        self._held: dict[str, list[object]] = {}  # by step: messages that wait for the next one

    @classmethod
    def allowed(cls, folder: str, roles: Collection[str], environment: Mapping[str, str] = os.environ) -> "Faults":
        """Raises ConfigError when there is a folder, and the environment does not allow it."""
        if folder and environment.get(SWITCH_VARIABLE) != "1":
            raise ConfigError(
                f"transfer.faults is {folder!r}, expected nothing: it breaks requests on purpose, for tests, "
                f"and only where {SWITCH_VARIABLE}=1 stands in the environment"
            )
        return cls(folder, roles)

    @property
    def on(self) -> bool:
        return bool(self._folder)

    def at(self, step: str, corrupt: Callable[[], None] | None = None) -> None:
        """Passes a step on a thread that may wait; `corrupt` spoils what was copied."""
        fault = self.take(step)
        if fault is None:
            return
        if fault.action is Action.DELAY:
            time.sleep(fault.seconds)
        elif fault.action is Action.CORRUPT and corrupt is not None:
            corrupt()

    def messages(self, step: str, message: Message) -> Sequence[Message]:
        """What is to go on in this message's place."""
        if not self._folder:
            return (message,)
        fault = self.take(step)
        if fault is not None and fault.action is Action.DELAY:
            time.sleep(fault.seconds)
        return self.instead(step, fault, message)

    def instead(self, step: str, fault: Fault | None, message: Message) -> Sequence[Message]:
        """As `messages`, for a fault that was taken already and whose delay is over."""
        with self._lock:
            held = self._held.pop(step, [])
            action = fault.action if fault is not None else None
            if action is Action.REORDER:
                self._held[step] = [*held, message]
                return ()
        passed = {Action.DROP: 0, Action.DUPLICATE: 2}.get(action, 1) if action is not None else 1
        return [message] * passed + held  # type: ignore[operator]  # only messages of this step were held

    def take(self, step: str) -> Fault | None:
        """The fault that strikes here and now, for the caller to carry out; kills and stops happen in here."""
        if not self._folder:
            return None
        for name in sorted(os.listdir(self._folder)):
            fault = self._strikes(name, step) if name.endswith(".fault") else None
            if fault is None:
                continue
            if fault.action in (Action.KILL, Action.STOP):
                os.kill(os.getpid(), signal.SIGKILL if fault.action is Action.KILL else signal.SIGSTOP)
            return fault
        return None

    def _strikes(self, name: str, step: str) -> Fault | None:
        path = os.path.join(self._folder, name)
        try:
            with open(path) as file:
                fault = Fault.from_text(file.read())
        except FileNotFoundError:  # another process had it
            return None
        if fault.step != step or (fault.at and fault.at not in self._roles):
            return None
        with self._lock:
            passed = self._passed[name] = self._passed.get(name, 0) + 1
        if passed <= fault.skip:
            return None
        if fault.every:
            return fault
        try:
            os.rename(path, f"{path.removesuffix('.fault')}.struck-{os.getpid()}")
        except FileNotFoundError:
            return None
        return fault
