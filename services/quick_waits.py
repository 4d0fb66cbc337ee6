"""Threads of a worker that wait for one another wake within microseconds.

The engine's thread gives the interpreter away dozens of times a step, with every call into the device, and takes it
back from whoever has it: by a wait of the switch interval, which the kernel makes longer by the thread's timer slack.
With what Python and Linux do by default, 5 ms and 50 us, a thread that is busy beside stretches a step of 10 ms to 30.
"""

import ctypes
import logging
import sys

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 30e-6  # shorter, and busy threads spend their time on taking turns
_SLACK_NANOSECONDS = 1000
_PR_SET_TIMERSLACK = 29


def wake_quickly() -> None:
    """For this thread, and those that it and its own start; the switch interval is the whole process's."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NANOSECONDS, 0, 0, 0):
        log.warning("this thread's timer slack cannot be set; waits may take 50 us longer")
