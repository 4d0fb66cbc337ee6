"""Steps of the engine: a forward pass over a plan is launched, its KV announced; later its tokens are read and told.

Between the two another step may be launched, which takes the tokens from the device. What has ended meanwhile, with the
token of the step before or by its caller, is in that step all the same; what the step makes of it is dropped.

What a grammar allows follows from the token before. Where one has a say in a step, its forward pass is launched ahead
as ever; while it runs, the step before is read and the masks are made, and only then tokens are chosen.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from triptych.engine.batch import Stretch, chunk_stretch
from triptych.engine.decode_desk import DecodeDesk, SinkEntry
from triptych.engine.device import Numbers
from triptych.engine.device_errors import DeviceLost, is_device_lost
from triptych.engine.fuse import Overlay
from triptych.engine.guidance import Guidance
from triptych.engine.landing import LandingMemory
from triptych.engine.launched import Drawing
from triptych.engine.mailbox import Mailbox, as_triptych
from triptych.engine.plan import Chunk, StepPlan
from triptych.engine.prefill_desk import PrefillDesk
from triptych.engine.runner import Runner, Work
from triptych.engine.sampler import Draw, Drawn
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, finish_reason
from triptych.errors import InternalError, TriptychError
from triptych.journey import Token
from triptych.sampling import Sampling

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; for metrics.

    seconds: from its launch, or the end of the step before if that was later, until its tokens were told
    """

    num_decode_tokens: int
    num_prefill_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One prompt's share of a step. The overlays' positions count from its first token.

    They also keep the landing memory that the step reads from being used again before the step has ended.
    """

    chunk: Chunk
    stretch: Stretch
    overlays: Sequence[Overlay]
    draws: Sequence[Draw]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step that has been launched."""

    branches: Sequence[DecodeSequence]
    parts: Sequence[_Part]
    drawing: Drawing
    began: float

    @property
    def num_prefill_tokens(self) -> int:
        return sum(part.chunk.end - part.chunk.begin for part in self.parts)


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
        on_step: Callable[[StepReport], None] | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._landing = landing
        self._prefills = prefills
        self._decodes = decodes
        self._lock = mailbox.lock
        self._deliver = mailbox.deliver
        self._steps: deque[_Step] = deque()
        self._last_end = 0.0
        self._guidance = Guidance(scheduler, prefills)
        self._longest = scheduler.limits.max_model_len
        self._on_step = on_step

    @property
    def num_launched(self) -> int:
        """Steps whose tokens have not been read."""
        return len(self._steps)

    def launch(self, plan: StepPlan) -> None:
        """One forward pass, which is not waited for. What fails, fails alone where it can be told apart.

        Raises DeviceLost.
        """
        began = time.monotonic()
        parts = [part for chunk in plan.chunks if (part := self._part(chunk)) is not None]
        if not (plan.decodes or parts):
            self._deliver()
            return
        try:
            drawing = self._compute(plan.decodes, parts)
        except DeviceLost:  # seen by a step before, which was read meanwhile
            raise
        except Exception as error:
            if not is_device_lost(error):
                self.conclude(0)  # tokens of the steps before are right, and come first
            self._fail(plan.decodes, parts, error)
        else:
            with self._lock:
                for branch in plan.decodes:
                    branch.num_inflight += 1
            self._steps.append(_Step(plan.decodes, parts, drawing, began))

    def conclude(self, num_left: int) -> None:
        """Wait for all steps but the last so many, write their tokens into the books, tell them. Raises DeviceLost."""
        while len(self._steps) > num_left:
            self._conclude(self._steps.popleft())

    def abandon(self) -> None:
        """Forget all steps whose tokens have not been read: everybody in them has ended."""
        self._steps.clear()

    def _part(self, chunk: Chunk) -> _Part | None:
        """What the chunk brings into the step; None when it cannot, and then its request has ended."""
        try:
            return _Part(chunk, chunk_stretch(chunk), self._overlays(chunk), self._first_draws(chunk))
        except Exception as error:
            log.exception("a prompt could not be put into a step")
            with self._lock:
                self._end_prompt(chunk, as_triptych(error))
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

    def _compute(self, branches: Sequence[DecodeSequence], parts: Sequence[_Part]) -> Drawing:
        stretches, first = [part.stretch for part in parts], [part.draws for part in parts]
        logits = self._runner.launch(Work(branches, stretches, list(_placed(parts, len(branches))), first))
        if parts:
            with self._lock:
                for part in parts:
                    self._prefills.computed(part.chunk)
            # Told before tokens are chosen: the blocks travel meanwhile.
            self._deliver()
        return self._runner.choose(logits, self._masks(branches, parts))

    def _masks(self, branches: Sequence[DecodeSequence], parts: Sequence[_Part]) -> Mapping[str, Numbers] | None:
        """What the step's grammars allow; None where there are none. Raises DeviceLost.

        Reads all steps before. Whose grammar cannot be followed any further ends, alone.
        """
        wished = [branch.sampling for branch in branches] + [draw.sampling for part in parts for draw in part.draws]
        if all(sampling.grammar is None for sampling in wished):
            return None
        self.conclude(0)
        with self._lock:
            guided = self._guidance.guided(branches, [(part.chunk.sequence, part.draws) for part in parts])
        masks, failures = self._guidance.masks(guided)
        if failures:
            asking = [part for part in parts for _ in part.draws]
            with self._lock:
                for row, error in failures.items():
                    if row < len(branches):
                        self._end_branch(branches[row], error)
                    else:
                        self._end_prompt(asking[row - len(branches)].chunk, error)
            self._deliver()
        return masks

    def _fail(self, branches: Iterable[DecodeSequence], parts: Sequence[_Part], error: Exception) -> None:
        """End everybody in a step. Raises DeviceLost where nobody is left to be told apart."""
        if is_device_lost(error):
            raise DeviceLost(str(error)) from error
        log.error("a step failed", exc_info=error)
        reason = InternalError(f"a step failed: {type(error).__name__}: {error}")
        with self._lock:
            for branch in branches:
                self._end_branch(branch, reason)
            for part in parts:
                self._end_prompt(part.chunk, reason)
        self._deliver()

    def _conclude(self, step: _Step) -> None:
        with self._lock:
            for branch in step.branches:
                branch.num_inflight -= 1
        try:
            drawn = step.drawing.read()
        except Exception as error:
            self._fail(step.branches, step.parts, error)
        else:
            self._count(step, drawn, max(step.began, self._last_end))
            self._deliver()
        ended = time.monotonic()
        seconds, self._last_end = ended - max(step.began, self._last_end), ended
        self._report(StepReport(len(step.branches), step.num_prefill_tokens, seconds))

    def _report(self, report: StepReport) -> None:
        if self._on_step is not None:
            try:
                self._on_step(report)
            except Exception:
                log.exception("a step's report was not taken")

    def _count(self, step: _Step, drawn: Sequence[Drawn], began: float) -> None:
        """Write a step's tokens into the books, and their news."""
        ended = time.monotonic()
        results = iter(drawn)
        pairs = list(zip(step.branches, results, strict=False))
        with self._lock:
            for branch, result in pairs:
                if not math.isfinite(result.logprob):
                    self._end_branch(branch, _not_finite())
            holds = self._scheduler.holds_branch
            self._decodes.publish([self._extend(branch, result) for branch, result in pairs if holds(branch)])
            for part in step.parts:
                self._count_chunk(part, [next(results) for _ in part.draws], began, ended)

    def _count_chunk(self, part: _Part, drawn: Sequence[Drawn], began: float, ended: float) -> None:
        chunk, sequence = part.chunk, part.chunk.sequence
        if not self._prefills.holds(sequence):
            return  # ended meanwhile
        self._prefills.add_step(chunk, began, ended)
        if not all(math.isfinite(result.logprob) for result in drawn):
            self._end_prompt(chunk, _not_finite())
        elif chunk.is_last:
            prompt_tokens = sequence.layout.num_tokens
            pairs = zip(part.draws, drawn, strict=True)
            tokens = tuple(
                self._token(draw.sampling, draw.choice, draw.position, prompt_tokens, result) for draw, result in pairs
            )
            self._prefills.finish(sequence.request_id, tokens, time.monotonic())

    def _extend(self, branch: DecodeSequence, drawn: Drawn) -> SinkEntry:
        position = len(branch.tokens)
        token = self._token(branch.sampling, branch.choice, position, branch.prompt_tokens, drawn)
        branch.tokens.append(token.id)
        if token.finish_reason:
            self._scheduler.finish_branch(branch)
        return branch.request_id, branch.attempt, token

    def _token(self, sampling: Sampling, choice: int, position: int, prompt_tokens: int, drawn: Drawn) -> Token:
        reason = finish_reason(drawn.id, position, sampling, prompt_tokens, self._longest)
        return Token(drawn.id, drawn.logprob, choice, position, reason, drawn.top)

    def _end_branch(self, branch: DecodeSequence, error: TriptychError) -> None:
        """Under the lock. Its request ends, whether or not a sibling of it has ended it before."""
        if self._scheduler.holds_branch(branch):
            self._decodes.end(branch.request_id, error)

    def _end_prompt(self, chunk: Chunk, error: TriptychError) -> None:
        if self._prefills.holds(chunk.sequence):
            self._prefills.end(chunk.sequence.request_id, error)


def _not_finite() -> InternalError:
    """What a broken kernel or checkpoint looks like, or settings that leave nothing to choose from: a token drawn all
    the same would be garbage.
    """
    return InternalError("logits are not finite, or not once adjusted")


def _placed(parts: Sequence[_Part], offset: int) -> Iterator[Overlay]:
    """All overlays, their positions counted from the step's first token."""
    for part in parts:
        for overlay in part.overlays:
            yield Overlay(overlay.rows, overlay.at + offset)
        offset += len(part.stretch.token_ids)
