"""Pools whose threads are all there from the start: a process holds no more of them under load than before it."""

import threading
from concurrent.futures import ThreadPoolExecutor


def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """`count` threads, all running; Python's own pools make each when more is wanted at once than ever before."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    together = threading.Barrier(count)
    for waiting in [pool.submit(together.wait) for _ in range(count)]:
        waiting.result()
    return pool
