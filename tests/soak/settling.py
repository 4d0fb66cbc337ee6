"""When to begin counting: once nothing rises any more under load, by the measure of the run itself.

Pools of threads, allocators and caches fill, and are full. A leak never is: one too fast for this never comes to rest,
a slower one is found by the run behind it.
"""

import time
from collections.abc import Mapping

from tests.soak.samples import Samples

WINDOW_SECONDS = 30.0
MOST_SECONDS = 300.0
SHARE = 0.25  # of what may grow in a whole run: so much in one window counts as rest
_INTERVAL_SECONDS = 1.0


def rising(samples: Samples, window: float = WINDOW_SECONDS) -> list[str]:
    """What grew in the last window, in words; empty once all is at rest. They must span it."""
    now = samples.at[-1]
    return [
        f"{what}, in the last {window:g} of {now:.0f} s of load" for what in samples.since(now - window).grew(SHARE)
    ]


def settle(pids: Mapping[str, int]) -> tuple[float, list[str]]:
    """Returns once all is at rest, or after the longest time: seconds, and what still rose."""
    began = time.monotonic()
    samples = Samples()
    while True:
        samples.add(time.monotonic() - began, pids)
        now = samples.at[-1]
        if now >= WINDOW_SECONDS:
            left = rising(samples)
            if not left or now >= MOST_SECONDS:
                return now, left
        time.sleep(_INTERVAL_SECONDS)
