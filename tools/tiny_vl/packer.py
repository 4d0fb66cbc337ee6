"""Packs samples into a batch: pixels to patches, turns to tokens, positions and labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tools.tiny_vl.chat import ChatEncoder, Encoded
from tools.tiny_vl.draw import resize_like_processor
from tools.tiny_vl.grids import Bytes, Grids, GridTables, Int32Array, retiled
from tools.tiny_vl.packing import (
    LONGEST_IMAGE,
    LONGEST_SEQUENCE,
    LONGEST_WINDOW,
    NO_KIND,
    NO_LABEL,
    PATCH_VALUES,
    Batch,
    Caps,
    pieces,
)
from tools.tiny_vl.scenes import Handed, Picture, Sample


class SampleTooLong(ValueError):
    """The sample has a picture or a text longer than any segment may be; draw another."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A picture ready to be written; handed: the rows that the language model gets."""

    picture: Picture
    pixels: Bytes
    tables: GridTables
    handed: Handed

    @property
    def rows(self) -> int:
        return len(self.handed.lines) * len(self.handed.columns)


class Packer:
    """Fills one batch.

    What a picture needs is worked out before anything is written, so a sample that does not fit leaves no trace.
    """

    def __init__(self, caps: Caps, encoder: ChatEncoder, grids: Grids, kinds: Sequence[str]) -> None:
        """kinds: the order that turn_kind counts in; encoder and grids may be shared by packers of one thread"""
        self._caps, self._encoder, self._grids = caps, encoder, grids
        self._place_by_kind = {kind: place for place, kind in enumerate(kinds)}
        self._patches = np.zeros((caps.patches, PATCH_VALUES), np.uint8)
        self._noise = np.zeros(caps.patches, np.uint8)
        self._patch_at = np.zeros((caps.patches, 2), np.int32)
        self._row_slot = np.full(caps.patches // 4, caps.tokens, np.int32)
        self._row_lost = np.zeros(caps.patches // 4, np.bool_)
        self._token_ids = np.zeros(caps.tokens, np.int32)
        self._token_at = np.zeros((3, caps.tokens), np.int32)
        self._ramp = np.arange(LONGEST_SEQUENCE, dtype=np.int32)
        self._windows: list[int] = []  # lengths, as the next two
        self._images: list[int] = []
        self._sequences: list[int] = []
        self._label_at: list[int] = []
        self._label_turn: list[int] = []
        self._turn_kind: list[int] = []
        self._num_patches = self._num_tokens = 0

    @property
    def num_samples(self) -> int:
        return len(self._sequences)

    def add(self, sample: Sample) -> bool:
        """Takes the sample in, or answers False and stays as it was if there is no room for it.

        Raises SampleTooLong if no batch can hold it, KeyError for a kind that is not among `kinds`.
        """
        pictures = [self._prepare(picture) for picture in sample.pictures]
        encoded = self._encoder.encode(sample, [each.rows for each in pictures])
        if len(encoded.token_ids) > LONGEST_SEQUENCE:
            raise SampleTooLong(f"a sample has {len(encoded.token_ids)} tokens, expected at most {LONGEST_SEQUENCE}")
        kinds = [self._place_by_kind[turn.kind] for turn in sample.turns]
        if not self._has_room(pictures, encoded):
            return False
        for each, (start, _) in zip(pictures, encoded.images, strict=True):
            self._write_picture(each, self._num_tokens + start)
        self._write_labels(encoded, kinds)
        self._write_tokens(encoded, [each.handed for each in pictures])
        return True

    def _prepare(self, picture: Picture) -> _Prepared:
        pixels = np.asarray(resize_like_processor(picture.image))
        tables = self._grids.tables(pixels.shape[1], pixels.shape[0])
        if tables.num_patches > LONGEST_IMAGE:
            raise SampleTooLong(f"a picture has {tables.num_patches} patches, expected at most {LONGEST_IMAGE}")
        handed = picture.handed or tables.whole
        if picture.told is not None:
            pixels, tables = retiled(pixels, *picture.told), self._grids.tables_of(*picture.told)
        return _Prepared(picture, pixels, tables, handed)

    def _has_room(self, pictures: Sequence[_Prepared], encoded: Encoded) -> bool:
        caps = self._caps
        patches_left = caps.patches - self._num_patches - sum(each.tables.num_patches for each in pictures)
        tokens_left = caps.tokens - self._num_tokens - len(encoded.token_ids)
        windows = len(self._windows) + sum(len(each.tables.window_lengths) for each in pictures)
        labels = len(self._label_at) + sum(end - start for start, end in encoded.answers)
        return (
            patches_left >= 0
            and tokens_left >= 0
            and windows + pieces(patches_left, LONGEST_WINDOW) <= caps.windows
            and len(self._images) + len(pictures) + pieces(patches_left, LONGEST_IMAGE) <= caps.images
            and len(self._sequences) + 1 + pieces(tokens_left, LONGEST_SEQUENCE) <= caps.sequences
            and labels <= caps.labels
            and len(self._turn_kind) + len(encoded.answers) <= caps.turns
        )

    def _write_picture(self, each: _Prepared, first_token: int) -> None:
        """first_token: of the picture's placeholders, in the batch"""
        start, end = self._num_patches, self._num_patches + each.tables.num_patches
        each.tables.cut(each.pixels, self._patches[start:end])
        self._patch_at[start:end] = each.tables.patch_at
        self._noise[start:end] = min(round(each.picture.noise), 255)
        rows = slice(start // 4, end // 4)
        if each.picture.handed is None:
            self._row_slot[rows] = each.tables.block_at + first_token
        else:
            slots = each.tables.slots(each.handed)
            self._row_slot[rows] = np.where(slots < 0, self._caps.tokens, slots + first_token)
        self._row_lost[rows] = each.picture.lost
        self._windows += each.tables.window_lengths
        self._images.append(each.tables.num_patches)
        self._num_patches = end

    def _write_labels(self, encoded: Encoded, kinds: Sequence[int]) -> None:
        for (start, end), kind in zip(encoded.answers, kinds, strict=True):
            self._label_at += range(self._num_tokens + start - 1, self._num_tokens + end - 1)
            self._label_turn += [len(self._turn_kind)] * (end - start)
            self._turn_kind.append(kind)

    def _write_tokens(self, encoded: Encoded, pictures: Sequence[Handed]) -> None:
        """Token ids and M-RoPE positions: text behind a picture goes on behind the picture's longer side."""
        first, length = self._num_tokens, len(encoded.token_ids)
        self._token_ids[first : first + length] = encoded.token_ids
        at = self._token_at[:, first : first + length]
        position = cursor = 0
        for (start, end), handed in zip(encoded.images, pictures, strict=True):
            lines, columns = len(handed.lines), len(handed.columns)
            at[:, cursor:start] = self._ramp[position : position + start - cursor]
            position += start - cursor
            at[:, start:end] = self._grids.row_positions(lines, columns) + position
            position += max(lines, columns)
            cursor = end
        at[:, cursor:] = self._ramp[position : position + length - cursor]
        self._sequences.append(length)
        self._num_tokens += length

    def finish(self) -> Batch:
        """The batch; the packer's arrays are its tensors from now on, so it takes nothing more."""
        caps = self._caps
        labels = np.array(self._label_at, np.int64)
        arrays: dict[str, Any] = {
            "patches": self._patches,
            "noise": self._noise,
            "patch_at": self._patch_at,
            "window_ends": _ends(self._windows, caps.patches, LONGEST_WINDOW, caps.windows),
            "image_ends": _ends(self._images, caps.patches, LONGEST_IMAGE, caps.images),
            "row_slot": self._row_slot,
            "row_lost": self._row_lost,
            "token_ids": self._token_ids,
            "token_at": self._token_at,
            "sequence_ends": _ends(self._sequences, caps.tokens, LONGEST_SEQUENCE, caps.sequences),
            "label_at": _padded(labels.astype(np.int32), caps.labels, 0),
            "label_id": _padded(self._token_ids[labels + 1].astype(np.int64), caps.labels, NO_LABEL),
            "label_turn": _padded(np.array(self._label_turn, np.int32), caps.labels, caps.turns),
            "turn_kind": _padded(np.array(self._turn_kind, np.int32), caps.turns, NO_KIND),
        }
        return Batch(
            **{name: torch.from_numpy(array) for name, array in arrays.items()},
            num_samples=len(self._sequences),
            num_patches=self._num_patches,
            num_tokens=self._num_tokens,
            num_labels=len(labels),
        )


def _ends(lengths: Sequence[int], total: int, longest: int, cap: int) -> Int32Array:
    """[cap + 1] cumulative lengths, the rest of the total in pieces of up to `longest`."""
    ends = np.full(cap + 1, total, np.int32)
    ends[: len(lengths) + 1] = np.cumsum([0, *lengths])
    padding = np.arange(ends[len(lengths)], total, longest, dtype=np.int32)
    ends[len(lengths) : len(lengths) + len(padding)] = padding
    return ends


def _padded(values: Any, length: int, filler: int) -> Any:
    padded = np.full(length, filler, values.dtype)
    padded[: len(values)] = values
    return padded
