"""One step of the engine: a forward pass over a plan, its KV announced, its tokens chosen and told."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triptych.engine.batch import Stretch, chunk_stretch, decode_stretch
from triptych.engine.decode_desk import DecodeDesk, SinkEntry
from triptych.engine.device_errors import DeviceLost, is_device_lost
from triptych.engine.fuse import Overlay
from triptych.engine.landing import LandingMemory
from triptych.engine.mailbox import Mailbox, as_triptych
from triptych.engine.plan import Chunk, StepPlan
from triptych.engine.prefill_desk import PrefillDesk
from triptych.engine.runner import Runner
from triptych.engine.sampler import Draw, Drawn
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, finish_reason
from triptych.errors import InternalError, TriptychError
from triptych.journey import Token

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; for metrics."""

    num_decode_tokens: int
    num_prefill_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One sequence's share of a step. The overlays' positions count from its first token."""

    subject: DecodeSequence | Chunk
    stretch: Stretch
    overlays: Sequence[Overlay]
    draws: Sequence[Draw]


class Stepper:
    """Runs plans on the engine's thread. It takes the lock for bookkeeping only, never around device work or sinks."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        landing: LandingMemory,
        prefills: PrefillDesk,
        decodes: DecodeDesk,
        mailbox: Mailbox,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._landing = landing
        self._prefills = prefills
        self._decodes = decodes
        self._lock = mailbox.lock
        self._deliver = mailbox.deliver

    def run(self, plan: StepPlan) -> StepReport:
        """One forward pass. What fails, fails alone where it can be told apart. Raises DeviceLost."""
        began = time.monotonic()
        subjects: tuple[DecodeSequence | Chunk, ...] = (*plan.decodes, *plan.chunks)
        parts = [part for subject in subjects if (part := self._part(subject)) is not None]
        try:
            drawn = self._compute(parts) if parts else []
        except Exception as error:
            if is_device_lost(error):
                raise DeviceLost(str(error)) from error
            log.exception("a step of %d sequences failed", len(parts))
            with self._lock:
                for part in parts:
                    self._end(part.subject, InternalError(f"a step failed: {type(error).__name__}: {error}"))
        else:
            self._conclude(parts, drawn, time.monotonic() - began)
        self._deliver()
        return StepReport(len(plan.decodes), plan.num_tokens - len(plan.decodes), time.monotonic() - began)

    def _part(self, subject: DecodeSequence | Chunk) -> _Part | None:
        """What the subject brings into the step; None when it cannot, and then its request has ended."""
        try:
            if isinstance(subject, DecodeSequence):
                draw = Draw(subject.sampling, subject.choice, subject.layout.token_ids, subject.tokens)
                return _Part(subject, decode_stretch(subject), (), (draw,))
            return _Part(subject, chunk_stretch(subject), self._overlays(subject), self._first_draws(subject))
        except Exception as error:
            log.exception("a sequence could not be put into a step")
            with self._lock:
                self._end(subject, as_triptych(error))
            return None

    def _overlays(self, chunk: Chunk) -> list[Overlay]:
        sequence = chunk.sequence
        return [
            Overlay(self._landing.rows(sequence.request_id, piece), piece.positions - chunk.begin)
            for piece in sequence.rows.pieces(chunk.begin, chunk.end)
        ]

    def _first_draws(self, chunk: Chunk) -> list[Draw]:
        """One draw per branch behind a prompt's last chunk."""
        if not chunk.is_last:
            return []
        job = self._prefills.job(chunk.sequence.request_id)
        choices = range(job.choice, job.choice + job.branches)
        return [Draw(job.sampling, choice, job.layout.token_ids, job.generated) for choice in choices]

    def _compute(self, parts: Sequence[_Part]) -> list[Drawn]:
        logits = self._runner.launch([part.stretch for part in parts], list(_placed(parts)))
        with self._lock:
            for part in parts:
                if isinstance(part.subject, Chunk):
                    self._prefills.computed(part.subject)
        # Told before the sampler waits for the device: the blocks travel while the first token is being chosen.
        self._deliver()
        asking = [part for part in parts if part.draws]
        rows = [row for row, part in enumerate(asking) for _ in part.draws]
        return self._runner.sample(logits, rows, [draw for part in asking for draw in part.draws])

    def _conclude(self, parts: Sequence[_Part], drawn: Sequence[Drawn], seconds: float) -> None:
        """Write a step's tokens into the books, and their news."""
        results = iter(drawn)
        made = [(part, [next(results) for _ in part.draws]) for part in parts]
        entries: list[SinkEntry] = []
        with self._lock:
            for part, tokens in made:
                # What a broken kernel or checkpoint looks like, or settings that leave nothing to choose from: a token
                # drawn all the same would be garbage.
                if not all(math.isfinite(token.logprob) for token in tokens):
                    self._end(part.subject, InternalError("logits are not finite, or not once adjusted"))
            for part, tokens in made:
                if isinstance(part.subject, Chunk):
                    self._count_chunk(part.subject, part.draws, tokens, seconds)
                elif self._scheduler.is_decoding(part.subject.request_id):
                    entries.append(self._extend(part.subject, part.draws[0], tokens[0]))
            self._decodes.publish(entries)

    def _count_chunk(self, chunk: Chunk, draws: Sequence[Draw], drawn: Sequence[Drawn], seconds: float) -> None:
        if not self._prefills.holds(chunk.sequence):
            return  # ended meanwhile, by its sink or by what was drawn
        self._prefills.add_compute_seconds(chunk, seconds)
        if chunk.is_last:
            prompt_tokens = chunk.sequence.layout.num_tokens
            pairs = zip(draws, drawn, strict=True)
            tokens = tuple(self._token(draw, result, prompt_tokens) for draw, result in pairs)
            self._prefills.finish(chunk.sequence.request_id, tokens, time.monotonic())

    def _extend(self, sequence: DecodeSequence, draw: Draw, drawn: Drawn) -> SinkEntry:
        token = self._token(draw, drawn, sequence.layout.num_tokens)
        sequence.tokens.append(token.id)
        if token.finish_reason:
            self._scheduler.finish_branch(sequence)
        return sequence.request_id, sequence.attempt, token

    def _token(self, draw: Draw, drawn: Drawn, prompt_tokens: int) -> Token:
        longest = self._scheduler.limits.max_model_len
        reason = finish_reason(drawn.id, draw.position, draw.sampling, prompt_tokens, longest)
        return Token(drawn.id, drawn.logprob, draw.choice, draw.position, reason, drawn.top)

    def _end(self, subject: DecodeSequence | Chunk, error: TriptychError) -> None:
        """Under the lock. Ending a request twice is no harm."""
        if isinstance(subject, DecodeSequence):
            self._decodes.end(subject.request_id, error)
        elif self._prefills.holds(subject.sequence):
            self._prefills.end(subject.sequence.request_id, error)


def _placed(parts: Sequence[_Part]) -> Iterator[Overlay]:
    """All overlays, their positions counted from the step's first token."""
    offset = 0
    for part in parts:
        for overlay in part.overlays:
            yield Overlay(overlay.rows, overlay.at + offset)
        offset += len(part.stretch.token_ids)
