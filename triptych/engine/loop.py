"""The language engine: one thread that prefills and decodes, continuously batched, for one model on one device.

Other threads only ever leave commands or read the books; all changes but the return of lent blocks are made by the
engine's thread, between two launches of a step. What it does in a turn is in turns.py.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from triptych.config import LanguageSettings
from triptych.engine.block_keys import BlockKeys, KnownKeys, computed_keys
from triptych.engine.decode_desk import DecodeDesk, OnReserved
from triptych.engine.device_errors import DeviceLost, is_device_lost
from triptych.engine.jobs import DecodeJob, DecodeSink, PrefillJob, PrefillSink
from triptych.engine.landing import LandingMemory
from triptych.engine.limits import limits_of
from triptych.engine.mailbox import Mailbox, as_triptych
from triptych.engine.prefill_desk import PrefillDesk
from triptych.engine.reception import Reception
from triptych.engine.runner import Runner
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import Reservation
from triptych.engine.stepper import Stepper, StepReport
from triptych.engine.turns import Turns
from triptych.errors import Cancelled, ClaimExpired, WorkerLost
from triptych.grammar.compiler import GrammarCompiler
from triptych.grammar.matcher import GrammarMatcher
from triptych.journey import Layout, RequestId
from triptych.models.base import LanguageModel
from triptych.sampling import Sampling
from triptych.transfer.slab import Slab

__all__ = ["DecodeJob", "DecodeSink", "LanguageEngine", "PrefillJob", "PrefillSink", "StepReport"]

log = logging.getLogger(__name__)


class LanguageEngine:
    """Prefill-only, decode-only or both, as it is asked. Methods may be called from any thread and do not block.

    Sinks and callbacks are called on the engine's thread (after `stop`: on the caller's), without a lock held. Every
    request is told its end exactly once, a cancelled one by Cancelled.
    """

    def __init__(
        self,
        model: LanguageModel,
        slab: Slab | None,
        settings: LanguageSettings,
        on_step: Callable[[StepReport], None] | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        fingerprint: bytes = b"",
        max_item_rows: int = 0,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """slab:     KV memory with one unit per block, stamped by the engine; None: memory of the engine's own
        on_fatal: called when the CUDA context is broken; then everything here ends with WorkerLost
        fingerprint:   of the model; KV of equal prompts is computed once, unless settings.prefix_cache says no
        max_item_rows: of the largest item that may come, which landing memory must take; 0: a whole context of rows
        grammars: of the model's tokenizer; None: requests with a grammar are refused
        """
        self._runner = Runner(model, slab, settings)
        self._landing = LandingMemory(model.hidden_size, model.dtype, model.device, model.levels)
        self.limits = limits_of(model, settings, self._landing.row_bytes, max_item_rows)
        self._runner.make_room(self.limits.num_swap_slots)
        self._scheduler = Scheduler(self.limits, self._runner.num_blocks)
        self._mailbox = Mailbox()
        self._lock = self._mailbox.lock
        self._reception = Reception(self._mailbox, grammars)
        self._keyed_by = keyed_by = fingerprint if settings.prefix_cache else None
        self._known_keys = KnownKeys()
        self._prefills = PrefillDesk(self._scheduler, self._landing, model.vocab_size, self._mailbox.news, keyed_by)
        self._decodes = DecodeDesk(self._scheduler, model.vocab_size, self._mailbox.news)
        desks = self._prefills, self._decodes
        stepper = Stepper(self._runner, self._scheduler, self._landing, *desks, self._mailbox, on_step)
        depth = int(settings.pipeline == "on" or (settings.pipeline == "auto" and model.device.type == "cuda"))
        self._turns = Turns(self._runner, self._scheduler, stepper, *desks, self._mailbox, depth)
        self._on_fatal = on_fatal
        self._thread = threading.Thread(target=self._run, name="language-engine", daemon=True)

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    def start(self) -> None:
        """Returns once decoding steps are recorded, where they are to be: after some seconds then.

        Raises ConfigError where the settings insist on that and it cannot be done.
        """
        log.info(
            "language engine: %d KV blocks of %d tokens, context %d, %d prefill tokens and %d sequences a step",
            *(self.num_blocks, self.limits.block_size, self.limits.max_model_len),
            *(self.limits.prefill_chunk_tokens, self.limits.max_sequences),
        )
        self._runner.record()
        self._thread.start()

    def stop(self) -> None:
        """Finish the step that is running, end everything else with WorkerLost. Blocks until that is done."""
        refusal = self._mailbox.close(WorkerLost("the language engine has been stopped"))
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._reception.close(refusal)
        self._turns.end_all(refusal)

    def expect(self, sampling: Sampling) -> None:
        """A request like this will come: its grammar is compiled meanwhile."""
        self._reception.expect(sampling)

    # Prefill

    def prefill(self, job: PrefillJob, sink: PrefillSink) -> None:
        """Compute a prompt and sample its first tokens.

        Where the request holds a reservation for a prompt of this length here, into the reserved blocks. A newer
        attempt ends an older one.
        """
        arrived = time.monotonic()

        def take(matchers: Sequence[GrammarMatcher]) -> None:
            self._prefills.take(job, sink, arrived, matchers[0] if matchers else None)

        self._reception.let_in(job.request_id, job.sampling, [job.generated], job.deadline, take, sink.failed)

    def landing(self, request_id: RequestId, item_index: int) -> Tensor:
        """[rows, width] to read an accepted prompt's item into; whoever writes may keep it though the request ends.

        Raises Cancelled when the prompt has ended, LayoutMismatch when it awaits no such rows.
        """
        with self._lock:
            return self._landing.view(request_id, item_index)

    def rows_landed(self, request_id: RequestId, item_index: int) -> None:
        """The item's rows are in `landing` and verified; no copy into it is still running. Repeating it is harmless."""
        self._mailbox.post(lambda: self._prefills.landed(request_id, item_index))

    def release_blocks(self, ids: Sequence[int]) -> None:
        """Give back one share of each block, got by kv_ready or share_prompt_blocks.

        Raises InvariantViolation, and takes none back, when such a share was never lent.
        """
        with self._lock:
            self._scheduler.take_back(ids)
            self._mailbox.wake()

    # Decode

    def block_keys(self, layout: Layout, generated: tuple[int, ...] = (), cache_salt: bytes = b"") -> BlockKeys | None:
        """What `reserve` finds a prompt's KV by, computed on this thread; None where nothing is cached."""
        if self._keyed_by is None:
            return None
        return computed_keys(self._keyed_by, layout, generated, cache_salt, self.limits.block_size, self._known_keys)

    def reserve(
        self,
        request_id: RequestId,
        attempt: int,
        prompt_tokens: int,
        max_tokens: int,
        branches: int,
        deadline: float,
        on_done: OnReserved,
        keys: BlockKeys | None = None,
        priority: int = 0,
    ) -> None:
        """Blocks for a prompt and a part, or all, of what may follow, in order of priority (lower first), then arrival;
        on_done gets their number or the reason.
        prompt_tokens: all that prefill computes, tokens generated before a continuation included
        keys:          of the prompt: blocks that hold its beginning are found by them, and shared
        max_tokens:    what may still follow, per branch; cut to what the context takes
        deadline:      for the waiting alone (Overloaded when it passes); once granted, the blocks are held until
                       `decode` has ended or `cancel`, so put the grant under a lease
        Repeating one attempt is safe, a newer attempt ends an older one.
        """
        within = self.limits.max_model_len - prompt_tokens
        reservation = Reservation(
            request_id,
            attempt,
            prompt_tokens,
            min(max_tokens, within),
            branches,
            self.limits.block_size,
            keys,
            priority,
        )
        self._mailbox.post(lambda: self._decodes.reserve(reservation, deadline, on_done), on_done)

    def prompt_blocks(self, request_id: RequestId) -> tuple[int, ...]:
        """The reserved blocks that the prompt's KV must land in, in prompt order; they are branch 0's.

        Those of the reservation's cached_tokens hold it, and are others' too: never to be written.
        Raises ClaimExpired when the request holds no reservation that waits for its KV. A cancel may free the blocks
        at any moment: whoever writes into them from another thread uses share_prompt_blocks.
        """
        with self._lock:
            return self._reservation(request_id).prompt_blocks

    def share_prompt_blocks(self, request_id: RequestId) -> tuple[int, ...]:
        """prompt_blocks with a share of each, to be given back by release_blocks.

        While it is held nobody else gets the blocks, whatever happens to the request: a copy that is still running
        when its request is cancelled then writes into nobody's memory.
        """
        with self._lock:
            blocks = self._reservation(request_id).prompt_blocks
            self._scheduler.ledger.lend(blocks)
            return blocks

    def decode(self, job: DecodeJob, sink: DecodeSink) -> None:
        """Go on behind a prompt whose KV has landed in the request's reserved blocks."""

        def start(matchers: Sequence[GrammarMatcher]) -> None:
            self._turns.copies += self._decodes.start(job, sink, matchers)

        failed = partial(sink.failed, job.request_id, job.attempt)
        self._reception.let_in(job.request_id, job.sampling, job.stems, job.deadline, start, failed)

    # Both

    def cancel(self, request_id: RequestId) -> None:
        """Free everything that the request holds, but shares of blocks that were lent. Unknown requests are fine."""

        def end() -> None:
            error = Cancelled("the request was cancelled")
            self._prefills.end(request_id, error)
            self._decodes.end(request_id, error)

        self._reception.cancel(request_id)
        self._mailbox.post(end)

    def snapshot(self) -> dict[str, float]:
        """Gauges, named as in metrics.WORKER_GAUGES."""
        with self._lock:
            return self._scheduler.gauges()

    def turn_seconds(self) -> float:
        """For how long the turn has been going that the engine is taking; 0 while there is nothing to do."""
        return self._turns.clock.seconds()

    def idle(self) -> bool:
        """Whether nobody waits or runs, every block is free and everybody has been told."""
        with self._lock:
            known = not (self._turns.is_empty and self._prefills.is_empty and self._decodes.is_empty)
            waits = not (self._mailbox.is_empty and self._reception.is_empty)
            return not (known or waits) and self._scheduler.is_idle()

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that blocks, queues, landing memory and sinks break."""
        with self._lock:
            self._scheduler.check()
            self._prefills.check()
            self._decodes.check()

    # The engine's thread

    def _run(self) -> None:
        with self._runner.stream():
            while self._mailbox.refusal is None:
                try:
                    self._turns.take()
                except DeviceLost as lost:
                    self._die(lost.__cause__ or lost)
                except Exception as error:
                    if is_device_lost(error):  # met ahead of a step: stamps, copies of blocks
                        self._die(error)
                        continue
                    log.exception("a turn of the language engine failed; every request ends, the engine goes on")
                    self._turns.end_all(as_triptych(error))
            try:
                self._turns.finish()
            except Exception:
                log.exception("the last step of the language engine failed")

    def _die(self, error: BaseException) -> None:
        """The device is lost: whatever is still here ends now, and nothing more comes in."""
        log.critical("the language engine's device is lost: %s", error)
        if self._on_fatal is not None:
            self._on_fatal(error)
        self._turns.end_all(self._mailbox.close(WorkerLost("the device is lost")))

    def _reservation(self, request_id: RequestId) -> Reservation:
        reservation = self._scheduler.reservation(request_id)
        if reservation is None:
            raise ClaimExpired("the decode reservation is gone; reserve again")
        return reservation
