"""That the host does not wait for the device, as torch itself sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_host_synchronisation() -> Iterator[None]:
    """Inside, torch raises wherever the host would wait; what was launched before is waited for first."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
