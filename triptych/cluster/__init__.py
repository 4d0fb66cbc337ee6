"""A server's workers as Ray's actors, and who keeps them."""

import os

# Read by Ray as soon as anything imports it: two workers' equal lines are two facts.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
