"""NIXL alone, without ours around it: KV as unpacked 64 KiB pieces against the same KV packed at the owner.

    unpacked   one READ of all pieces, from where they lie to where they go
    packed     the owner gathers the blocks into one staging area, one READ takes it, the consumer lays them out

Descriptors are made from numbers; nothing is unpickled. Both ends time what they do to the end of it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.handoff_sizes import PIECE_BYTES
from triptych.transfer.slab import Slab

_READ_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What the consumer must know of the owner's memory."""

    agent: str
    metadata: bytes
    blocks: int  # address of the slab's data
    staging: int  # address


class PieceOwner:
    """The owner's agent, its slab and a staging area of the slab's size."""

    def __init__(self, slab: Slab) -> None:
        self._blocks = slab.data.view(slab.num_units, slab.unit_bytes)
        self._staging = torch.empty_like(self._blocks)
        self._agent = _Agent("pieces-owner")
        for tensor in (self._blocks, self._staging):
            self._agent.register(tensor)

    def export(self) -> Exported:
        return Exported(self._agent.name, self._agent.metadata(), self._blocks.data_ptr(), self._staging.data_ptr())

    def pack(self, ids: Sequence[int]) -> float:
        """Seconds for gathering the blocks, one behind the other, into the staging area."""
        began = time.perf_counter()
        where = torch.tensor(ids, device=self._blocks.device)
        torch.index_select(self._blocks, 0, where, out=self._staging[: len(ids)])
        _synchronize(self._blocks)
        return time.perf_counter() - began


class PieceReader:
    """The consumer's agent: reads blocks of the owner into blocks of its own."""

    def __init__(self, exported: Exported, into: Tensor) -> None:
        """into: [pool, block_bytes] uint8"""
        self._exported, self._into = exported, into
        self._staging = torch.empty_like(into)
        self._agent = _Agent("pieces-reader")
        for tensor in (into, self._staging):
            self._agent.register(tensor)
        self._agent.meet(exported.metadata)

    def unpacked(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Seconds for all pieces of the blocks, from their places to their places."""
        block, piece = self._into.shape[1], min(PIECE_BYTES, self._into.shape[1])
        begins = range(0, block, piece)
        theirs = [(self._exported.blocks + each * block + begin, piece) for each in sources for begin in begins]
        ours = [(self._into.data_ptr() + each * block + begin, piece) for each in targets for begin in begins]
        return self._agent.read(self._exported.agent, ours, theirs, self._into)

    def packed(self, targets: Sequence[int]) -> tuple[float, float]:
        """Seconds for reading what the owner has packed, and for laying the blocks into their places."""
        count = len(targets) * self._into.shape[1]
        ours, theirs = [(self._staging.data_ptr(), count)], [(self._exported.staging, count)]
        read = self._agent.read(self._exported.agent, ours, theirs, self._into)
        began = time.perf_counter()
        self._into.index_copy_(0, torch.tensor(targets, device=self._into.device), self._staging[: len(targets)])
        _synchronize(self._into)
        return read, time.perf_counter() - began


class _Agent:
    def __init__(self, name: str) -> None:
        from nixl_cu13 import nixl_agent, nixl_agent_config

        self.name = name
        self._agent: Any = nixl_agent(name, nixl_agent_config(enable_prog_thread=True))

    def register(self, tensor: Tensor) -> None:
        self._agent.register_memory([(tensor.data_ptr(), tensor.numel(), _device(tensor), "")], _kind(tensor))

    def metadata(self) -> bytes:
        return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes) -> None:
        self._agent.add_remote_agent(metadata)

    def read(
        self, owner: str, ours: Sequence[tuple[int, int]], theirs: Sequence[tuple[int, int]], like: Tensor
    ) -> float:
        """Seconds of one READ, making its descriptors included."""
        began = time.perf_counter()
        sides = [
            self._agent.get_xfer_descs([(address, count, _device(like)) for address, count in side], _kind(like))
            for side in (ours, theirs)
        ]
        handle = self._agent.initialize_xfer("READ", sides[0], sides[1], owner)
        state = self._agent.transfer(handle)
        while state == "PROC":
            if time.perf_counter() - began > _READ_SECONDS:
                raise TimeoutError(f"a READ of {len(ours)} pieces is not done after {_READ_SECONDS:g} s")
            state = self._agent.check_xfer_state(handle)
        took = time.perf_counter() - began
        handle.release()
        if state != "DONE":
            raise RuntimeError(f"a READ of {len(ours)} pieces ended as {state}")
        return took


def _device(tensor: Tensor) -> int:
    return tensor.device.index or 0


def _kind(tensor: Tensor) -> str:
    return "VRAM" if tensor.device.type == "cuda" else "DRAM"


def _synchronize(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
