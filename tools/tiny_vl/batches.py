"""Training and evaluation batches by number: the same number is the same batch, whoever asks and whenever."""

from collections.abc import Callable
from random import Random

from tokenizers import Tokenizer

from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.conversations import draw_sample, draw_training_sample
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.packer import Packer, SampleTooLong
from tools.tiny_vl.packing import Batch, Caps
from tools.tiny_vl.scenes import Sample


class BatchDataset:
    """Item i is the batch number i, full of fresh samples of its place in the curriculum.

    A batch depends on the seed, its number, the caps and the total only.
    """

    def __init__(self, seed: int, caps: Caps, total: int, tokenizer: Tokenizer) -> None:
        self._seed, self._caps, self._total = seed, caps, total
        self._encoder, self._grids = ChatEncoder(tokenizer), Grids()

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < self._total:
            raise IndexError(f"batch {number}, expected 0 to {self._total - 1}")
        rng = Random(f"training {self._seed} {number}")
        progress = number / self._total
        return self._filled(lambda: draw_training_sample(rng, progress), most=None)

    def blank(self) -> Batch:
        """A batch without samples."""
        return self._packer().finish()

    def held_out_batch(self, kind: str, n: int) -> Batch:
        """n fresh samples of one kind, or as many as fit; the same at every call.

        Turns that lead up to a question may be of other kinds: turn_kind tells them apart.
        """
        rng = Random(f"held out {self._seed} {kind}")
        return self._filled(lambda: draw_sample(kind, rng), most=n)

    def _filled(self, draw: Callable[[], Sample], most: int | None) -> Batch:
        packer = self._packer()
        while most is None or packer.num_samples < most:
            try:
                if not packer.add(draw()):
                    break
            except SampleTooLong:
                continue  # rare: several large pictures in one prompt
        return packer.finish()

    def _packer(self) -> Packer:
        return Packer(self._caps, self._encoder, self._grids, tuple(KINDS))
