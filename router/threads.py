"""Threads for what would hold up the event loop; one kind of work does not make another kind wait."""

import os
from concurrent.futures import ThreadPoolExecutor

_MOST_MEDIA_THREADS = 8


def media_threads() -> ThreadPoolExecutor:
    """The event loop's own, which hash and decode what is too large for it; Python would make up to 32 of them."""
    count = min(len(os.sched_getaffinity(0)) // 2, _MOST_MEDIA_THREADS)
    return ThreadPoolExecutor(max(2, count), thread_name_prefix="media")


class WorkThreads:
    """The router's own, so that strangers' texts cannot take the interpreter's shared ones."""

    def __init__(self) -> None:
        self.parsing = ThreadPoolExecutor(2, thread_name_prefix="parse")
        self.prompts = ThreadPoolExecutor(4, thread_name_prefix="prompt")
        self.texts = ThreadPoolExecutor(1, thread_name_prefix="tokenize")  # of /tokenize, which no answer waits for

    def close(self) -> None:
        """What has begun ends by itself."""
        for threads in (self.parsing, self.prompts, self.texts):
            threads.shutdown(wait=False, cancel_futures=True)
