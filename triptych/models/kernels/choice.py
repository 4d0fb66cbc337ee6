"""Which of the kernels a device is given: the fused ones where they work, each tried once."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from triptych.models.kernels import plain
from triptych.models.kernels.head_shape import HeadShape, TokenPlaces, Turn
from triptych.models.kernels.plain_turn import PlainTurn

try:
    from triptych.models.kernels import fused, fused_product, fused_turn
except ImportError as error:  # Triton comes with torch for GPUs alone
    _why_not_fused: ImportError | None = error
else:
    _why_not_fused = None

log = logging.getLogger(__name__)

# Of the largest number. Both sides compute in float32, so that they differ where rounding falls the other way.
_LARGEST_DIFFERENCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}


@dataclass(frozen=True, slots=True)
class Kernels:
    """One function for each computation, of `plain.py` or of `fused.py`; `turn` of `plain_turn.py`, `fused_turn.py`.

    `gated` is of `plain.py` or of `fused_product.py`.
    """

    add_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]] = plain.add_norm
    rotate: Callable[[Tensor, Tensor, Tensor, int], None] = plain.rotate
    gate: Callable[[Tensor], Tensor] = plain.gate
    gated: Callable[[Tensor, Tensor], Tensor] = plain.gated
    turn: Callable[[TokenPlaces], Turn] = PlainTurn


PLAIN = Kernels()


def fused_kernels() -> Kernels:
    """The fused ones, untried. Raises ImportError without Triton."""
    if _why_not_fused is not None:
        raise _why_not_fused
    return Kernels(fused.add_norm, fused.rotate, fused.gate, fused_product.gated, fused_turn.FusedTurn)


def choose_kernels(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Fused where a trial gives what the plain one gives, plain with a warning where not; always plain off CUDA.

    Waits for the device.
    """
    if device.type != "cuda":
        return PLAIN
    if _why_not_fused is not None:
        log.warning("kernels are not fused, which costs time: %s", _why_not_fused)
        return PLAIN
    with torch.cuda.device(device):
        return trusted(fused_kernels(), device, dtype)


def trusted(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> Kernels:
    """The kernels, with the plain one in place of each that fails a trial; warns of it."""
    chosen = PLAIN
    for name, trial in _TRIALS.items():
        try:
            apart = _apart(trial(kernels, device, dtype), trial(PLAIN, device, dtype))
        except Exception as error:  # a compiler may fail in any way
            log.warning("%s is not fused, which costs time: %s", name, error)
            continue
        if apart <= _LARGEST_DIFFERENCE[dtype]:
            chosen = replace(chosen, **{name: getattr(kernels, name)})
        else:
            log.warning("%s is not fused, which costs time: it is %.2g of its size apart", name, apart)
    return chosen


def _apart(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest difference, relative to the largest number; infinity for NaN."""
    pairs = [(each.float(), wanted.float()) for each, wanted in zip(found, expected, strict=True)]
    apart = [float((each - wanted).abs().max() / wanted.abs().max()) for each, wanted in pairs]
    return max(number if number == number else float("inf") for number in apart)


def _noise(seed: int, device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _try_add_norm(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    hidden, delta, weight = (
        _noise(seed, device, dtype, *shape) for seed, shape in enumerate([(37, 144)] * 2 + [(144,)])
    )
    return *kernels.add_norm(hidden, delta, weight, 1e-6), *kernels.add_norm(hidden, None, weight, 1e-6)


def _try_rotate(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    qkv, angles = _noise(3, device, dtype, 37, 3 * 6 * 24), _noise(4, device, torch.float32, 37, 12)
    kernels.rotate(qkv, angles.cos(), angles.sin(), 6)
    return (qkv,)


def _try_gate(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (kernels.gate(_noise(5, device, dtype, 37, 2 * 1200)),)


def _try_gated(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    weight = _noise(11, device, dtype, 2 * 128, 192)
    return tuple(kernels.gated(_noise(tokens, device, dtype, tokens, 192), weight) for tokens in (1, 37, 65))


def _try_turn(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Grouped heads with a norm; slots in no order, one token of which nothing is kept."""
    shape = HeadShape(heads=10, kv_heads=2, head_size=48)
    angles = _noise(6, device, torch.float32, 37, 24)
    slab = _noise(7, device, dtype, 5, 3, 2, 16, 2, 48)
    slots = torch.randperm(80, generator=torch.Generator().manual_seed(8))[:37].to(device)
    slots[3] = -1
    qkv, norm = _noise(9, device, dtype, 37, 14 * 48), _noise(10, device, dtype, 12, 48)
    turn = kernels.turn(TokenPlaces(angles.cos(), angles.sin(), slots, slab, shape))
    return *turn(1, qkv.clone(), norm), *turn(2, qkv, None), slab


_TRIALS: dict[str, Callable[[Kernels, torch.device, torch.dtype], tuple[Tensor, ...]]] = {
    "add_norm": _try_add_norm,
    "rotate": _try_rotate,
    "gate": _try_gate,
    "gated": _try_gated,
    "turn": _try_turn,
}
