"""python -m tests.faults: processes killed and stopped at each step of each edge, often; exit code 1 if one fails."""

import argparse
import itertools
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from tests.checkpoints import random_checkpoint
from tests.faults.cluster import FaultyCluster
from tests.faults.nursery import Nursery
from tests.faults.trial import PLACES, Place, answers, strike
from triptych.journey import Role
from triptych.transfer.faults import Action

ACTIONS = (Action.KILL, Action.STOP)
TRIALS_PER_ROUTER = 10  # a router lets about one retry pass for ten requests, and a reserve of a hundred


class Campaign:
    """All trials, shared by several clusters that take one after the other."""

    def __init__(self, kinds: Sequence[tuple[Place, Action]], rounds: int, seed: int) -> None:
        self._lock = threading.Lock()
        trials = list(kinds) * rounds
        random.Random(seed).shuffle(trials)
        self._trials = deque(trials)
        self.total = len(self._trials)
        self.done: Counter[tuple[Place, Action]] = Counter()
        self.failures: list[str] = []
        self.slowest = 0.0
        self._began = time.monotonic()

    def run(self, nursery: Nursery, folder: Path) -> None:
        """One cluster's share of it; a cluster that has failed a trial is replaced."""
        for number in itertools.count():
            cluster = None
            try:
                with self._lock:
                    cluster = FaultyCluster(
                        nursery, folder / f"cluster-{number}", str(random_checkpoint()), dict.fromkeys(Role, 2)
                    )
                self._until_failure(cluster)
                return
            except Exception:
                logs = cluster.logs() if cluster is not None else ""
                # Times are tight: where dozens of processes want a core, the machine is to blame.
                when = f"{time.strftime('%H:%M:%S')}, load average {os.getloadavg()[0]:.1f}"
                self._note(f"{when}\n{traceback.format_exc()}\n{logs}")
            finally:
                if cluster is not None:
                    cluster.stop()

    def _until_failure(self, cluster: FaultyCluster) -> None:
        wanted = answers(cluster)
        for number in itertools.count(1):
            with self._lock:
                if not self._trials:
                    return
                place, action = self._trials.popleft()
            try:
                trial = strike(cluster, place, action, wanted)
            except Exception as error:
                raise AssertionError(f"{action} at {place}") from error
            if number % TRIALS_PER_ROUTER == 0:
                cluster.new_router()
            self._count(place, action, trial.idle_after)

    def _count(self, place: Place, action: Action, idle_after: float) -> None:
        with self._lock:
            self.done[place, action] += 1
            self.slowest = max(self.slowest, idle_after)
            done = self.done.total()
            if done % 100 == 0 or done == self.total:
                minutes = (time.monotonic() - self._began) / 60
                print(f"{done} of {self.total} in {minutes:.1f} minutes, {len(self.failures)} failed", flush=True)

    def _note(self, failure: str) -> None:
        with self._lock:
            self.failures.append(failure)
        print(failure, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="how often each process is struck at each step")
    parser.add_argument("--clusters", type=int, default=4, help="at work side by side; they mostly wait")
    parser.add_argument("--only", default="", help="of these kinds: a part of the test's name, as stop-kv-prefill")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kinds = [(place, action) for place in PLACES for action in ACTIONS if options.only in f"{action}-{place}"]
    campaign = Campaign(kinds, options.rounds, options.seed)
    folder = Path(tempfile.mkdtemp(prefix="triptych-faults-"))
    # Every trial makes a router lose a worker, and say so: wanted beside a failure, and by nobody else.
    form = "%(asctime)s %(name)s %(levelname)s %(message)s"
    logging.basicConfig(filename=folder / "routers.log", level=logging.WARNING, format=form)
    nurseries = [Nursery() for _ in range(options.clusters)]
    threads = []
    for number, nursery in enumerate(nurseries):
        own = folder / str(number)
        own.mkdir()
        threads.append(threading.Thread(target=campaign.run, args=(nursery, own)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for nursery in nurseries:
        nursery.close()
    fewest = min(campaign.done[kind] for kind in kinds)
    print(
        f"{campaign.done.total()} trials, each of {len(kinds)} kinds at least {fewest} times; "
        f"all others idle after {campaign.slowest:.2f} s at most; {len(campaign.failures)} failed; logs in {folder}"
    )
    sys.exit(1 if campaign.failures else 0)


if __name__ == "__main__":
    main()
