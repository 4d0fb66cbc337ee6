"""Threads of a worker wait for one another no longer than need be, and take turns no more often.

With every call into the device the engine's thread gives the interpreter away, and takes it back from whoever computes
by then: within the switch interval, which the kernel makes longer by the thread's timer slack. Python's own 5 ms are a
whole decoding step. But each turn costs, on a virtual machine some tens of microseconds: bursts of 16 requests beside
decoding on an H200 went through at 26.1 a second with 5 ms, 24.7 with 0.1 ms, 23.7 with 0.03 and 22.3 with 0.01.
"""

import ctypes
import logging
import sys

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 1e-3
_SLACK_NANOSECONDS = 1000
_PR_SET_TIMERSLACK = 29


def wake_quickly() -> None:
    """For this thread, and those that it and its own start; the switch interval is the whole process's."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NANOSECONDS, 0, 0, 0):
        log.warning("this thread's timer slack cannot be set; waits may take 50 us longer")
