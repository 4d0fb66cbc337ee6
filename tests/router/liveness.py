"""Whether the event loop kept turning while something else went on."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Far below what the costly requests took, far above what a busy machine adds.
LONGEST_STANDSTILL_SECONDS = 1.0


@asynccontextmanager
async def lively() -> AsyncIterator[None]:
    """Fails where the loop stood still for too long meanwhile."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield
        await asyncio.sleep(0.02)  # a standstill just now is seen only at the next tick
    finally:
        ticking.cancel()
    assert longest < LONGEST_STANDSTILL_SECONDS, f"the loop stood still for {longest:.2f} s"
