"""Weights drawn at random on their device, for measuring a model whose weights are not there.

Every process draws the same ones, on devices of the same kind: a tensor's numbers depend on its name alone. They are
scaled so that activations keep their size from layer to layer, in 16 bits, too.
"""

import logging
import math
from collections.abc import Mapping

import torch
from blake3 import blake3
from torch import Tensor

log = logging.getLogger(__name__)

_SEED_BYTES = 7  # what a generator takes as a seed is signed


def draw_weights(places: Mapping[str, Tensor]) -> None:
    """Sets each tensor: norms to 1, biases to 0, embeddings N(0, 1), matrices N(0, 1 / numbers in a row)."""
    generators: dict[torch.device, torch.Generator] = {}
    num_bytes = 0
    for name, tensor in places.items():
        num_bytes += tensor.numel() * tensor.itemsize
        if tensor.dim() == 1:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        generator = generators.setdefault(tensor.device, torch.Generator(tensor.device))
        generator.manual_seed(int.from_bytes(blake3(name.encode()).digest(_SEED_BYTES), "little"))
        spread = 1.0 if "embed_tokens" in name else 1 / math.sqrt(math.prod(tensor.shape[1:]))
        tensor.normal_(0.0, spread, generator=generator)
    log.warning("weights are drawn at random, answers mean nothing: %d tensors, %.1f MB", len(places), num_bytes / 1e6)
