"""What is handed over in bench/handoff.py: Qwen2.5-VL-7B's rows and KV, and a tiny stand-in for dry runs."""

from dataclasses import dataclass

ROWS_PER_UNIT = 16  # as the encoder's arena has them
PIECE_BYTES = 64 << 10  # what KV falls into where nothing packs it


@dataclass(frozen=True, slots=True)
class Sizes:
    """rows x width bfloat16 an item; KV blocks of block_bytes, scattered over a pool at both ends."""

    rows: int
    width: int
    items: int  # of the larger of two row hand-offs
    tokens: int
    blocks: int
    block_bytes: int
    pool: int  # KV blocks of each side
    plain_repeats: int

    @property
    def unit_bytes(self) -> int:
        return ROWS_PER_UNIT * self.width * 2

    @property
    def units_per_item(self) -> int:
        return -(-self.rows // ROWS_PER_UNIT)

    @property
    def item_bytes(self) -> int:
        return self.rows * self.width * 2

    @property
    def kv_bytes(self) -> int:
        return self.blocks * self.block_bytes


# 10,000 tokens are 625 blocks of 16; 28 x 2 x 16 x 4 x 128 numbers of 2 bytes are 896 KiB.
QWEN_7B = Sizes(1196, 3584, 16, 10_000, 625, 28 * 2 * 16 * 4 * 128 * 2, 1400, 20)
TINY = Sizes(37, 128, 4, 640, 40, 128 << 10, 100, 5)
