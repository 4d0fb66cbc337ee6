"""Tensors as values that can be named by a digest, of dtypes too that NumPy does not have."""

import torch
from torch import Tensor

from triptych.errors import InvalidRecord
from triptych.multimodal.values import ITEM_BYTES, ArrayValue


def tensor_value(tensor: Tensor) -> ArrayValue:
    """The value of a tensor of any device and strides; equal to `array_value` of the same numbers in NumPy.

    Waits for the device. Raises InvalidRecord for a tensor that is sparse or without data, and for a dtype without an
    encoding (quantised ones among them).
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES or tensor.layout is not torch.strided or tensor.is_meta:
        raise InvalidRecord(
            f"a tensor of {dtype} on {tensor.device}, {tensor.layout}, has no canonical encoding; "
            f"known: strided ones with data, of {', '.join(ITEM_BYTES)}"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    payload = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return ArrayValue(dtype, tuple(tensor.shape), payload)
