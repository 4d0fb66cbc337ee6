"""Who is to blame when a batch cannot be encoded: by encoding less at once until only the guilty fail.

An error of a whole batch tells nothing about its items, so nobody fails for it. Too little memory: both halves are
tried, once, then the items of a half that still does not fit. Anything else: each item alone. What fails alone is the
item's own failure. Only a broken device is nobody's.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from triptych.engine.device_errors import DeviceLost, as_ours, is_device_lost, is_out_of_memory
from triptych.errors import LayoutMismatch, TriptychError

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Done = TypeVar("Done")
Write = Callable[[Sequence[Item]], Sequence[Done]]


def encode_in_parts(write: Write[Item, Done], batch: Sequence[Item]) -> list[Done | TriptychError]:
    """What `write` makes of each item of a batch, or the item's own failure.

    write: encodes items together, all of them or none; it must change nothing that others see before it is sure

    Raises DeviceLost when the CUDA context is broken, which no item is to blame for.
    """
    if len(batch) == 1:
        return [_alone(write, batch[0])]
    done = _attempt(write, batch)
    if not isinstance(done, Exception):
        return list(done)
    if not is_out_of_memory(done):
        log.warning("a batch of %d items failed (%s), trying them one by one", len(batch), done)
        return _singly(write, batch)
    log.warning("a batch of %d items needs more memory than there is (%s), trying its halves", len(batch), done)
    middle = (len(batch) + 1) // 2
    return _together_or_singly(write, batch[:middle]) + _together_or_singly(write, batch[middle:])


def _together_or_singly(write: Write[Item, Done], batch: Sequence[Item]) -> list[Done | TriptychError]:
    if len(batch) == 1:
        return [_alone(write, batch[0])]
    done = _attempt(write, batch)
    return _singly(write, batch) if isinstance(done, Exception) else list(done)


def _singly(write: Write[Item, Done], batch: Sequence[Item]) -> list[Done | TriptychError]:
    return [_alone(write, item) for item in batch]


def _alone(write: Write[Item, Done], item: Item) -> Done | TriptychError:
    try:
        return write([item])[0]
    except Exception as error:
        _raise_if_lost(error)
        return as_ours(error, "encoding the image")


def _attempt(write: Write[Item, Done], batch: Sequence[Item]) -> Sequence[Done] | Exception:
    """What was written, or the error without its traceback, which would keep the failed batch's tensors alive."""
    try:
        return write(batch)
    except Exception as error:
        _raise_if_lost(error)
        return error.with_traceback(None)


def _raise_if_lost(error: Exception) -> None:
    if is_device_lost(error):
        raise DeviceLost(str(error)) from error


def check_rows(made: object, rows: int, row_numbers: int, dtype: torch.dtype) -> Tensor:
    """What the tower made, if it is [rows, row numbers] of the dtype; else raises LayoutMismatch naming what it is."""
    wanted = f"expected [{rows}, {row_numbers}] of {dtype}"
    if not isinstance(made, Tensor):
        raise LayoutMismatch(f"the vision tower made {type(made).__name__} and no tensor, {wanted}")
    found = list(made.shape)
    if made.ndim != 2:
        raise LayoutMismatch(f"the vision tower made a tensor {found} of rank {made.ndim}, {wanted}")
    if found != [rows, row_numbers] or made.dtype != dtype:
        raise LayoutMismatch(f"the vision tower made rows {found} of {made.dtype}, {wanted}")
    return made
