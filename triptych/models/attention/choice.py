"""Which implementation a decoder is given."""

import torch

from triptych.models.attention.base import Attention, AttentionShape
from triptych.models.attention.sdpa import SdpaAttention


def choose_attention(shape: AttentionShape, device: torch.device, wanted: str = "auto") -> Attention:
    """The wanted implementation, or the best that works here."""
    return SdpaAttention(shape)
