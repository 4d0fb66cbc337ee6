"""Batches as the network takes them: what transformers would work out for each sample, packed to a fixed shape."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoProcessor, Qwen2_5_VLModel
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from tests.checkpoints import EMBEDDED
from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.packer import Packer, SampleTooLong
from tools.tiny_vl.packing import NO_KIND, NO_LABEL, Batch, Caps
from tools.tiny_vl.scenes import Blank, Handed, Picture, Sample, Turn
from tools.tiny_vl.tokenizer import IMAGE_PAD, build_tokenizer, save_processor

KINDS = ("echo", "read", "chat-again")
SMALL = Caps(patches=4096, tokens=2048, images=64, windows=192, sequences=24, labels=256, turns=32)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(["does", "the", "image", "say"])


@pytest.fixture(scope="module")
def processor(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> AutoProcessor:
    folder: Path = tmp_path_factory.mktemp("processor")
    (folder / "config.json").write_text((EMBEDDED / "config.json").read_text())
    save_processor(folder, tokenizer)
    return AutoProcessor.from_pretrained(folder)


@pytest.fixture(scope="module")
def model() -> Qwen2_5_VLModel:
    with torch.device("meta"):
        return Qwen2_5_VLModel(AutoConfig.from_pretrained(EMBEDDED))


def picture(rng: Random, width: int, height: int) -> Picture:
    # Smooth, so that two resizing methods agree to a step or two.
    pixels = Image.frombytes("RGB", (6, 6), rng.randbytes(108)).resize((width, height), Image.Resampling.BICUBIC)
    return Picture(pixels, Blank(), noise=rng.uniform(0, 20))


def random_sample(rng: Random) -> Sample:
    turns = []
    for number in range(rng.randint(1, 3)):
        parts: list[str | Picture] = []
        for _ in range(rng.randint(0, 2)):
            parts += [picture(rng, rng.randint(56, 250), rng.randint(56, 250)), rng.choice(["", "and ", "the image"])]
        parts.append(f"What does {rng.randrange(10**6)} say?")
        turns.append(Turn(tuple(parts), str(rng.randrange(10**4)), KINDS[number]))
    return Sample(tuple(turns), system=rng.choice([None, "Be kind."]))


def packed(tokenizer: Tokenizer, samples: list[Sample], caps: Caps = SMALL) -> Batch:
    packer = Packer(caps, ChatEncoder(tokenizer), Grids(), KINDS)
    for sample in samples:
        assert packer.add(sample)
    return packer.finish()


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    rng = Random(5)
    return [random_sample(rng) for _ in range(8)]


@pytest.fixture(scope="module")
def batch(tokenizer: Tokenizer, samples: list[Sample]) -> Batch:
    return packed(tokenizer, samples)


def grids_of(processor: AutoProcessor, samples: list[Sample]) -> torch.Tensor:
    images = [picture.image for sample in samples for picture in sample.pictures]
    grids: torch.Tensor = processor.image_processor(images=images, return_tensors="pt")["image_grid_thw"]
    return grids


def test_windows_and_patch_positions_equal_transformers(
    batch: Batch, samples: list[Sample], processor: AutoProcessor
) -> None:
    grids = grids_of(processor, samples)
    index, window_ends = get_vision_window_index(grids, 2, 112, 14)
    positions = get_vision_position_ids(grids, 2).reshape(-1, 4, 2)[index].reshape(-1, 2)
    assert batch.num_patches == len(positions)
    np.testing.assert_array_equal(batch.patch_at[: batch.num_patches], positions)
    np.testing.assert_array_equal(batch.window_ends[: len(window_ends)], window_ends)
    image_ends = grids.prod(-1).cumsum(0)
    np.testing.assert_array_equal(batch.image_ends[1 : len(image_ends) + 1], image_ends)


def test_patches_equal_the_processors(batch: Batch, samples: list[Sample], processor: AutoProcessor) -> None:
    images = [picture.image for sample in samples for picture in sample.pictures]
    pixels = processor.image_processor(images=images, return_tensors="pt")
    index, _ = get_vision_window_index(pixels["image_grid_thw"], 2, 112, 14)
    expected = pixels["pixel_values"].reshape(-1, 4, 3, 2, 14, 14)[index][:, :, :, 0].reshape(-1, 3, 196)
    mean, std = (
        torch.tensor(getattr(processor.image_processor, name))[:, None] for name in ("image_mean", "image_std")
    )
    steps = (batch.patches[: batch.num_patches].reshape(-1, 3, 196) - 255 * mean) / std - 255 * expected
    assert (steps * std).abs().max() < 2.5  # of 255; Pillow and torchvision round their bicubic weights differently


def test_an_image_on_the_grid_is_packed_to_the_byte(tokenizer: Tokenizer, processor: AutoProcessor) -> None:
    image = Image.frombytes("RGB", (140, 224), Random(1).randbytes(140 * 224 * 3))
    batch = packed(tokenizer, [Sample((Turn((Picture(image, Blank()),), "x", "read"),))])
    restored = np.zeros((224, 140, 3), np.uint8)
    for patch, (line, column) in zip(batch.patches.numpy(), batch.patch_at.tolist()[: batch.num_patches], strict=False):
        area = restored[14 * line : 14 * line + 14, 14 * column : 14 * column + 14]
        area[:] = patch.reshape(3, 14, 14).transpose(1, 2, 0)
    np.testing.assert_array_equal(restored, np.asarray(image))


def test_token_positions_equal_transformers(
    batch: Batch, samples: list[Sample], processor: AutoProcessor, model: Qwen2_5_VLModel
) -> None:
    for (start, end), sample in zip(pairwise(batch.sequence_ends.tolist()), samples, strict=False):
        ids = batch.token_ids[start:end].long()[None]
        grids = grids_of(processor, [sample]) if sample.pictures else None
        expected, _ = model.get_rope_index(ids, (ids == IMAGE_PAD).int(), grids)
        np.testing.assert_array_equal(batch.token_at[:, start:end], expected[:, 0])


def test_every_row_lands_on_its_placeholder_in_reading_order(
    batch: Batch, samples: list[Sample], processor: AutoProcessor
) -> None:
    num_rows = batch.num_patches // 4
    index, _ = get_vision_window_index(grids_of(processor, samples), 2, 112, 14)
    slots = torch.zeros(num_rows, dtype=torch.int32)
    slots[index] = batch.row_slot[:num_rows]
    np.testing.assert_array_equal(slots, torch.nonzero(batch.token_ids == IMAGE_PAD)[:, 0])
    assert (batch.row_slot[num_rows:] == SMALL.tokens).all()
    assert not batch.row_lost.any()


def test_labels_are_the_answers_and_their_ends(batch: Batch, samples: list[Sample], tokenizer: Tokenizer) -> None:
    turns = [turn for sample in samples for turn in sample.turns]
    used = batch.label_id != NO_LABEL
    assert int(used.sum()) == batch.num_labels
    np.testing.assert_array_equal(batch.token_ids[batch.label_at[used] + 1], batch.label_id[used])
    for number, turn in enumerate(turns):
        labels = batch.label_id[used & (batch.label_turn == number)]
        assert tokenizer.decode(labels.tolist(), skip_special_tokens=False) == f"{turn.answer}<|im_end|>"
        assert KINDS[batch.turn_kind[number]] == turn.kind
    assert (batch.turn_kind[len(turns) :] == NO_KIND).all()
    assert (batch.label_turn[~used] == SMALL.turns).all()


def test_noise_belongs_to_the_patches_of_its_picture(batch: Batch, samples: list[Sample]) -> None:
    pictures = [picture for sample in samples for picture in sample.pictures]
    for (start, end), each in zip(pairwise(batch.image_ends.tolist()), pictures, strict=False):
        assert (batch.noise[start:end] == round(each.noise)).all()


@pytest.mark.parametrize("filled", [0, 1, 8])
def test_segments_cover_everything_and_none_is_too_long(
    tokenizer: Tokenizer, samples: list[Sample], filled: int
) -> None:
    batch = packed(tokenizer, samples[:filled])
    for ends, total, longest in (
        (batch.window_ends, SMALL.patches, 64),
        (batch.image_ends, SMALL.patches, 1024),
        (batch.sequence_ends, SMALL.tokens, 1024),
    ):
        assert (int(ends[0]), int(ends[-1])) == (0, total)
        assert 0 <= int(ends.diff().min()) <= int(ends.diff().max()) <= longest


def test_only_handed_rows_reach_the_language_model_as_a_picture_of_their_own(
    tokenizer: Tokenizer, model: Qwen2_5_VLModel
) -> None:
    whole = picture(Random(2), 28 * 7, 28 * 6)
    handed = Handed(lines=(4, 0, 5), columns=(6, 2, 3))
    batch = packed(tokenizer, [Sample((Turn((replace(whole, handed=handed), "?"), "x", "read"),))])
    ids = batch.token_ids[: batch.num_tokens].long()[None]
    assert int((ids == IMAGE_PAD).sum()) == 9
    expected, _ = model.get_rope_index(ids, (ids == IMAGE_PAD).int(), torch.tensor([[1, 6, 6]]))
    np.testing.assert_array_equal(batch.token_at[:, : batch.num_tokens], expected[:, 0])
    for slot, (line, column) in zip(batch.row_slot.tolist(), batch.patch_at[: 4 * 42 : 4].tolist(), strict=False):
        if line // 2 in handed.lines and column // 2 in handed.columns:
            place = [handed.lines.index(line // 2) + _first(batch), handed.columns.index(column // 2) + _first(batch)]
            assert batch.token_at[1:, slot].tolist() == place
        else:
            assert slot == SMALL.tokens


def _first(batch: Batch) -> int:
    return int((batch.token_ids == IMAGE_PAD).nonzero()[0])


def test_rows_of_a_lost_picture_are_marked(tokenizer: Tokenizer) -> None:
    pictures = [picture(Random(3), 56, 84), replace(picture(Random(4), 84, 84), lost=True)]
    batch = packed(tokenizer, [Sample((Turn((*pictures, "?"), "x", "read"),))])
    assert batch.row_lost.nonzero()[:, 0].tolist() == list(range(6, 15))


@pytest.mark.parametrize("cap", ["patches", "tokens", "images", "windows", "sequences", "labels", "turns"])
def test_a_sample_without_room_leaves_the_batch_as_it_was(tokenizer: Tokenizer, cap: str) -> None:
    rng = Random(6)
    loose = Caps(8192, 16384, 64, 256, 512, 1024, 512)
    tight = replace(loose, **{cap: _TIGHT[cap]})
    encoder, grids = ChatEncoder(tokenizer), Grids()
    packer, fitting = Packer(tight, encoder, grids, KINDS), []
    while packer.add(sample := random_sample(rng)):
        fitting.append(sample)
    packed(tokenizer, [*fitting, sample], loose)
    found, expected = packer.finish().tensors(), packed(tokenizer, fitting, tight).tensors()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


_TIGHT = {"patches": 2048, "tokens": 1024, "images": 16, "windows": 140, "sequences": 22, "labels": 50, "turns": 9}


def test_a_sample_no_batch_can_hold_is_refused(tokenizer: Tokenizer) -> None:
    packer = Packer(SMALL, ChatEncoder(tokenizer), Grids(), KINDS)
    with pytest.raises(SampleTooLong, match="1088 patches, expected at most 1024"):
        packer.add(Sample((Turn((picture(Random(1), 476, 448),), "x", "read"),)))
    with pytest.raises(SampleTooLong, match="tokens, expected at most 1024"):
        packer.add(Sample((Turn(("9" * 1100,), "x", "echo"),)))


@pytest.mark.parametrize("cap", ["images", "windows", "sequences"])
def test_caps_that_leave_no_segments_for_padding_are_refused(cap: str) -> None:
    with pytest.raises(ValueError, match=f"caps.{cap} is 1, expected at least"):
        replace(SMALL, **{cap: 1})
