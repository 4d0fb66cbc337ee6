"""A prefill worker: pulls rows, computes KV from them, lets decode workers read it."""

from collections import deque
from dataclasses import dataclass, field

from tests.transfer.model.memory import Slab
from tests.transfer.model.network import Answer
from tests.transfer.model.owner import Owner, World
from tests.transfer.model.process import Process
from tests.transfer.model.pull import Consumer, Pull
from tests.transfer.model.values import LEASE_SECONDS, Event, Prompt, Ref, checksum_of, content, contents
from triptych.engine.blocks import BlockLedger, BlockPool
from triptych.engine.extents import Extents
from triptych.errors import ClaimExpired, DeadlineExceeded, TriptychError
from triptych.journey import BlockRef, Endpoint, RequestId

PREFILL_BLOCKS = 7
LANDING_UNITS = 10


@dataclass(slots=True, eq=False)
class Job:
    """One prompt here."""

    key: RequestId
    router: Endpoint
    prompt: Prompt
    kv_begin: int
    accepted: Answer
    blocks: list[int] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)  # of landing units, by picture
    taken: set[int] = field(default_factory=set)  # pictures whose rows come, or have come
    landed: set[int] = field(default_factory=set)
    next_chunk: int = 0
    computing: bool = False
    ended: bool = False


