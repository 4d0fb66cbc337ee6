"""A model that is served, with the workers that hold it: all of a router that depends on which model it is.

A request belongs to one set, from its prompt's first token to its answer's last. Sets have no worker in common, and
each places, proves and retries among its own, so nothing that one model has computed is ever given to another.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triptych.config import Settings
from triptych.journey import Role
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.api.schema import Chat
from triptych.router.edge.budget import ByteBudget, Holding
from triptych.router.edge.caller import NOBODY, Caller
from triptych.router.fleet.fleet import Fleet
from triptych.router.fleet.link import KnownWorker
from triptych.router.fleet.link_state import LinkState
from triptych.router.fleet.reported import tier_of
from triptych.router.media.loader import MediaLoader
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.detokenize import Detokenizer
from triptych.router.pipeline.pipeline import Pipeline
from triptych.router.pipeline.prepare import Preparer
from triptych.router.pipeline.prompt import PromptBuilder
from triptych.router.pipeline.proving import Prover
from triptych.router.pipeline.request import Prepared
from triptych.router.pipeline.self_test import body, known_answer
from triptych.router.tasks import Background
from triptych.router.threads import WorkThreads
from triptych.wire.membership import Membership

COMING = "coming"  # a worker's state, until the router has met it
_REFUSED = (LinkState.FAULTY, LinkState.UNFIT)

FIRST = 1  # the number of the set that a server starts with


@dataclass(frozen=True, slots=True)
class KnownSet:
    """A set the router is told about: its number, which no other of this server ever has, its model, its workers."""

    number: int
    model: str  # a folder, or the embedded model's name
    workers: tuple[KnownWorker, ...] = ()


@dataclass(frozen=True, slots=True)
class Common:
    """What all sets of a router use."""

    settings: Settings
    name: str  # by which clients ask for whatever model is served
    metrics: RouterMetrics
    loader: MediaLoader
    budget: ByteBudget
    threads: WorkThreads


class ModelSet:
    """May be made on any thread: reading a tokenizer takes a second. From `start` to `stop` on the event loop."""

    def __init__(
        self,
        number: int,
        card: ModelCard,
        common: Common,
        workers: Sequence[KnownWorker] | None = None,
        *,
        media_by_memfd: bool = True,
    ) -> None:
        """workers: None where `fleet.update` will tell. Raises ConfigError for one that no prompt can be made for."""
        settings = common.settings
        self.number = number
        self.card = card
        self.requests = 0  # that have begun with it and not ended
        self.prompts = PromptBuilder(card, settings.router.chat_template)
        self.detokenizer = Detokenizer(self.prompts.tokenizer, card.vocab_size)
        self.fleet = Fleet(
            *(settings.router, card.fingerprint, common.metrics, workers),
            media_by_memfd=media_by_memfd,
            membership=Membership(settings.serve.cluster_secret),
            self_test=settings.router.self_test,
        )
        self.pipeline = Pipeline(self.fleet, settings.router, settings.transfer.lease_seconds, common.metrics)
        self._common = common
        self._preparer = Preparer(
            *(card, self.prompts, common.loader, self.fleet),
            *(settings.router.default_max_tokens, common.threads),
            isolate_tenants=settings.router.isolate_tenants,
        )
        self._prover = Prover(self.fleet, self._self_test, self.pipeline.run, known_answer(card.folder))
        self._background = Background()

    async def start(self) -> None:
        await self.fleet.start()
        await self.pipeline.start()
        if self._common.settings.router.self_test:
            self._background.start(self._prover.run())

    async def stop(self) -> None:
        """What it still has fails."""
        await self._background.finish(within_seconds=0)
        await self.pipeline.stop()
        await self.fleet.stop()

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together that some ready worker takes."""
        return self.fleet.max_model_len(self.card.max_model_len)

    async def prepare(self, chat: Chat, holding: Holding, timeline: Timeline, caller: Caller = NOBODY) -> Prepared:
        """Raises what the client has to change."""
        return await self._preparer.prepare(chat, holding, timeline, caller)

    def describe(self) -> dict[str, Any]:
        """As JSON values, for /v1/cluster."""
        return {
            "set": self.number,
            "model": self.card.name,
            "fingerprint": self.card.fingerprint.hex()[:16],
            "requests": self.requests,
        }

    def told(self) -> dict[str, Any]:
        """As JSON values, for whoever keeps the workers: who may answer, and who must not, with the reason."""
        links = self.fleet.links
        return {
            "set": self.number,
            "fingerprint": self.card.fingerprint.hex(),
            "requests": self.requests,
            "ready": [link.worker_id for link in links if link.state is LinkState.READY],
            "refused": {link.worker_id: link.reason for link in links if link.state in _REFUSED},
        }

    async def _self_test(self, salt: str) -> Prepared:
        """Its one picture is kept by whoever holds it, and counts in no budget."""
        with self._common.budget.holding() as holding:
            return await self.prepare(Chat.parse(body(self._common.name, salt)), holding, Timeline())


def count_workers(
    sets: Collection[ModelSet], coming: Mapping[str, tuple[Collection[str], str]]
) -> Counter[tuple[str, str]]:
    """By tier and state. coming: workers that the sets may not have met yet, by id, with their roles"""
    counts = sum((each.fleet.count_by_state() for each in sets), Counter[tuple[str, str]]())
    met = {link.worker_id for each in sets for link in each.fleet.links}
    counts.update((tier_of(roles), COMING) for name, (roles, _) in coming.items() if name not in met)
    return counts


def count_roles(
    sets: Collection[ModelSet], coming: Mapping[str, tuple[Collection[str], str]]
) -> dict[str, dict[str, int]]:
    """By role: workers wanted, ready, and to come, which no router has met yet. coming: as `count_workers` has it

    One that drains is not wanted any more; one that is met and not ready is wanted, and neither ready nor to come.
    """
    links = [link for each in sets for link in each.fleet.links]
    met = {link.worker_id for link in links}
    counts = {}
    for role in Role:
        wanted = [link.state for link in links if role in link.roles and link.state is not LinkState.DRAINING]
        num_coming = sum(role in roles for name, (roles, _) in coming.items() if name not in met)
        ready = wanted.count(LinkState.READY)
        counts[str(role)] = {"wanted": len(wanted) + num_coming, "ready": ready, "coming": num_coming}
    return counts
