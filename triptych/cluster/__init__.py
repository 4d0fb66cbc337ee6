"""Ray: starts, watches and ends the processes."""

import os

# Ray reads these when it is imported, which each module below does. Two workers' equal lines are two facts; lines name
# their process themselves, and what Ray would put ahead of one of JSON makes it none.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_DISABLE_WORKER_LOG_PREFIX", "1")