class Prefill(Owner, Consumer):
    """Blocks and landing units of a prompt in one step, in order of arrival; chunks as their rows land."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process, PREFILL_BLOCKS)
        self.start_consuming()
        self.ledger = BlockLedger(BlockPool(PREFILL_BLOCKS))
        self.landing = Slab(LANDING_UNITS)
        self.extents = Extents(LANDING_UNITS)
        self._landing_of: dict[int, object] = {}  # by unit
        self._jobs: dict[RequestId, Job] = {}
        self._queue: deque[Job] = deque()

    # Calls

    def prefill(
        self, key: RequestId, router: Endpoint, prompt: Prompt, kv_begin: int, seconds: float, reply: Answer
    ) -> None:
        """Replied to once there is room; a prompt that is here already is not taken again.

        kv_begin: the first block that the decode worker has not
        """
        self.require_unbroken(key, router)
        if key in self._jobs:
            return
        job = Job(key, router, prompt, kv_begin, reply)
        self._jobs[key] = job
        self._queue.append(job)
        self.process.later(seconds, "prefill-deadline", self._expire, job)
        self._admit()

    def rows(self, key: RequestId, index: int, ref: Ref) -> None:
        """Pull a picture's rows. A ref that nobody waits for is given back; one that comes again is nothing new."""
        job = self._jobs.get(key)
        if ref.claim in self.pulls:
            return
        if job is None or index in job.taken or index not in job.starts:
            self.give_back(ref.owner, ref.claim, stray=True)
            if job is None:
                raise ClaimExpired("the prompt is not here")
            return
        job.taken.add(index)
        start, picture = job.starts[index], job.prompt.pictures[index]
        units = range(start, start + picture.units)
        Pull(
            self,
            job,
            ref,
            units,
            contents(picture.name, range(picture.units)),
            self._landing_of.get,
            lambda: self._landed(job, index),
            lambda kind, reason: self._pull_failed(job, index, kind, reason),
        )

    def cancel(self, key: RequestId) -> None:
        self.broken(key)
        job = self._jobs.get(key)
        if job is not None:
            self._end(job)
        self.release_request(key)

    def lost(self, endpoint: Endpoint) -> None:
        """A router's prompts end with it; a neighbour's rows will not come."""
        for job in [job for job in self._jobs.values() if job.router == endpoint]:
            self.cancel(job.key)
        self.broken(endpoint)
        self.owner_lost(endpoint)

    # State

    def is_idle(self) -> bool:
        idle = not self._jobs and not self.pulls and self.ledger.is_empty and not len(self.leases)
        return idle and not self.extents.taken and not len(self.keeper.machine)

    def check(self) -> None:
        self.check_leases()
        self.ledger.check(job.key for job in self._jobs.values())
        self.extents.check()

    def fill_landing(self, seconds: float) -> None:
        """Nobody gets landing memory for so long."""
        start = self.extents.reserve(LANDING_UNITS)

        def empty() -> None:
            self.extents.release(start)
            self._admit()

        self.process.later(seconds, "landing-empty", empty)

    # Inside

    def _admit(self) -> None:
        while self._queue:
            job = self._queue[0]
            if job.ended:
                self._queue.popleft()
                continue
            if not self._reserve(job):
                return
            self._queue.popleft()
            job.accepted("accepted")
            self._compute(job)  # a prompt without pictures waits for nothing

    def _reserve(self, job: Job) -> bool:
        """Blocks and landing units, or nothing."""
        if self.ledger.pool.num_free_blocks < job.prompt.num_blocks:
            return False
        starts: dict[int, int] = {}
        for index, picture in enumerate(job.prompt.pictures):
            start = self.extents.reserve(picture.units)
            if start is None:
                for taken in starts.values():
                    self.extents.release(taken)
                return False
            starts[index] = start
        job.blocks, job.starts = self.ledger.reserve(job.key, job.prompt.num_blocks), starts
        for index, start in starts.items():
            place = (job.key, index, self.world.timeline.steps)
            self._landing_of.update(dict.fromkeys(range(start, start + job.prompt.pictures[index].units), place))
        return True

    def _free_landing(self, job: Job, index: int) -> None:
        start = job.starts.pop(index)
        units = self.extents.release(start)
        for unit in range(start, start + units):
            del self._landing_of[unit]
        self.world.oracle.check_destinations(self.process)
        self._admit()

    def _landed(self, job: Job, index: int) -> None:
        if job.ended:
            self._free_landing(job, index)
            return
        job.landed.add(index)
        self._compute(job)

    def pull_failing(self, pull: Pull, kind: type[TriptychError], reason: str) -> None:
        """The prompt ends at once; its landing units stay until nothing writes into them."""
        assert isinstance(pull.job, Job)
        self._fail(pull.job, kind, reason)

    def _pull_failed(self, job: Job, index: int, kind: type[TriptychError], reason: str) -> None:
        self._free_landing(job, index)
        self._fail(job, kind, reason)

    def _compute(self, job: Job) -> None:
        """Launch the next chunk whose rows are here, one at a time."""
        chunk = job.next_chunk
        if job.ended or job.computing or chunk == len(job.prompt.blocks_by_chunk):
            return
        picture = chunk if chunk < len(job.prompt.pictures) else None
        if picture is not None and picture not in job.landed:
            return
        job.computing, job.next_chunk = True, chunk + 1
        first = sum(job.prompt.blocks_by_chunk[:chunk])
        places = range(first, first + job.prompt.blocks_by_chunk[chunk])
        if picture is not None:
            self.process.device.launch(lambda: self._fuse(job, picture))
        blocks = [job.blocks[place] for place in places]
        generations = [self.ledger.pool.generation(block) for block in blocks]
        event = self.write_units(blocks, generations, [content(job.prompt.name, place) for place in places])
        if self.announces_early:
            self.process.later(0, "announce", self._announce, job, places, event)
        else:
            event.when_done(lambda: self.process.later(0, "announce", self._announce, job, places, event))
        event.when_done(lambda: self.process.later(0, "computed", self._computed, job, picture))

    def _fuse(self, job: Job, index: int) -> None:
        """The kernel that reads landed rows: of a prompt that has ended they may be anything."""
        if not job.ended:
            start, picture = job.starts[index], job.prompt.pictures[index]
            found = self.landing.units(range(start, start + picture.units))
            self.world.oracle.reads_right(self.process, found, contents(picture.name, range(picture.units)))

    def _computed(self, job: Job, index: int | None) -> None:
        if job.ended:
            return
        if index is not None:
            self._free_landing(job, index)
        job.computing = False
        if job.next_chunk == len(job.prompt.blocks_by_chunk):
            self.world.network.tell(self.process, job.router, "first", "first", job.key)
            self._forget(job)
        else:
            self._compute(job)

    def _announce(self, job: Job, places: range, event: Event) -> None:
        """A claim on a chunk's blocks, whose shares end with it. Nothing once the prompt has ended."""
        places = range(max(places.start, job.kv_begin), places.stop)
        if job.ended or not places:
            return
        blocks = [job.blocks[place] for place in places]
        lent: tuple[BlockRef, ...] = self.ledger.lend(blocks)
        claim = self.grant(job.key, blocks, event, LEASE_SECONDS, lambda: self._take_back(blocks))
        sum_ = checksum_of(contents(job.prompt.name, places)) if self.world.checksums else b""
        generations = tuple(block.generation for block in lent)
        ref = Ref(claim, self.process.endpoint, tuple(blocks), generations, event, sum_, places.start)
        self.world.network.tell(self.process, job.router, "kv", "kv", job.key, ref)

    def _take_back(self, blocks: list[int]) -> None:
        self.ledger.take_back(blocks)
        self._admit()

    def _expire(self, job: Job) -> None:
        if not job.ended and job.key in self._jobs:
            self._fail(job, DeadlineExceeded, "the prompt is overdue")

    def _fail(self, job: Job, kind: type[TriptychError], reason: str) -> None:
        if not job.ended:
            self._end(job)
            self.world.network.tell(self.process, job.router, "failed", "failed", job.key, kind, reason)

    def _end(self, job: Job) -> None:
        """Frees what nothing writes into; the rest follows as its pulls end."""
        self._forget(job)
        for index in list(job.starts):
            if index not in job.taken or index in job.landed:
                self._free_landing(job, index)
        for pull in [pull for pull in self.pulls.values() if pull.job is job]:
            pull.cancel()

    def _forget(self, job: Job) -> None:
        if not job.ended:
            job.ended = True
            self.broken(job.key)
            del self._jobs[job.key]
            self.ledger.free(job.key)
            self._admit()
