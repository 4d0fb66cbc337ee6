"""Lines that are not done yet, so many at once, each written down the moment its outcome is known."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from triptych.batch.journal import Journal
from triptych.batch.lines import BatchLine, read_lines
from triptych.batch.options import BatchOptions
from triptych.batch.progress import BatchProgress
from triptych.batch.sender import Sender
from triptych.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Summary:
    lines: int
    answers: int

    @property
    def failed(self) -> int:
        return self.lines - self.answers


def run_batch(options: BatchOptions) -> Summary:
    """Every line of the source has one line in the target, or in the file for errors, when this returns."""
    lines = read_lines(options.source)
    with ExitStack() as stack:
        answers = stack.enter_context(Journal(options.target))
        errors = answers if options.errors is None else stack.enter_context(Journal(options.errors))
        done = {**errors.done, **answers.done}
        _check_same_batch(options, lines, done)
        rest = [line for line in lines if line.custom_id not in done]
        with BatchProgress(len(lines), len(done), list(done.values()).count(False)) as progress:
            asyncio.run(_send_all(options, rest, answers, errors, progress))
        done = {**errors.done, **answers.done}
    return Summary(len(lines), sum(done[line.custom_id] for line in lines))


def _check_same_batch(options: BatchOptions, lines: list[BatchLine], done: Mapping[str, bool]) -> None:
    strange = sorted(done.keys() - {line.custom_id for line in lines})
    if strange:
        raise InvalidRequest(
            f"{options.target} has answers to {len(strange)} requests that {options.source} has not, "
            f"such as {strange[0]!r}; name another file"
        )


async def _send_all(
    options: BatchOptions, lines: list[BatchLine], answers: Journal, errors: Journal, progress: BatchProgress
) -> None:
    """Raises ClusterError where an outcome cannot be written down."""
    waiting = iter(lines)
    try:
        async with Sender(options) as sender, asyncio.TaskGroup() as places:
            for _ in range(min(options.concurrency, len(lines))):
                places.create_task(_place(options, waiting, sender, answers, errors, progress))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def _place(
    options: BatchOptions,
    waiting: Iterator[BatchLine],
    sender: Sender,
    answers: Journal,
    errors: Journal,
    progress: BatchProgress,
) -> None:
    """Takes the next line as soon as it is free."""
    for line in waiting:
        outcome = await sender.send(line.custom_id, line.url, line.body(options.source))
        (answers if outcome.is_answer else errors).append(outcome)
        progress.advance(outcome.is_answer)
