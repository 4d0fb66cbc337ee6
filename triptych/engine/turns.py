"""One turn of the language engine after the other.

A turn: take in what other threads have asked for, end what is overdue, give room to those whose turn it is, launch a
step, tell the sinks what has come of it, or, pipelined, of the one before it: the device works on one step while the
host reads another and plans the next.
"""

import time

from triptych.engine.decode_desk import DecodeDesk
from triptych.engine.mailbox import Mailbox
from triptych.engine.prefill_desk import PrefillDesk
from triptych.engine.runner import Runner
from triptych.engine.scheduler import Scheduler
from triptych.engine.stepper import Stepper
from triptych.engine.turn_clock import TurnClock
from triptych.errors import TriptychError


class Turns:
    """On the engine's thread, but for `clock`, `is_empty` and, once that thread has ended, `end_all`."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        stepper: Stepper,
        prefills: PrefillDesk,
        decodes: DecodeDesk,
        mailbox: Mailbox,
        depth: int,
    ) -> None:
        """depth: how many steps may be unread when a turn ends"""
        self.clock = TurnClock()
        self.copies: list[tuple[int, int]] = []  # blocks to copy before the next step, (from, to); under the lock
        self._runner = runner
        self._scheduler = scheduler
        self._stepper = stepper
        self._prefills = prefills
        self._decodes = decodes
        self._mailbox = mailbox
        self._lock = mailbox.lock
        self._depth = depth

    @property
    def is_empty(self) -> bool:
        """Under the lock: whether nothing is copied, or launched and unread."""
        return not (self.copies or self._stepper.num_launched)

    def take(self) -> None:
        """One turn; sleeps when there is nothing to do. Raises DeviceLost."""
        self.clock.begin()
        with self._lock:
            self._mailbox.take_commands()
            copies, self.copies = self.copies, []
        # Ahead of the next admission: the blocks read here may be free, and somebody's, from then on.
        self._runner.copy_blocks(copies)
        self._admit()
        self._mailbox.deliver()
        with self._lock:
            plan = self._scheduler.plan()
            if not plan.num_tokens and not self._stepper.num_launched:
                self.clock.rest()
                self._mailbox.sleep(min(self._prefills.next_deadline(), self._decodes.next_deadline()))
                return
        if plan.num_tokens:
            self._stepper.launch(plan)
        self._stepper.conclude(self._depth if plan.num_tokens else 0)

    def finish(self) -> None:
        """Read and tell what is launched. Raises DeviceLost."""
        self._stepper.conclude(0)

    def end_all(self, error: TriptychError) -> None:
        """Everybody ends, and what is launched for them is forgotten."""
        with self._lock:
            self._mailbox.take_commands()
            self.copies.clear()
            self._stepper.abandon()
            self._prefills.end_all(error)
            self._decodes.end_all(error)
        self._mailbox.deliver()

    def _admit(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._prefills.expire(now)
            self._decodes.expire(now)
            admitted = self._scheduler.admit()
            self._prefills.admit(admitted, now)
            self._decodes.grant(admitted)
        self._runner.stamp(admitted.new_blocks)
        self._runner.move_blocks(admitted.moves)
        if admitted.reservations:
            # Others write into these blocks, on streams of their own, as soon as they hear of the grant.
            self._runner.fence([block.id for block in admitted.new_blocks])
