"""Each process reads the tensors it computes with, and no others; a folder that does not fit is refused by name."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.models.stock import stock_tower
from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_language
from triptych.models.qwen2_5_vl.language import Qwen25VLLanguage
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower

CPU = torch.device("cpu")


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def rewritten(source: Path, target: Path, weights: Mapping[str, Tensor], file_of: Callable[[str], str]) -> Path:
    """The checkpoint with other weights, stored in files as told."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    weight_map = {name: file_of(name) for name in weights}
    for file in set(weight_map.values()):
        save_file({name: weights[name] for name in weights if weight_map[name] == file}, target / file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return target


def in_one_file(name: str) -> str:
    return "weights.safetensors"


def by_half(name: str) -> str:
    return "tower.safetensors" if name.startswith(("visual.", "model.visual.")) else "decoder.safetensors"


def nested(name: str) -> str:
    """A published name as the modules themselves are called."""
    if name.startswith("visual."):
        return "model." + name
    return name.replace("model.", "model.language_model.", 1)


def language(card: ModelCard, dtype: str = "auto") -> Qwen25VLLanguage:
    loaded = load_language(card, CPU, dtype, LanguageSettings(decoder="generic"))
    assert isinstance(loaded, Qwen25VLLanguage)
    return loaded


def tower(card: ModelCard, dtype: str = "auto") -> Qwen25VLTower:
    return stock_tower(card, dtype)


def parameters(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


@pytest.fixture(params=["random", "embedded"])
def folder(request: pytest.FixtureRequest) -> Path:
    """Untied and tied; in float32 and bfloat16; over three files and two."""
    return random_checkpoint() if request.param == "random" else EMBEDDED


def test_tower_and_decoder_hold_the_checkpoint_between_them(folder: Path) -> None:
    card, stored = load_card(str(folder), "auto"), tensors_of(folder)
    seeing, speaking = parameters(tower(card).module), parameters(language(card).decoder)
    assert {f"visual.{name}" for name in seeing} == {name for name in stored if name.startswith("visual.")}
    assert speaking.keys() == {name for name in stored if not name.startswith("visual.")}
    for name, parameter in [*((f"visual.{name}", each) for name, each in seeing.items()), *speaking.items()]:
        assert torch.equal(parameter, stored[name].float())
        assert not parameter.requires_grad


def test_each_half_loads_without_the_other_halfs_file(tmp_path: Path) -> None:
    source = random_checkpoint()
    folder = rewritten(source, tmp_path / "split", tensors_of(source), by_half)
    card = load_card(str(folder), "auto")
    (folder / "decoder.safetensors").rename(tmp_path / "away")
    tower(card)
    with pytest.raises(ConfigError, match=r"decoder\.safetensors"):
        language(card)
    (folder / "tower.safetensors").unlink()
    (tmp_path / "away").rename(folder / "decoder.safetensors")
    language(card)


@pytest.mark.parametrize("half", ["tower", "decoder"])
def test_no_byte_of_the_other_half_is_read(tmp_path: Path, half: str, caplog: pytest.LogCaptureFixture) -> None:
    source = random_checkpoint()
    weights = tensors_of(source)
    own = {name: each for name, each in weights.items() if by_half(name).startswith(half)}
    with caplog.at_level("INFO", logger="triptych.models.weights"):
        card = load_card(str(source), "auto")
        _ = tower(card) if half == "tower" else language(card)
    num_bytes = sum(tensor.numel() * tensor.itemsize for tensor in own.values())
    assert f"read {len(own)} tensors, {num_bytes / 1e6:.1f} MB" in caplog.text


def test_loading_leaves_no_file_mapped(tmp_path: Path) -> None:
    card = load_card(str(shutil.copytree(random_checkpoint(), tmp_path / "mapped")), "auto")
    kept = (tower(card), language(card))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert kept[0].device == kept[1].device == CPU


def test_both_key_layouts_load_alike(tmp_path: Path, folder: Path) -> None:
    weights = {nested(name): tensor for name, tensor in tensors_of(folder).items()}
    other = rewritten(folder, tmp_path / "nested", weights, in_one_file)
    published, own = load_card(str(folder), "auto"), load_card(str(other), "auto")
    for load in (lambda card: language(card).decoder, lambda card: tower(card).module):
        for (name, a), (same, b) in zip(load(published).named_parameters(), load(own).named_parameters(), strict=True):
            assert name == same
            assert torch.equal(a, b)


def test_a_single_file_without_index_loads(tmp_path: Path) -> None:
    source = random_checkpoint()
    folder = rewritten(source, tmp_path / "single", tensors_of(source), lambda name: "model.safetensors")
    (folder / "model.safetensors.index.json").unlink()
    assert language(load_card(str(folder), "auto")).vocab_size == 1024


def test_a_tied_head_is_the_embedding_table_even_where_one_is_stored(tmp_path: Path) -> None:
    weights = tensors_of(EMBEDDED)
    weights["lm_head.weight"] = torch.zeros_like(weights["model.embed_tokens.weight"])
    folder = rewritten(EMBEDDED, tmp_path / "tied", weights, in_one_file)
    decoder = language(load_card(str(folder), "auto")).decoder
    assert decoder.head_weight is decoder.model.embed_tokens.weight
    assert decoder.head_weight.any()


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.3.mlp.up_proj.weight", "model.embed_tokens.weight", "model.norm.weight"]
)
def test_a_missing_tensor_of_the_decoder_is_named(tmp_path: Path, name: str) -> None:
    weights = tensors_of(random_checkpoint())
    del weights[name]
    card = load_card(str(rewritten(random_checkpoint(), tmp_path / "m", weights, in_one_file)), "auto")
    with pytest.raises(ConfigError, match=f"no tensor {name}"):
        language(card)
    tower(card)  # which is whole


def changed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    return tensors_of(random_checkpoint()) | {name: tensor}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            changed("visual.merger.mlp.2.bias", torch.zeros(3)),
            r"visual.merger.mlp.2.bias is \(3,\), .* makes it \(256,\)",
        ),
        (changed("visual.blocks.4.norm1.weight", torch.zeros(128)), "visual.blocks.4.norm1.weight that its config"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, weights: Mapping[str, Tensor], message: str) -> None:
    card = load_card(str(rewritten(random_checkpoint(), tmp_path / "m", weights, in_one_file)), "auto")
    with pytest.raises(ConfigError, match=message):
        tower(card)
    language(card)


