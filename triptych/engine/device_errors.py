"""Telling apart what a computation can raise: too little memory, a broken context, or anything else."""

import logging

import torch

from triptych.errors import InternalError, Overloaded, TriptychError

log = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


class DeviceLost(Exception):
    """The process's CUDA context is broken: every later call fails too, whatever it works on. See __cause__."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less work at once, or later, might have gone through."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether the CUDA context is broken: nothing that was being computed is to blame, and nothing more can be."""
    if is_out_of_memory(error):
        return False
    return isinstance(error, torch.AcceleratorError) or (isinstance(error, RuntimeError) and "CUDA error" in str(error))


def as_ours(error: Exception, what: str) -> TriptychError:
    """The error as a request may be told it: ours as it is, too little memory as Overloaded, the rest as InternalError.

    what: the work that failed, for the message. What nobody has foreseen is logged in full.
    """
    if isinstance(error, TriptychError):
        return error
    if is_out_of_memory(error):
        return Overloaded(f"{what} needs more memory than there is now: {error}")
    log.error("%s failed", what, exc_info=error)
    return InternalError(f"{what} failed: {type(error).__name__}: {error}")
