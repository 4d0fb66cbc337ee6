"""Faults on purpose at steps of an event loop; see triptych/transfer/faults.py."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from triptych.transfer.faults import Action, Fault, Faults

Message = TypeVar("Message")


async def passing(faults: Faults, step: str) -> None:
    """Passes a step. A call that is dropped here goes on only by being cancelled: its answer is lost."""
    await _carry_out(faults.take(step))


async def passed_on(faults: Faults, step: str, message: Message) -> Sequence[Message]:
    """What is to go on in this message's place."""
    if not faults.on:
        return (message,)
    fault = faults.take(step)
    if fault is not None and fault.action is Action.DELAY:
        await asyncio.sleep(fault.seconds)
    return faults.instead(step, fault, message)


async def gathered(
    queue: "asyncio.Queue[Message | BaseException]", faults: Faults
) -> tuple[list[Message], BaseException | None]:
    """What is in a queue, once there is something: messages in order, and the error behind them, if there is one.

    With faults it is one at a time, so that a test may stop between any two.
    """
    messages: list[Message] = []
    while True:
        entry = await queue.get()
        if isinstance(entry, BaseException):
            return messages, entry
        messages.append(entry)
        if faults.on or queue.empty():
            return messages, None


async def _carry_out(fault: Fault | None) -> None:
    if fault is None:
        return
    if fault.action is Action.DELAY:
        await asyncio.sleep(fault.seconds)
    elif fault.action is Action.DROP:
        await asyncio.get_running_loop().create_future()
