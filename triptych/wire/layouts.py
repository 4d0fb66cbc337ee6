"""Layouts, their items and token ids, to messages and back."""

from collections.abc import Iterable

import numpy as np

from triptych.errors import InvalidRecord
from triptych.journey import Grid, Int32Array, Item, Layout, Modality, RopeRun, Run
from triptych.pb import common_pb2 as pb

_MODALITY_TO_PB = {Modality.IMAGE: pb.IMAGE, Modality.VIDEO: pb.VIDEO, Modality.AUDIO: pb.AUDIO}
_MODALITY_FROM_PB = {value: key for key, value in _MODALITY_TO_PB.items()}


def run_to_pb(run: Run) -> pb.Run:
    return pb.Run(start=run.start, length=run.length)


def run_from_pb(message: pb.Run) -> Run:
    return Run(message.start, message.length)


def grid_to_pb(grid: Grid) -> pb.Grid:
    return pb.Grid(t=grid.t, h=grid.h, w=grid.w)


def grid_from_pb(message: pb.Grid) -> Grid:
    return Grid(message.t, message.h, message.w)


def item_to_pb(item: Item) -> pb.Item:
    return pb.Item(
        index=item.index,
        digest=item.digest,
        modality=_MODALITY_TO_PB[item.modality],
        width=item.width,
        height=item.height,
        grid=grid_to_pb(item.grid),
        encoder_tokens=item.encoder_tokens,
        rows=item.rows,
        runs=[run_to_pb(run) for run in item.runs],
        span=run_to_pb(item.span),
        media=item.media,
    )


def item_from_pb(message: pb.Item) -> Item:
    if message.modality not in _MODALITY_FROM_PB:
        raise InvalidRecord(f"item {message.index} has unknown modality {message.modality}")
    return Item(
        index=message.index,
        digest=message.digest,
        modality=_MODALITY_FROM_PB[message.modality],
        width=message.width,
        height=message.height,
        grid=grid_from_pb(message.grid),
        encoder_tokens=message.encoder_tokens,
        rows=message.rows,
        runs=tuple(run_from_pb(run) for run in message.runs),
        span=run_from_pb(message.span),
        media=message.media,
    )


def _rope_run_to_pb(run: RopeRun) -> pb.RopeRun:
    message = pb.RopeRun(
        length=run.length, base_t=run.base[0], base_h=run.base[1], base_w=run.base[2], step_t=run.step_t
    )
    if run.grid is not None:
        message.grid.CopyFrom(grid_to_pb(run.grid))
    return message


def _rope_run_from_pb(message: pb.RopeRun) -> RopeRun:
    grid = grid_from_pb(message.grid) if message.HasField("grid") else None
    return RopeRun(message.length, (message.base_t, message.base_h, message.base_w), grid, message.step_t)


def layout_to_pb(layout: Layout) -> pb.Layout:
    return pb.Layout(
        token_ids=tokens_to_bytes(layout.token_ids),
        items=[item_to_pb(item) for item in layout.items],
        rope=[_rope_run_to_pb(run) for run in layout.rope],
        atomic=[run_to_pb(run) for run in layout.atomic],
        digest=layout.digest,
    )


def layout_from_pb(message: pb.Layout) -> Layout:
    """The layout as sent; whoever uses it calls multimodal.layout.verify_layout first."""
    return Layout(
        token_ids=tokens_from_bytes(message.token_ids),
        items=tuple(item_from_pb(item) for item in message.items),
        rope=tuple(_rope_run_from_pb(run) for run in message.rope),
        atomic=tuple(run_from_pb(run) for run in message.atomic),
        digest=message.digest,
    )


def tokens_to_bytes(token_ids: Iterable[int] | Int32Array) -> bytes:
    """Token ids as little-endian int32."""
    array = token_ids if isinstance(token_ids, np.ndarray) else np.fromiter(token_ids, dtype=np.int32)
    return array.astype("<i4", copy=False).tobytes()


def tokens_from_bytes(data: bytes) -> Int32Array:
    if len(data) % 4:
        raise InvalidRecord(f"token ids take {len(data)} bytes, expected a multiple of 4")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)