def test_frequencies_stored_by_old_releases_are_ignored(tmp_path: Path) -> None:
    weights = changed("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(32))
    card = load_card(str(rewritten(random_checkpoint(), tmp_path / "m", weights, in_one_file)), "auto")
    assert language(card).decoder.model.rotary_emb.inv_freq.max() == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_take_the_dtype_asked_for_and_frequencies_stay_exact(dtype: str) -> None:
    card = load_card(str(random_checkpoint()), dtype)
    speaking, seeing = language(card, dtype), tower(card, dtype)
    wanted = getattr(torch, dtype)
    assert {each.dtype for each in speaking.decoder.parameters()} == {wanted}
    assert {each.dtype for each in seeing.module.parameters()} == {wanted}
    assert (speaking.dtype, speaking.kv.dtype, seeing.dtype) == (wanted, wanted, wanted)
    for module in (speaking.decoder, seeing.module):
        assert {buffer.dtype for buffer in module.buffers()} == {torch.float32}
    frequencies = 1 / 100 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    torch.testing.assert_close(speaking.decoder.model.rotary_emb.inv_freq, frequencies)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2, "layer_types": None}, "sliding"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}},
            "'dynamic' cannot be batched",
        ),
    ],
)
def test_a_decoder_that_would_answer_wrongly_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = shutil.copytree(random_checkpoint(), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        language(load_card(str(folder), "auto"))
