"""Ways to copy scattered blocks within one device's memory, side by side: what the device itself takes."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.handoff_consumer import timed_on
from bench.handoff_sizes import Sizes
from triptych.transfer.block_copy import fused_copy, gathered_copy


def block_copies(source: Tensor, sizes: Sizes, plain: float) -> dict[str, Any]:
    """By way: milliseconds for all KV blocks, and the share of a plain copy's rate.

    source: [pool, block_bytes] uint8 of the owner's, as the consumer has it mapped
    chosen: what this process would use; gathered: torch's gather and scatter, in steps; singly: a copy for each block
    """
    device, into = source.device, torch.zeros_like(source)
    order = torch.randperm(sizes.pool, generator=torch.Generator().manual_seed(3))
    sources, targets = order[: sizes.blocks].to(device), order[-sizes.blocks :].to(device)
    pairs = list(zip(sources.tolist(), targets.tolist(), strict=True))
    ways: dict[str, Callable[[], object]] = {"gathered": lambda: gathered_copy(source, into, sources, targets)}
    fused = fused_copy(device)
    if fused is not None:
        ways["fused"] = lambda: fused(source, into, sources, targets)
    ways["singly"] = lambda: [into[target].copy_(source[begin]) for begin, target in pairs]
    found: dict[str, Any] = {}
    for name, way in ways.items():
        into.zero_()
        seconds = statistics.median([timed_on(device, way) for _ in range(sizes.plain_repeats + 2)][2:])
        if not torch.equal(into[targets], source[sources]):
            raise AssertionError(f"blocks copied {name} are not what they should be")
        found[name] = {"ms": seconds * 1e3, "share_of_plain_rate": plain / seconds}
    found["chosen"] = found["fused" if "fused" in ways else "gathered"]
    return found
