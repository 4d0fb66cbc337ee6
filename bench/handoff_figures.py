"""What the seconds of bench/handoff.py come to, and whether they reach the goals."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROWS_OVERHEAD_MS = 1.0
KV_OVERHEAD_MS = 2.0
KV_SHARE_OF_PLAIN = 0.6
NIXL_TIMES_UNPACKED = 20.0
GROWTH_BYTES = 4 << 20  # of memory, over all hand-offs of a kind; a driver's own books move by less


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def figures(seconds: Sequence[float], num_bytes: int, plain: float) -> dict[str, Any]:
    """plain: seconds of a plain copy of as many bytes"""
    middle = statistics.median(seconds)
    return {
        "hand_offs": len(seconds),
        "bytes": num_bytes,
        "p50_ms": middle * 1e3,
        "p99_ms": percentile(seconds, 0.99) * 1e3,
        "least_ms": min(seconds) * 1e3,
        "gb_per_s": num_bytes / middle / 1e9,
        "plain_copy_ms": plain * 1e3,
        "plain_copy_gb_per_s": num_bytes / plain / 1e9,
        "share_of_plain_rate": plain / middle,
        "overhead_p50_ms": (middle - plain) * 1e3,
    }


def growth(samples: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """By side and kind of memory: bytes more in the last half of the samples than in the half before it, by medians.

    The first quarter is left out: threads, streams and pools are made then.
    """
    kept = samples[len(samples) // 4 :]
    half = len(kept) // 2
    return {
        side: {
            kind: round(
                statistics.median(each[side][kind] for each in kept[half:])
                - statistics.median(each[side][kind] for each in kept[:half])
            )
            for kind in kinds
        }
        for side, kinds in samples[-1].items()
    }


def goals(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each goal for which there are figures; they are of a GPU."""
    if result.get("device") == "cpu":
        return
    for transport, parts in result.get("paths", {}).items():
        for what, found in parts.items():
            yield from _overheads(transport, what, found)
    gather = result.get("blocks_on_the_device", {}).get("chosen")
    if gather:
        yield _goal(
            "cuda_ipc, KV blocks: share of a plain copy's rate, on the device",
            gather["share_of_plain_rate"],
            KV_SHARE_OF_PLAIN,
        )
    ratio = result.get("nixl_pieces", {}).get("kv_times_unpacked")
    if ratio:
        yield _goal("KV by nixl, times the rate of unpacked 64 KiB pieces", ratio, NIXL_TIMES_UNPACKED)
    for name, endured in result.get("endurance", {}).items():
        if "growth_bytes" in endured:
            sides = endured["growth_bytes"].values()
            most = max(grown for side in sides for kind, grown in side.items() if kind != "resident")
            yield _goal(
                f"{name}: bytes of device memory more after {endured['hand_offs']} hand-offs",
                most,
                GROWTH_BYTES,
                least=False,
            )


def _overheads(transport: str, what: str, found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "overhead_p50_ms" not in found:
        return
    if what.startswith("KV"):
        yield _goal(f"{transport}, {what}: overhead in ms", found["overhead_p50_ms"], KV_OVERHEAD_MS, least=False)
    else:
        items = int(what.split()[0])
        name = f"{transport}, {what}: overhead in ms" + (" for each" if items > 1 else "")
        yield _goal(name, found["overhead_p50_ms"] / items, ROWS_OVERHEAD_MS, least=False)


def _goal(what: str, reached: float, bound: float, least: bool = True) -> dict[str, Any]:
    return {
        "what": what,
        "reached": reached,
        "goal": f"at {'least' if least else 'most'} {bound:g}",
        "holds": reached >= bound if least else reached <= bound,
    }
