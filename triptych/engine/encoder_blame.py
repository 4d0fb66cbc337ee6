"""Who is to blame when a batch cannot be encoded: by encoding less at once until only the guilty fail.

An error of a whole batch tells nothing about its items, so nobody fails for it. Too little memory: both halves are
tried, once, then the items of a half that still does not fit. Anything else: each item alone. What fails alone is the
item's own failure. Only a broken device is nobody's.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from triptych.engine.device_errors import DeviceLost, as_ours, is_device_lost, is_out_of_memory
from triptych.errors import LayoutMismatch, TriptychError

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Done = TypeVar("Done")
Write = Callable[[Sequence[Item]], Sequence[Done]]


@dataclass(frozen=True, slots=True)
class _Failed:
    """What is kept of a batch's error: its tracebacks would keep its tensors alive while its parts are tried."""

    out_of_memory: bool


def encode_in_parts(write: Write[Item, Done], batch: Sequence[Item]) -> list[Done | TriptychError]:
    """What `write` makes of each item of a batch, or the item's own failure.

    write: encodes items together, all of them or none; it must change nothing that others see before it is sure

    Raises DeviceLost when the CUDA context is broken, which no item is to blame for.
    """
    if len(batch) == 1:
        return [_alone(write, batch[0])]
    done = _attempt(write, batch)
    if not isinstance(done, _Failed):
        return list(done)
    if not done.out_of_memory:
        return _singly(write, batch)
    middle = (len(batch) + 1) // 2
    return _together_or_singly(write, batch[:middle]) + _together_or_singly(write, batch[middle:])


def _together_or_singly(write: Write[Item, Done], batch: Sequence[Item]) -> list[Done | TriptychError]:
    if len(batch) == 1:
        return [_alone(write, batch[0])]
    done = _attempt(write, batch)
    return _singly(write, batch) if isinstance(done, _Failed) else list(done)


def _singly(write: Write[Item, Done], batch: Sequence[Item]) -> list[Done | TriptychError]:
    return [_alone(write, item) for item in batch]


def _alone(write: Write[Item, Done], item: Item) -> Done | TriptychError:
    try:
        return write([item])[0]
    except Exception as error:
        _raise_if_lost(error)
        return as_ours(error, "encoding the image").with_traceback(None)


def _attempt(write: Write[Item, Done], batch: Sequence[Item]) -> Sequence[Done] | _Failed:
    try:
        return write(batch)
    except Exception as error:
        _raise_if_lost(error)
        # Its text alone: a log record may be kept, and the error with it.
        log.warning("a batch of %d items failed, trying it in parts: %s", len(batch), repr(error))
        return _Failed(is_out_of_memory(error))


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
