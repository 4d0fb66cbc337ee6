"""Streams and events of torch, with types: torch itself leaves them untyped."""

import torch

LOWEST_PRIORITY = 0
HIGHEST_PRIORITY = -100  # torch takes the nearest that the device has
_IDLE_PRIORITY = -1


def new_stream(device: torch.device, priority: int = LOWEST_PRIORITY) -> torch.cuda.Stream:
    """One of torch's pool of streams for the device, never the default stream.

    priority: lower numbers go first, where kernels of several streams wait for a place on the device
    """
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def new_idle_stream(device: torch.device) -> torch.cuda.Stream:
    """One to allocate memory on and never to launch anything: torch keeps it apart from all that kernels work in.

    Of a priority that nobody else asks for: of each, torch has 32 streams, and gives out the first of them again then.
    """
    return new_stream(device, _IDLE_PRIORITY)


def new_sleeping_event() -> torch.cuda.Event:
    """One whose waiters sleep, where others keep a core busy."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def bind_context(device: torch.device) -> None:
    """Makes the device's context current on this thread, as libraries beside torch expect it; nothing off CUDA.

    A thread has none before its first call that needs one: selecting a device alone does not count.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).query()


def new_event() -> torch.cuda.Event:
    """Created on whichever device it is first recorded on; counts as completed until then."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def new_shared_event() -> torch.cuda.Event:
    """One that `export_event` can export."""
    return torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]


def export_event(event: torch.cuda.Event) -> bytes:
    """The 64 bytes by which another process opens the event. The event is created on the current device."""
    return bytes(event.ipc_handle())  # type: ignore[no-untyped-call]


def open_event(device: torch.device, handle: bytes) -> torch.cuda.Event:
    """Another process's event on one of this process's devices. Raises RuntimeError with CUDA's reason."""
    event: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(device, handle)  # type: ignore[no-untyped-call]
    return event


def has_completed(event: torch.cuda.Event) -> bool:
    """Whether what came before the event's last record has ended; never waits."""
    return bool(event.query())  # type: ignore[no-untyped-call]
