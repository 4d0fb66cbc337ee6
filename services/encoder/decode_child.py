"""A process that decodes strangers' images for an encoder, and may be lost; decode_process.py starts it.

It holds nothing but a socket and memory shared with the encoder, has no secrets in its environment, may not write
files, start processes or gain privileges, and takes no more memory and time for an image than its order allows. Neither
torch nor transformers is loaded: it starts in a tenth of a second.
"""

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

import numpy as np

from triptych.errors import InvalidMedia
from triptych.multimodal.canonical import UInt8Array, write_planes
from triptych.multimodal.header import MediaHeader
from triptych.services.encoder.decode_wire import Answer, Order, Outcome, mapped

Decode = Callable[[bytes, MediaHeader, UInt8Array], None]  # source, what it is expected to be, [3, height, width]

_MAX_DESCRIPTORS = 32
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_LATE_SECONDS = 5.0  # behind which an image's process ends by itself: the encoder that should end it may be stuck


def main(decode: Decode = write_planes) -> None:
    """Answers orders until the encoder closes its end."""
    channel_fd, memory_fd, parent = (int(argument) for argument in sys.argv[1:4])
    _end_with(parent)
    _keep_memory()
    _confine()
    channel = socket.socket(fileno=channel_fd)
    memory = mapped(memory_fd)
    os.close(memory_fd)
    limits = _Limits()
    channel.send(Answer(Outcome.READY).to_bytes())
    answer = None
    while answer is None or answer.outcome is not Outcome.OVER_MEMORY:
        data, descriptors, _, _ = socket.recv_fds(channel, 4096, 1)
        if not data:
            return
        order = Order.from_bytes(data)
        own = mapped(descriptors[0]) if order.brings_memory else memory
        for descriptor in descriptors:
            os.close(descriptor)
        answer = _carried_out(order, own, decode, limits)
        del own
        channel.send(answer.to_bytes())


def _carried_out(order: Order, memory: mmap.mmap, decode: Decode, limits: "_Limits") -> Answer:
    header, count = order.header, 3 * order.header.width * order.header.height
    planes = np.frombuffer(memory, np.uint8, count, order.pixels_at).reshape(3, header.height, header.width)
    limits.begin(order)
    try:
        decode(memory[: order.num_bytes], header, planes)
    except InvalidMedia as error:
        return Answer(Outcome.INVALID, error.media_code, error.message)
    except MemoryError:
        return Answer(Outcome.OVER_MEMORY)
    except Exception as error:
        return Answer(Outcome.BROKEN, text=f"{type(error).__name__}: {error}")
    finally:
        limits.end()
    return Answer(Outcome.PIXELS)


class _Limits:
    """What this process may take for an image. Whatever exceeds its time is ended by a signal that nobody handles."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._most = resource.getrlimit(resource.RLIMIT_AS)[1]

    def begin(self, order: Order) -> None:
        mapped_bytes = int(os.pread(self._statm, 64, 0).split()[0]) * mmap.PAGESIZE
        most = mapped_bytes + order.allowance.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most if self._most < 0 else min(most, self._most), self._most))
        # Not RLIMIT_CPU, which counts whole seconds of the process' whole life.
        signal.setitimer(signal.ITIMER_PROF, order.allowance.cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, order.allowance.seconds + _LATE_SECONDS)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))


def _end_with(parent: int) -> None:
    """With the encoder's thread that started us, also where it dies without a word while we are busy."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it died before we had asked
        sys.exit(1)


def _keep_memory() -> None:
    """What an image has been decoded in serves the next one: fetched anew page by page it costs as much as decoding."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _confine() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:  # where memory runs out, this one goes first
        file.write("1000")
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _MAX_DESCRIPTORS),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
