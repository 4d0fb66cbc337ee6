"""A crew that outlives the server that started it: an actor of a Ray that was joined, found again by its name.

Servers attach to it. One that ends in order ends the cluster, unless another is attached; one that is killed leaves it
as it is, for the next. Ray starts the actor again where it dies: it then finds its workers by their names, and what was
wished for in Ray's own storage.
"""

import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from triptych.cluster.agreement import differences, same_first_model
from triptych.cluster.crew import Crew
from triptych.cluster.groups import first_counts
from triptych.cluster.hiring import Hiring
from triptych.cluster.member import reason_of
from triptych.cluster.placing import gpus_of
from triptych.cluster.sets import Phase, Report, Sets, WorkerSet, first_set, sets_as_values, sets_from_values
from triptych.cluster.view import SetView, View
from triptych.config import Settings
from triptych.errors import ClusterError, ConfigError

log = logging.getLogger(__name__)

_NAME = "crew"
_KEY_VALUE_NAMESPACE = b"triptych"
_CALL_SECONDS = 5.0
_ATTACH_SECONDS = 60.0  # a first actor of a Ray, whose node may be busy
_AGAIN_SECONDS = 0.5
_STOP_SECONDS = 30.0
_LOST_SECONDS = 30.0  # without a word: Ray may be starting the actor again
_GONE_SECONDS = 10.0  # a server that has not asked for so long is not attached any more


@dataclass(frozen=True, slots=True)
class Attached:
    """What a server is told that attaches.

    is_new: nobody was there before it; differences: of its settings from the cluster's
    serving: which may have another model than the settings, by a reload
    """

    is_new: bool
    secret: str = field(repr=False)
    differences: tuple[str, ...]
    last_news: int
    serving: WorkerSet


