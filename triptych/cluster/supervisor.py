"""Starts the workers and the router, keeps the router told who is alive, ends what it started."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from triptych.cluster.actors import WorkerAddress
from triptych.cluster.ahead import CompilingAhead
from triptych.cluster.crew import Crew
from triptych.cluster.detached import DetachedCrew
from triptych.cluster.groups import first_counts, groups_of
from triptych.cluster.hiring import Hiring
from triptych.cluster.names import FIRST_SET, index_in, set_in
from triptych.cluster.placing import gpus_of, require_room
from triptych.cluster.reloading import bring_up, named
from triptych.cluster.routers import RouterProcesses
from triptych.cluster.runtime import RayRuntime
from triptych.cluster.view import View, coming
from triptych.config import Settings, with_secret
from triptych.errors import ClusterError, ConfigError, InvalidRequest, NoWorker

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_START_SECONDS = 600.0
_READY_SECONDS = 150.0  # a first self-test may take two minutes: router/pipeline/proving.py
_POLL_SECONDS, _SHORT_SECONDS = 0.1, 0.05
_CALL_SECONDS = _STOP_SECONDS = 5.0
_PORT_SECONDS = 15.0
_FAULTY_SECONDS = 1.0


class Supervisor:
    """A running cluster. `start` returns when all routers answer and know every worker; `stop` is idempotent."""

    def __init__(self, settings: Settings, progress: Progress = log.info, show_logs: bool = False) -> None:
        """show_logs: print what workers and router log, as a person at a terminal wants it"""
        self._settings = named(with_secret(settings))
        self._show_logs, self._progress = show_logs, progress
        self._runtime: RayRuntime | None = None
        self._ahead: CompilingAhead | None = None
        self._crew: Crew | DetachedCrew | None = None
        self._is_up = False
        self._routers: RouterProcesses | None = None
        self._joined: frozenset[tuple[str, int]] = frozenset()  # id and incarnation, where every router has it ready
        self._told, self._looked_at = -1, 0.0  # the crew's news that was passed on last; when workers of no use were
        self._done = threading.Event()
        self.lost = threading.Event()  # Ray itself has gone, and our actors with it
        self._watcher: threading.Thread | None = None
        self.port = 0

    def start(self) -> int:
        """The routers' port. Raises ConfigError or ClusterError with the first worker's reason, after cleaning up."""
        try:
            self._crew = self._take_over() if self._settings.serve.is_detached else self._begin()
            assert self._routers is not None  # both have started them
            self._wait_started(self._crew, self._routers)
            if self._ahead is not None:
                self._ahead.stop()
            self._wait_ready(self._crew, self._routers)
        except BaseException:
            self.stop()
            raise
        self._is_up = True
        who = self._crew, self._routers
        self._watcher = threading.Thread(target=self._watch, args=who, name="supervisor", daemon=True)
        self._watcher.start()
        return self.port

    def _begin(self) -> Crew:
        """Workers that are this server's alone. Routers come first: what they load can be loaded while Ray starts."""
        settings = self._settings
        self._start_routers()
        self._ahead = CompilingAhead(settings, frozenset().union(*groups_of(settings.serve.topology).values()))
        if len(self._ahead):
            self._progress("compiling kernels that no cache has, beside what follows")
        counts = first_counts(settings.serve)
        started_here = self._join_ray(sum(counts.values()))
        available = ray.cluster_resources().get("GPU", 0.0)
        gpus = gpus_of(settings.serve, available, counts)
        if started_here:
            require_room(gpus, counts, available)
        if any(gpus.values()):
            self._progress(f"GPUs of each worker: {', '.join(f'{group} {share:g}' for group, share in gpus.items())}")
        crew = Crew(settings, Hiring(settings, gpus, counts, loopback=started_here))
        crew.start()
        return crew

    def _take_over(self) -> DetachedCrew:
        """Workers that outlive this server, whose secret it must know before it starts routers."""
        self._join_ray(1)
        self._crew = crew = DetachedCrew(self._settings)
        if not crew.is_new:
            self._progress(f"the cluster {self._settings.serve.cluster!r} runs already, and is taken over as it is")
        self._settings, self._told = crew.settings, crew.last_news
        self._start_routers(0.0 if crew.is_new else _PORT_SECONDS, crew.first)
        return crew

    def _start_routers(self, port_seconds: float = 0.0, serving: int = FIRST_SET) -> None:
        """port_seconds: for which the port may be taken: routers of a server that was killed finish their answers

        serving: number of the set that does
        """
        ends_at = time.monotonic() + port_seconds
        while self._routers is None:
            try:
                self._routers = RouterProcesses(self._settings, self._progress, self._show_logs, self._obey, serving)
            except ConfigError:
                if time.monotonic() >= ends_at:
                    raise
                if self._crew is not None:  # which takes a server that asks nothing for gone
                    self._crew.view().kept()
                time.sleep(_SHORT_SECONDS)
        self.port = self._routers.port
        roles, counts = groups_of(self._settings.serve.topology), first_counts(self._settings.serve)
        first = [(group, f"{group}-{index}") for group, count in counts.items() for index in range(count)]
        self._routers.tell_coming([coming(name, roles[group], "waits for Ray") for group, name in first])
        self._routers.start()

    def _join_ray(self, num_actors: int) -> bool:
        """Whether it was started here."""
        self._progress("looking for Ray")
        serve = self._settings.serve
        self._runtime = RayRuntime(serve.ray, self._show_logs, num_actors, f"triptych-{serve.cluster}")
        self._runtime.watch()
        started_here = self._runtime.started_here
        self._progress(f"Ray {'started for this server alone' if started_here else 'joined, it was running already'}")
        return started_here

    def addresses(self) -> Sequence[WorkerAddress]:
        return self._crew.view().addresses if self._crew is not None else []

    def worker_ids(self) -> list[str]:
        """Of the set that serves, in the order in which a request meets them."""
        if self._crew is None:
            return []
        view = self._crew.view()
        workers = [worker for worker in view.workers if set_in(worker.worker_id) == view.serving]
        order = sorted(workers, key=lambda worker: (list(view.counts).index(worker.group), index_in(worker.worker_id)))
        return [worker.worker_id for worker in order]

    def router_pids(self) -> list[int]:
        """Once all of them are there."""
        return self._routers.pids(_READY_SECONDS) if self._routers is not None else []

    def router_modules(self) -> set[str]:
        """Top-level packages that are loaded in any router."""
        answers = self._routers.ask("modules", _CALL_SECONDS) if self._routers is not None else []
        return {name for answer in answers for name in answer or ()}

    def stop(self) -> None:
        """End the routers, then the workers, then Ray if it was started here."""
        if self._done.is_set():
            return
        self._done.set()
        if self._ahead is not None:
            self._ahead.stop()
        if self._watcher is not None:
            self._watcher.join(timeout=_STOP_SECONDS)
        if self._routers is not None:
            self._routers.stop()
        if self._crew is not None and self._runtime is not None and self._runtime.is_gone:
            self._crew.abandon()
        elif self._crew is not None:
            self._crew.stop(may_end=self._is_up)
        if self._runtime is not None:
            self._runtime.close()

    def hurry(self) -> None:
        """While `stop` waits for answers that are being written: they are cut off. For a signal's handler."""
        if self._routers is not None:
            self._routers.hurry()

    def _wait_started(self, crew: Crew | DetachedCrew, routers: RouterProcesses) -> None:
        """Until every worker is there, and every router listens. Raises ClusterError for one that cannot start.

        Of a cluster that ran already one worker of each group will do.
        """
        began, is_new = time.monotonic(), not isinstance(crew, DetachedCrew) or crew.is_new
        while True:
            view = crew.view().kept()
            self._pass_on(view)
            for name, reason in view.failures.items() if is_new else ():
                raise ClusterError(f"{name} could not start: {reason}")
            here = view.ready_in(view.serving)
            unready = routers.unready()
            if all(here[group] >= (count if is_new else 1) for group, count in view.counts.items()) and not unready:
                return
            if time.monotonic() - began > _START_SECONDS:
                waiting = [*(worker.worker_id for worker in view.workers if worker.address is None), *unready]
                raise ClusterError(f"{', '.join(waiting)} did not start within {_START_SECONDS:.0f} s")
            time.sleep(_SHORT_SECONDS)

    def _wait_ready(self, crew: Crew | DetachedCrew, routers: RouterProcesses) -> None:
        """Until the routers, too, have found every worker ready. Raises ClusterError, at once for one they refuse."""
        deadline = time.monotonic() + _READY_SECONDS
        while waiting := self._join(crew.view().kept(), routers):
            for name, _, reason in self._faulty(routers) if not isinstance(crew, DetachedCrew) or crew.is_new else ():
                raise ClusterError(f"no request can be sent to {name}: {reason}")
            if time.monotonic() > deadline:
                told = [answer or {} for answer in routers.ask("reasons", _CALL_SECONDS)]
                reasons = {name: reason for answer in told for name, reason in answer.items()}
                each = "; ".join(f"{name}: {reasons.get(name, 'not known yet')}" for name in sorted(waiting))
                raise ClusterError(f"no request can be sent to {each}")
            time.sleep(_SHORT_SECONDS)

    def _watch(self, crew: Crew | DetachedCrew, routers: RouterProcesses) -> None:
        """Keep every router's list current."""
        while not (self._done.wait(_POLL_SECONDS) or self.lost.is_set()):
            try:
                self._look(crew, routers)
            except Exception:  # a bug of ours, or of Ray's client: routers must be told of workers all the same
                log.exception("keeping the routers' lists current failed")

    def _look(self, crew: Crew | DetachedCrew, routers: RouterProcesses) -> None:
        if self._runtime is not None and self._runtime.is_gone and not self._return():
            self._progress("Ray has gone, and this server's workers with it")
            self.lost.set()
            return
        view = crew.view()
        self._pass_on(view)
        if view.is_lost:
            self.lost.set()
            return
        self._join(view, routers)
        if len(view.sets) > 1:
            crew.hear(routers.report())
        if time.monotonic() - self._looked_at >= _FAULTY_SECONDS:
            self._looked_at = time.monotonic()
            self._replace_faulty(crew, routers)

    def _replace_faulty(self, crew: Crew | DetachedCrew, routers: RouterProcesses) -> None:
        for worker_id, incarnation, reason in self._faulty(routers):
            try:
                crew.replace(worker_id, incarnation, reason)
            except ClusterError as error:  # the next look tries again
                log.warning("%s was not replaced: %s", worker_id, error)

    @staticmethod
    def _faulty(routers: RouterProcesses) -> list[tuple[str, int, str]]:
        """Workers to which some router's self-test gives nothing any more: id, incarnation, and why."""
        answers = routers.ask("faulty", seconds=1.0)
        return [(worker_id, *told) for answer in answers for worker_id, told in (answer or {}).items()]

    def _return(self) -> bool:
        """Whether Ray is back once its head was started again, and with it the workers. Routers need neither."""
        crew, runtime = self._crew, self._runtime
        if not isinstance(crew, DetachedCrew) or runtime is None or not runtime.may_return:
            return False
        self._progress("Ray has gone; requests go on with the workers that there are")
        crew.part()
        if not (runtime.rejoin(self._done) and crew.rejoin()):
            return False
        self._progress("Ray is back, and whoever keeps the workers")
        return True

    def _join(self, view: View, routers: RouterProcesses) -> frozenset[str]:
        """Tells routers who there is; the ready workers of the set that serves that some of them call unready yet."""
        routers.update(view)
        incarnations = {each.worker_id: each.endpoint.incarnation for each in view.addresses}
        new = {worker_id for worker_id, number in incarnations.items() if (worker_id, number) not in self._joined}
        missing = routers.missing(sorted(new)) if new else set()
        self._joined = frozenset(entry for entry in incarnations.items() if entry[0] not in missing)
        return frozenset(each for each in missing if set_in(each) == view.serving)

    def _pass_on(self, view: View) -> None:
        """What the crew has to tell goes to whoever watches, once, and how far workers are to the routers."""
        if self._routers is not None:
            self._routers.tell_coming(view.coming())
        last = view.news[-1][0] if view.news else -1
        self._told = min(self._told, last)  # whoever keeps the workers may have been started again, and count anew
        for number, text in view.news:
            if number > self._told:
                self._told = number
                self._progress(text)

    def _obey(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """What an operator asks for by way of a router, and how far it is. Raises InvalidRequest for what cannot be."""
        crew = self._crew
        if crew is None or self._done.is_set():
            raise NoWorker("the server is still starting, or being stopped; try again in a moment")
        if "scale" in wish:
            crew.scale(wish["scale"])
        elif "switch" in wish:
            crew.switch(wish["switch"]["worker"], wish["switch"]["role"])
        elif "reload" in wish:
            told = self._routers.ask("sets", _CALL_SECONDS) if self._routers is not None else []
            bring_up(wish["reload"], self._settings, crew, told)
        elif "back" in wish:
            crew.back(wish["back"]["seconds"])
        elif "show" not in wish:
            raise InvalidRequest(f"a supervisor is not asked for {', '.join(wish)}")
        view = crew.view()
        joining = {each.worker_id for each in view.addresses} - {worker_id for worker_id, _ in self._joined}
        return view.told(frozenset(joining))
