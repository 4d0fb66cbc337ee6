"""The only part of the language engine that touches the model and the KV slab."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from triptych.engine.batch import Stretch, flatten
from triptych.engine.device import ship
from triptych.engine.fuse import Overlay, fuse
from triptych.engine.sampler import Draw, Drawn, sample
from triptych.errors import ConfigError
from triptych.journey import BlockRef
from triptych.models.base import LanguageModel
from triptych.transfer.cuda_events import new_event, new_stream
from triptych.transfer.slab import Slab


class Runner:
    """Runs steps on one device, in order, on one stream. All methods belong to the thread inside `stream()`."""

    def __init__(self, model: LanguageModel, slab: Slab | None, kv_bytes: int, block_size: int) -> None:
        """slab: with units of one block each; without one the runner allocates kv_bytes of its own.

        Raises ConfigError when that is less than one block, or the units are of another size.
        """
        block_bytes = model.kv.block_bytes(block_size)
        data = slab.data if slab is not None else _allocate(kv_bytes // block_bytes * block_bytes, model.device)
        if data.numel() < block_bytes:
            raise ConfigError(f"language.kv_bytes gives {data.numel()} bytes of KV, one block takes {block_bytes}")
        if slab is not None and slab.words.numel() * block_bytes != data.numel():
            raise ConfigError(
                f"the KV slab has {slab.words.numel()} units, blocks of {block_bytes} bytes do not fill them"
            )
        self.model = model
        self.block_size = block_size
        self.num_blocks = data.numel() // block_bytes
        self._slab = slab
        shape = model.kv.slab_shape(self.num_blocks, block_size)
        self._kv = data[: self.num_blocks * block_bytes].view(model.kv.dtype).view(shape)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Make this thread's work go to the runner's own stream; on the CPU there is none."""
        device = self.model.device
        if device.type != "cuda":
            yield
            return
        # cuDNN plans attention anew for every length it has not met, and to decode is to meet a new length each step:
        # on an H200 such a step took 45 ms, and takes 5 with the other kernels.
        torch.backends.cuda.enable_cudnn_sdp(False)
        with torch.cuda.device(device):
            stream = new_stream(device)
            stream.wait_stream(torch.cuda.default_stream(device))  # on which the weights were loaded
            with torch.cuda.stream(stream):
                yield

    def stamp(self, blocks: Sequence[BlockRef]) -> None:
        """Write new owners' generations, ahead of the first byte that they write."""
        if self._slab is not None and blocks:
            self._slab.stamp([block.id for block in blocks], [block.generation for block in blocks])

    def fence(self) -> None:
        """Wait until everything launched is done, so that other streams and threads may write what it used."""
        if self.model.device.type == "cuda":
            event = new_event()
            event.record()
            event.synchronize()

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each."""
        if pairs:
            moves = ship(torch.tensor(pairs, dtype=torch.int64).T.contiguous(), self._kv.device)
            self._kv.index_copy_(0, moves[1], self._kv.index_select(0, moves[0]))

    @torch.inference_mode()
    def launch(self, stretches: Sequence[Stretch], overlays: Sequence[Overlay]) -> Tensor:
        """Logits [asked, vocab] float32, one row per stretch that wants them; does not wait for the device."""
        token_ids, inputs = flatten(stretches, self.block_size, self.model.device)
        embeddings, deepstack = fuse(self.model.embed(token_ids), overlays, self.model.levels)
        return self.model.forward(embeddings, replace(inputs, deepstack=deepstack), self._kv)

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[Drawn]:
        """Tokens for these draws from these rows of a step's logits; waits for the device."""
        return sample(logits, rows, draws) if draws else []


def _allocate(num_bytes: int, device: torch.device) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
