"""The random checkpoint can tell faults apart; without that, equality tests on it would prove nothing."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_checkpoint
from tests.reference import TOLERANCE, Answer, Reference
from tools.make_random_checkpoint import VOCABULARY, make_checkpoint
from triptych.models.card import load_card

PROMPTS = 40
SIZES = ((84, 140), (112, 56), (168, 84), (140, 112))  # height, width; not square, so that transposing means something

Inputs = Mapping[str, Tensor]


def picture(chosen: np.random.Generator, height: int, width: int) -> npt.NDArray[np.uint8]:
    """A few flat rectangles: most neighbouring patches look alike, which makes shifted rows hard to notice."""
    canvas = np.empty((height, width, 3), np.uint8)
    canvas[:] = chosen.integers(0, 256, 3)
    for _ in range(4):
        top, left = chosen.integers(0, height), chosen.integers(0, width)
        canvas[top : top + chosen.integers(8, height), left : left + chosen.integers(8, width)] = chosen.integers(
            0, 256, 3
        )
    return canvas


def batch_of_prompts(reference: Reference, seed: int, height: int, width: int) -> Inputs:
    """A quarter of the prompts: two images of one size, and twelve random tokens as the question."""
    pixels, words = np.random.default_rng(seed), random.Random(seed)
    parts = [{"type": "image"}, {"type": "text", "text": " and "}, {"type": "image"}, {"type": "text", "text": "?"}]
    rows = []
    for _ in range(PROMPTS // len(SIZES)):
        images = [picture(pixels, height, width) for _ in range(2)]
        ids = reference.inputs([{"role": "user", "content": parts}], images)["input_ids"][0].tolist()
        question = [words.randrange(7, VOCABULARY) for _ in range(12)]
        rows.append(reference.inputs_from_ids([*ids[:-6], *question, *ids[-6:]], images))
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def with_images_swapped(inputs: Inputs) -> Inputs:
    pixels = inputs["pixel_values"]
    pairs = pixels.reshape(PROMPTS // len(SIZES), 2, -1, pixels.shape[1])
    return {**inputs, "pixel_values": pairs.flip(1).reshape(pixels.shape)}


def with_first_grids_transposed(inputs: Inputs) -> Inputs:
    grids = inputs["image_grid_thw"].clone()
    grids[::2] = grids[::2][:, [0, 2, 1]]
    return {**inputs, "image_grid_thw": grids}


def answers_with_rows_rotated(reference: Reference, inputs: Inputs) -> list[Answer]:
    """The first item of each prompt has its rows moved on by one."""

    def rotate(module: Any, arguments: Any, output: Any) -> Any:
        pairs = output.pooler_output.unflatten(0, (PROMPTS // len(SIZES), 2, -1))
        pairs[:, 0] = pairs[:, 0].roll(1, dims=1)
        return output

    hook = reference.model.model.visual.register_forward_hook(rotate)
    try:
        return reference.generate_from(inputs)
    finally:
        hook.remove()


def answers_with_transposed_rope(reference: Reference, inputs: Inputs) -> list[Answer]:
    """The tower sees the right grid; the decoder places the first item's rows on the transposed one."""

    def restore(module: Any, arguments: Any, keywords: Any) -> Any:
        return arguments, {**keywords, "grid_thw": inputs["image_grid_thw"]}

    hook = reference.model.model.visual.register_forward_pre_hook(restore, with_kwargs=True)
    try:
        return reference.generate_from(with_first_grids_transposed(inputs))
    finally:
        hook.remove()


def test_the_random_checkpoint_tells_faults_apart() -> None:
    reference = Reference(random_checkpoint())
    changed = dict.fromkeys(("images swapped", "rows rotated", "grid transposed", "rope transposed"), 0)
    answers: list[Answer] = []
    for seed, (height, width) in enumerate(SIZES):
        inputs = batch_of_prompts(reference, seed, height, width)
        right = reference.generate_from(inputs)
        answers += right
        for fault, wrong in {
            "images swapped": reference.generate_from(with_images_swapped(inputs)),
            "rows rotated": answers_with_rows_rotated(reference, inputs),
            "grid transposed": reference.generate_from(with_first_grids_transposed(inputs)),
            "rope transposed": answers_with_transposed_rope(reference, inputs),
        }.items():
            changed[fault] += sum(a.token_ids != b.token_ids for a, b in zip(right, wrong, strict=True))
    assert len(answers) == PROMPTS
    assert min(changed.values()) >= 0.95 * PROMPTS, changed
    assert sum(len(set(answer.token_ids)) for answer in answers) / PROMPTS >= 12
    gaps = [gap for answer in answers for gap in answer.gaps]
    assert len(gaps) == 48 * PROMPTS
    assert sum(gap < TOLERANCE for gap in gaps) <= 0.001 * len(gaps)


def test_replies_do_not_end_by_themselves() -> None:
    reference = Reference(random_checkpoint())
    conversation = [{"role": "user", "content": "Count to ten."}]
    ended = reference.generate(conversation, ignore_eos=False)
    assert len(ended.token_ids) == 48
    assert min(ended.token_ids) >= 7  # no special token either


def test_the_same_seed_makes_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("same", 5), ("other", 6)):
        make_checkpoint(tmp_path / name, seed)
    one, same, other = (load_card(str(tmp_path / name), "auto").fingerprint for name in ("one", "same", "other"))
    assert one == same != other


def test_weights_have_the_promised_spread(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 0)
    model = Reference(tmp_path).model
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(1, rel=0.02)
    layer = model.model.language_model.layers[0]
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(512**-0.5, rel=0.02)
    assert not model.config.tie_word_embeddings
    assert 2e6 < sum(parameter.numel() for parameter in model.parameters()) < 8e6


def test_the_checkpoint_is_sharded_in_the_published_layout() -> None:
    names = json.loads((random_checkpoint() / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(names.values())) == 3
    assert {name.split(".")[0] for name in names} == {"visual", "model", "lm_head"}


def test_the_template_writes_one_placeholder_per_image_and_a_system_turn() -> None:
    reference = Reference(random_checkpoint())
    parts = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    inputs = reference.inputs([{"role": "user", "content": parts}], [np.zeros((56, 84, 3), np.uint8)])
    text = reference.processor.tokenizer.decode(inputs["input_ids"][0])
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
        + "<|image_pad|>" * 6
        + "<|vision_end|>What is this?<|im_end|>\n<|im_start|>assistant\n"
    )
