"""The packed network against transformers' module with the same weights."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from tools.tiny_vl.attention import attention_by
from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.config import Geometry
from tools.tiny_vl.export import TooLarge, write_model
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.network import Network, splice
from tools.tiny_vl.packer import Packer
from tools.tiny_vl.packing import NO_LABEL, Batch, Caps
from tools.tiny_vl.parameters import EMBEDDING, Layout, Parameters, initial_weights
from tools.tiny_vl.scenes import Blank, Picture, Sample, Turn
from tools.tiny_vl.tokenizer import IMAGE_PAD, build_tokenizer

SMALL = Caps(patches=2048, tokens=1024, images=24, windows=96, sequences=16, labels=64, turns=16)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(["does", "the", "image", "say"])


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    flat = initial_weights(Geometry(), 3)
    # Norms of 1 and biases of 0 would hide a mix-up.
    flat += 0.05 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(4))
    return Parameters(Layout.of(Geometry()), flat, torch.float32)


@pytest.fixture(scope="module")
def folder(parameters: Parameters, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    # Rounded beforehand, so that the folder's bfloat16 loses nothing.
    parameters.flat.copy_(parameters.flat.bfloat16().float())
    write_model(folder, Geometry(), parameters.flat, tokenizer)
    return folder


def sample(rng: Random, sizes: list[tuple[int, int]]) -> Sample:
    images = [Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1])) for size in sizes]
    parts: list[str | Picture] = []
    for number, image in enumerate(images, start=1):
        parts += [Picture(image, Blank()), f"Image {number}. "]
    return Sample((Turn((*parts, "What does the image say?"), str(rng.randrange(10**4)), "read"),))


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    rng = Random(1)
    return [sample(rng, sizes) for sizes in ([(140, 224)], [], [(56, 84), (252, 112)], [(112, 112)])]


def packed(tokenizer: Tokenizer, samples: list[Sample]) -> Batch:
    packer = Packer(SMALL, ChatEncoder(tokenizer), Grids(), ("read",))
    for each in samples:
        assert packer.add(each)
    return packer.finish()


@pytest.fixture(scope="module")
def batch(tokenizer: Tokenizer, samples: list[Sample]) -> dict[str, Tensor]:
    return packed(tokenizer, samples).tensors()


def network(compiled: bool = False) -> Network:
    return Network(Geometry(), attention_by("segments"), CPU, compiled)


def test_hidden_states_equal_those_of_transformers(
    folder: Path, parameters: Parameters, batch: dict[str, Tensor], samples: list[Sample]
) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    with torch.no_grad():
        ours = network().hidden(parameters.leaves, batch)
        norm, head = parameters.leaves["model.norm.weight"], parameters.leaves[EMBEDDING]
        logits = (ours * torch.rsqrt(ours.pow(2).mean(-1, keepdim=True) + 1e-6) * norm) @ head.t()
        for number, each in enumerate(samples):
            start, end = (int(bound) for bound in batch["sequence_ends"][number : number + 2])
            ids = batch["token_ids"][start:end].long()[None]
            images = [picture.image for picture in each.pictures]
            seen = dict(processor.image_processor(images=images, return_tensors="pt")) if images else {}
            types = (ids == IMAGE_PAD).int()
            theirs = model(input_ids=ids, mm_token_type_ids=types, attention_mask=torch.ones_like(ids), **seen).logits
            assert (theirs[0] - logits[start:end]).abs().max() <= 1e-4


@pytest.mark.parametrize("told", [(6, 4), (2, 12), (24, 1)])
def test_a_tower_that_is_told_a_wrong_grid_equals_that_of_transformers(
    folder: Path, parameters: Parameters, tokenizer: Tokenizer, told: tuple[int, int]
) -> None:
    right = sample(Random(5), [(168, 112)])
    picture, text, question = right.turns[0].parts
    assert isinstance(picture, Picture)
    turn = replace(right.turns[0], parts=(replace(picture, told=told), text, question))
    batch = packed(tokenizer, [Sample((turn,))]).tensors()
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    seen = AutoProcessor.from_pretrained(folder).image_processor(images=[picture.image], return_tensors="pt")
    with torch.no_grad():
        ours = network().rows(parameters.leaves, batch)[:24]
        grid = torch.tensor([[1, 2 * told[0], 2 * told[1]]])
        theirs = model.model.visual(seen["pixel_values"], grid_thw=grid).pooler_output
    order = batch["row_slot"][:24].argsort()
    assert (ours[order] - theirs).abs().max() <= 1e-4
    # The language model is told the right one.
    at = batch["token_at"][1:, batch["row_slot"][:24][order].long()]
    assert (at - at[:, :1]).t().tolist() == [[line, column] for line in range(4) for column in range(6)]


def test_the_loss_is_the_mean_over_labels_and_knows_the_likeliest(
    parameters: Parameters, batch: dict[str, Tensor]
) -> None:
    loss, right = network().loss(parameters.leaves, batch)
    assert 3.0 < loss.item() < 30.0
    assert right[batch["label_id"] == NO_LABEL].all()
    assert not right.all()


def test_every_weight_gets_a_gradient(parameters: Parameters, batch: dict[str, Tensor]) -> None:
    loss, _ = network().loss(parameters.leaves, batch)
    grads = torch.autograd.grad(loss, list(parameters.leaves.values()))
    for name, grad in zip(parameters.leaves, grads, strict=True):
        assert grad.abs().max() > 0, name
        assert grad.isfinite().all(), name


def test_the_embeddings_gradient_equals_autograds() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([3, 5, 5, 1, 3], dtype=torch.int32)
    slot, lost = torch.tensor([1, 5, 2, 5], dtype=torch.int32), torch.tensor([False, False, True, False])
    embedding = torch.randn(8, 4, generator=generator, requires_grad=True)
    rows = torch.randn(4, 4, generator=generator, requires_grad=True)
    weight = torch.randn(5, 4, generator=generator)
    ours = torch.autograd.grad((splice(embedding, rows, ids, slot, lost) * weight).sum(), [embedding, rows])
    plain = embedding[ids.long()].clone()
    plain[1], plain[2] = rows[0], 0.0
    theirs = torch.autograd.grad((plain * weight).sum(), [embedding, rows])
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their)


def test_padding_changes_nothing(
    parameters: Parameters, tokenizer: Tokenizer, samples: list[Sample], batch: dict[str, Tensor]
) -> None:
    alone = packed(tokenizer, samples[:1]).tensors()
    length = int(alone["sequence_ends"][1])
    with torch.no_grad():
        difference = (network().hidden(parameters.leaves, alone) - network().hidden(parameters.leaves, batch))[:length]
    assert difference.abs().max() < 1e-4


def test_a_model_of_too_many_parameters_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    geometry = Geometry(layers=9)
    with pytest.raises(TooLarge, match="expected at most 12000000"):
        write_model(tmp_path / "model", geometry, torch.zeros(Layout.of(geometry).num_all), tokenizer)
