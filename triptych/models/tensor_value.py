"""Tensors as values that can be named by a digest, of dtypes too that NumPy does not have."""

import torch
from torch import Tensor

from triptych.errors import InvalidRecord
from triptych.multimodal.values import ArrayValue


def tensor_value(tensor: Tensor) -> ArrayValue:
    """The value of a tensor of any device and strides; equal to `array_value` of the same numbers in NumPy.

    Waits for the device. Raises InvalidRecord for a tensor that is sparse, quantised or without data, and for a dtype
    without an encoding.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "quantised" if tensor.is_quantized else "meta" if tensor.is_meta else str(tensor.layout)
        raise InvalidRecord(f"a {kind} tensor has no canonical encoding")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    payload = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return ArrayValue(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), payload)
