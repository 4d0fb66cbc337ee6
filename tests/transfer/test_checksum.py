import torch

from triptych.transfer.checksum import CHECKSUM_BYTES, checksum


def test_a_checksum_depends_on_bytes_and_their_order_alone() -> None:
    rows = torch.arange(24, dtype=torch.float32)
    assert len(checksum(rows)) == CHECKSUM_BYTES
    assert checksum(rows) == checksum(rows.view(4, 6)) == checksum(rows.view(torch.uint8))
    assert checksum(rows) != checksum(rows.flip(0))
    assert checksum(rows.view(4, 6)) != checksum(rows.view(4, 6).T)
    assert checksum(rows.view(4, 6).T) == checksum(rows.view(4, 6).T.contiguous())


def test_every_dtype_has_a_checksum() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool):
        assert checksum(torch.ones(3, 5).to(dtype)) != checksum(torch.zeros(3, 5).to(dtype))
    assert len(checksum(torch.empty(0))) == CHECKSUM_BYTES


def test_one_bit_changes_the_checksum() -> None:
    data = torch.zeros(1000, dtype=torch.uint8)
    before = checksum(data)
    data[777] = 1
    assert checksum(data) != before