class CrewActor:
    """Runs as an actor of one process, several calls at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()  # of who is attached, and whether this is ending
        self._seen_at: dict[str, float] = {}  # servers that are attached
        self._is_ending = False
        # A first crew may find what another left that was ended by force; one that Ray has started again goes on.
        is_again = ray.get_runtime_context().was_current_actor_reconstructed
        self._first_server = "one of before" if is_again else ""
        known = _recall(settings.serve.cluster) if is_again else None
        first = first_counts(settings.serve)
        # As it was for the first workers: nodes may have come or gone.
        gpus = known["gpus"] if known else gpus_of(settings.serve, ray.cluster_resources().get("GPU", 0.0), first)
        counts = known["counts"] if known else first
        sets = sets_from_values(known["sets"], time.monotonic()) if known else first_set(settings.serve.model)

        def remember(counts: Mapping[str, int], sets: Sets) -> None:
            told = {"counts": dict(counts), "gpus": gpus, "sets": sets_as_values(sets, time.monotonic())}
            _remember(settings.serve.cluster, told)

        remember(counts, sets)
        hiring = Hiring(settings, gpus, first, detached=True)
        self._crew = Crew(settings, hiring, counts, hiring.find(), remember, sets)
        self._crew.start()

    def attach(self, server: str, settings: Settings) -> Attached:
        """The same, however often a server asks."""
        serving = self._crew.keeper.sets.serving
        different = differences(*same_first_model(self._settings, settings, serving.model))
        with self._lock:
            is_ending = self._is_ending
            if not (is_ending or different):
                self._seen_at[server] = time.monotonic()
            self._first_server = self._first_server or server
        if is_ending:
            threading.Event().wait(_STOP_SECONDS)  # until this actor is gone: then whoever asks begins the next one
        is_new = server == self._first_server
        if not different:
            self._crew.keeper.expect(server)
        news = self._crew.view().news
        last_news = news[-1][0] if news else -1
        return Attached(is_new, self._settings.serve.cluster_secret, different, last_news, serving)

    def view(self, server: str) -> View:
        self._seen_at[server] = time.monotonic()
        self._crew.keeper.expect(server)
        return self._crew.view()

    def hear(self, server: str, report: Report) -> None:
        self._crew.keeper.hear(report, server)

    def reload(self, model: str, seconds: float, keep_seconds: float) -> None:
        self._crew.reload(model, seconds, keep_seconds)

    def back(self, seconds: float) -> None:
        self._crew.back(seconds)

    def scale(self, wish: Mapping[str, int]) -> None:
        self._crew.scale(wish)

    def switch(self, worker_id: str, role: str) -> None:
        self._crew.switch(worker_id, role)

    def replace(self, worker_id: str, incarnation: int, reason: str) -> None:
        self._crew.replace(worker_id, incarnation, reason)

    def leave(self, server: str, may_end: bool) -> None:
        """Ends the workers and this actor, where that was the last server and they may be ended."""
        self._crew.keeper.forget(server)
        with self._lock:
            self._seen_at.pop(server, None)
            seen = list(self._seen_at.values())  # other calls may write there meanwhile
            if not may_end or self._is_ending or any(time.monotonic() - seen_at < _GONE_SECONDS for seen_at in seen):
                return
            self._is_ending = True
        try:
            self._crew.stop()
        finally:
            # Here and not by the server, which may be killed before: a crew that has ended must not be taken over.
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


class DetachedCrew:
    """The crew as a server has it. Where the actor does not answer, things are as they were."""

    def __init__(self, settings: Settings) -> None:
        """Attaches to the cluster of this name, or begins it. Raises ConfigError where that one has other settings."""
        self._server = secrets.token_hex(8)
        self._actor: Any = None  # while Ray is away
        self._asking = threading.Lock()  # no question is open when Ray is let go of
        try:
            attached = self._attach(settings)
        except (KeyboardInterrupt, SystemExit):
            self._undo(settings)
            raise
        if attached.differences:
            raise ConfigError(
                f"the cluster {settings.serve.cluster!r} runs with other settings: {'; '.join(attached.differences)}; "
                "give the same ones, or name another serve.cluster"
            )
        self.is_new = attached.is_new
        self.last_news = -1 if attached.is_new else attached.last_news
        self.first = attached.serving.number  # of the sets that this server comes to know
        serve = replace(settings.serve, cluster_secret=attached.secret, model=attached.serving.model)
        self.settings = replace(settings, serve=serve)
        serving = SetView(attached.serving.number, attached.serving.model, Phase.SERVING)
        self._view = View(settings.serve.topology, first_counts(settings.serve), sets=(serving,))
        self._heard_at = time.monotonic()

    def part(self) -> None:
        """Ray has gone: nothing is asked until `rejoin`. Waits for what is being asked, for seconds at most."""
        with self._asking:
            self._actor = None

    def rejoin(self) -> bool:
        """Whether the same crew is there in a Ray that is back; it may have been started again meanwhile."""
        ends_at = time.monotonic() + _ATTACH_SECONDS
        while time.monotonic() < ends_at:
            try:
                with self._asking:
                    self._actor = ray.get_actor(_NAME)
                self._view = self._ask("view")
            except ValueError:
                return False  # a Ray that remembers nothing: our workers have gone with the last one
            except RayError:
                time.sleep(_AGAIN_SECONDS)
            else:
                self._heard_at = time.monotonic()
                return True
        return False

    def _attach(self, settings: Settings) -> Attached:
        """To the crew that there is, or a new one. Raises ClusterError where it does not answer."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor_class = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=16)(CrewActor)
        options = {"name": _NAME, "lifetime": "detached", "get_if_exists": True, "scheduling_strategy": here}
        ends_at = time.monotonic() + _ATTACH_SECONDS
        while True:
            self._actor = actor_class.options(**options).remote(settings)
            try:
                attached: Attached = self._ask("attach", settings, seconds=max(1.0, ends_at - time.monotonic()))
                return attached
            except (ActorDiedError, ActorUnavailableError, GetTimeoutError) as error:
                # One that is just being ended may still be found by its name.
                if time.monotonic() > ends_at or isinstance(error, GetTimeoutError):
                    raise ClusterError(f"the cluster's supervisor does not answer: {reason_of(error)}") from error
                time.sleep(_AGAIN_SECONDS)

    def _undo(self, settings: Settings) -> None:
        """This server gives up while it attaches. What that has begun would go on, with nobody to end it."""
        try:
            self.is_new = self._attach(settings).is_new
        except ClusterError as error:
            log.warning("the cluster was not ended: %s", error)
        else:
            self.stop(may_end=False)

    def view(self) -> View:
        if self._actor is None:
            return self._view
        try:
            self._view = self._ask("view")
            self._heard_at = time.monotonic()
        except ActorDiedError:
            self._view = replace(self._view, is_lost=True)
        except RayError as error:
            if time.monotonic() - self._heard_at > _LOST_SECONDS:
                self._view = replace(self._view, is_lost=True)
            if not isinstance(error, ActorUnavailableError | GetTimeoutError):
                log.warning("the cluster's state is unknown for now: %s", error)
        return self._view

    def scale(self, wish: Mapping[str, int]) -> None:
        self._call("scale", wish)

    def switch(self, worker_id: str, role: str) -> None:
        self._call("switch", worker_id, role)

    def replace(self, worker_id: str, incarnation: int, reason: str) -> None:
        self._call("replace", worker_id, incarnation, reason)

    def reload(self, model: str, seconds: float, keep_seconds: float) -> None:
        self._call("reload", model, seconds, keep_seconds)

    def back(self, seconds: float) -> None:
        self._call("back", seconds)

    def hear(self, report: Report) -> None:
        """Where nobody answers, the next one will be heard."""
        with contextlib.suppress(RayError, ClusterError):
            self._ask("hear", report)

    def stop(self, may_end: bool = True) -> None:
        """Leaves the cluster, and ends it where no other server is attached.

        may_end: not for a server that has failed to take a cluster over, which others may still do
        """
        try:
            self._ask("leave", may_end or self.is_new, seconds=_STOP_SECONDS)
        except ActorDiedError:
            pass  # with the cluster
        except (RayError, ClusterError) as error:
            log.warning("the cluster was not ended: %s", error)

    def abandon(self) -> None:
        """Ray has gone, or this server's way to it: nobody can be told."""

    def _ask(self, method: str, *values: Any, seconds: float = _CALL_SECONDS) -> Any:
        with self._asking:
            return ray.get(getattr(self._there(), method).remote(self._server, *values), timeout=seconds)

    def _call(self, method: str, *values: Any) -> None:
        """Raises what the crew refuses with, as it is; ClusterError where it does not answer."""
        try:
            with self._asking:
                ray.get(getattr(self._there(), method).remote(*values), timeout=_CALL_SECONDS)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise ClusterError(f"the cluster's supervisor does not answer; try again: {error}") from error

    def _there(self) -> Any:
        """Raises ClusterError while Ray is away."""
        if self._actor is None:
            raise ClusterError("Ray is away; requests go on, and workers are started again when it is back")
        return self._actor


def _recall(cluster: str) -> dict[str, Any] | None:
    found = _internal_kv_get(cluster.encode(), namespace=_KEY_VALUE_NAMESPACE)
    return json.loads(found) if found else None


def _remember(cluster: str, value: Mapping[str, Any]) -> None:
    _internal_kv_put(cluster.encode(), json.dumps(value).encode(), overwrite=True, namespace=_KEY_VALUE_NAMESPACE)
