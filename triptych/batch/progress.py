"""How far a batch is: a bar on a terminal, a line now and then anywhere else."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0  # between two lines


class BatchProgress:
    """A context; everything goes to standard error."""

    def __init__(self, total: int, done: int, failed: int) -> None:
        self._total, self._done, self._failed = total, done, failed
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._told_at = time.monotonic()
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("batch", total=total, completed=done)

    def __enter__(self) -> "BatchProgress":
        if self._bar is not None:
            self._bar.start()
        elif self._done:
            self._tell()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._tell()

    def advance(self, has_answer: bool) -> None:
        self._done += 1
        self._failed += not has_answer
        if self._bar is not None:
            words = f"batch, {self._failed} failed" if self._failed else "batch"
            self._bar.update(self._task, advance=1, description=words)
        elif time.monotonic() - self._told_at >= PLAIN_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        print(f"batch: {self._done} of {self._total} done, {self._failed} failed", file=sys.stderr, flush=True)
