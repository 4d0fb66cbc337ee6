"""A tensor's value is that of the same numbers in NumPy; dtypes that NumPy lacks have values too."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from triptych.errors import InvalidRecord
from triptych.models.tensor_value import tensor_value
from triptych.multimodal.digest import encode_canonical
from triptych.multimodal.values import ITEM_BYTES, array_value

IN_BOTH = sorted(name for name in ITEM_BYTES if not name.startswith(("bfloat", "float8")))


def numbers(name: str) -> Tensor:
    return torch.arange(6).reshape(2, 3).to(getattr(torch, name))


@pytest.mark.parametrize("name", IN_BOTH)
def test_torch_and_numpy_agree(name: str) -> None:
    tensor = numbers(name)
    assert tensor_value(tensor) == array_value(tensor.numpy())
    assert tensor_value(tensor[0, 1]) == array_value(np.asarray(tensor.numpy()[0, 1]))


@pytest.mark.parametrize("name", sorted(ITEM_BYTES))
def test_every_dtype_of_the_list_can_be_named(name: str) -> None:
    value = tensor_value(torch.ones(2, 3).to(getattr(torch, name)))
    assert (value.dtype, value.shape, len(value.payload)) == (name, (2, 3), 6 * ITEM_BYTES[name])


def test_dtypes_that_share_their_bytes_share_no_encoding() -> None:
    raw = torch.arange(48, dtype=torch.uint8)
    encodings = {
        encode_canonical(tensor_value(raw.view(getattr(torch, name)))) for name in ITEM_BYTES if name != "bool"
    }
    assert len(encodings) == len(ITEM_BYTES) - 1


def test_one_number_of_16_or_8_bits_makes_another_value() -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        values = [torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([2.0, 1.0]).to(dtype), torch.ones(2).to(dtype)]
        for one, other in itertools.combinations(values, 2):
            assert tensor_value(one) != tensor_value(other)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_view_is_its_contiguous_copy(name: str) -> None:
    tensor = numbers(name)
    assert tensor_value(tensor.T) == tensor_value(tensor.T.contiguous())
    assert tensor_value(tensor.T) != tensor_value(tensor)
    assert tensor_value(tensor[:, ::2]) == tensor_value(tensor[:, ::2].clone())
    assert tensor_value(tensor[0].expand(2, 3)) == tensor_value(torch.stack([tensor[0], tensor[0]]))


def test_a_conjugate_view_is_what_it_shows() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert tensor_value(tensor.conj()) == array_value(np.array([1 - 2j, 3 + 4j], dtype=np.complex64))
    assert tensor_value(tensor.conj().imag) == array_value(np.array([-2, 4], dtype=np.float32))


def test_gradients_and_emptiness_change_nothing() -> None:
    assert tensor_value(torch.ones(2, requires_grad=True)) == tensor_value(torch.ones(2))
    assert tensor_value(torch.zeros(0, 3)) == array_value(np.zeros((0, 3), np.float32))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(2).to_sparse(), "sparse_coo, has no"),
        (torch.empty(2, device="meta"), "on meta"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "tensor of float4_e2m1fn_x2"),
    ],
    ids=["sparse", "meta", "float4"],
)
def test_a_tensor_without_an_encoding_is_refused(tensor: Tensor, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        tensor_value(tensor)
