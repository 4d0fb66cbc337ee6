"""Training and evaluation batches by number: the same number is the same batch, whoever asks and whenever."""

from collections.abc import Callable
from random import Random

from tokenizers import Tokenizer
from torch.utils.data import Dataset

from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.conversations import draw_sample, draw_training_sample
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.packer import Packer, SampleTooLong
from tools.tiny_vl.packing import Batch, Caps
from tools.tiny_vl.scenes import Sample


class BatchDataset(Dataset[Batch]):
    """Map-style: item i is the batch of step i, full of fresh samples of the step's place in the curriculum.

    For torch's DataLoader with batch_size=None and a sampler that starts where training does. A batch depends on the
    seed, its number, the caps and total_steps only.
    """

    def __init__(self, seed: int, caps: Caps, total_steps: int, tokenizer: Tokenizer) -> None:
        self._seed, self._caps, self._total_steps = seed, caps, total_steps
        self._encoder, self._grids = ChatEncoder(tokenizer), Grids()

    def __len__(self) -> int:
        return self._total_steps

    def __getitem__(self, step: int) -> Batch:
        if not 0 <= step < self._total_steps:
            raise IndexError(f"step {step}, expected 0 to {self._total_steps - 1}")
        rng = Random(f"training {self._seed} {step}")
        progress = step / self._total_steps
        return self._filled(lambda: draw_training_sample(rng, progress), most=None)

    def held_out_batch(self, kind: str, n: int) -> Batch:
        """n fresh samples of one kind, or as many as fit; the same at every call.

        Turns that lead up to a question may be of other kinds: turn_kind tells them apart.
        """
        rng = Random(f"held out {self._seed} {kind}")
        return self._filled(lambda: draw_sample(kind, rng), most=n)

    def _filled(self, draw: Callable[[], Sample], most: int | None) -> Batch:
        packer = Packer(self._caps, self._encoder, self._grids, tuple(KINDS))
        while most is None or packer.num_samples < most:
            try:
                if not packer.add(draw()):
                    break
            except SampleTooLong:
                continue  # rare: several large pictures in one prompt
        return packer.finish()
