"""A folder without weights is served with random ones: the same in every process, and of a size that stays."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.models.decoders import CPU
from tests.models.stepper import Stepper
from tests.models.test_language import random_prompt
from triptych.config import LanguageSettings, load_settings
from triptych.errors import ConfigError
from triptych.journey import Grid
from triptych.models.base import LanguageModel
from triptych.models.card import load_card
from triptych.models.dummy import draw_weights
from triptych.models.loading import load_language, load_tower

CHOICES = ("lean", "generic")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The random checkpoint's folder without its weights."""
    return shutil.copytree(random_checkpoint(), tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors*"))


def logits(model: LanguageModel) -> Tensor:
    stepper, prompt = Stepper(model, 8), random_prompt(model, 60, 3)
    return stepper.step([(prompt, 60)])


def test_it_loads_where_weights_are_not_there(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="no safetensors"):
        load_card(str(bare), "auto")
    card = load_card(str(bare), "auto", load_format="dummy")
    found, generic = (logits(load_language(card, CPU, "auto", LanguageSettings(decoder=kind))) for kind in CHOICES)
    torch.testing.assert_close(found, generic, atol=2e-4, rtol=0)
    assert 0.3 < float(found.std()) < 3, "logits are no longer of the size that inputs had"
    tower = load_tower(card, CPU)
    rows = tower.encode(torch.randn(64, 1176, generator=torch.Generator().manual_seed(0)), (Grid(1, 8, 8),))
    assert 0.1 < float(rows.std()) < 10
    assert "drawn at random, answers mean nothing" in caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_hold_it(bare: Path, dtype: str) -> None:
    card = load_card(str(bare), dtype, load_format="dummy")
    assert 0.3 < float(logits(load_language(card, CPU, dtype)).std()) < 3


_ANOTHER_PROCESS = """
import torch
from triptych.models.dummy import draw_weights
places = {name: torch.empty(5, 7) for name in ("model.embed_tokens.weight", "model.layers.3.mlp.up_proj.weight")}
draw_weights(places)
print([tensor.tolist() for tensor in places.values()])
"""


def test_every_process_draws_the_same() -> None:
    names = ("model.layers.3.mlp.up_proj.weight", "model.embed_tokens.weight")
    places = {name: torch.empty(5, 7) for name in names}
    draw_weights(places)  # in another order
    command = [sys.executable, "-c", _ANOTHER_PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    up, embedding = (places[name].tolist() for name in names)
    assert done.stdout.strip() == str([embedding, up])
    assert up != embedding


def test_norms_are_ones_and_biases_zeros() -> None:
    places = {
        "norm1.weight": torch.full((4,), 9.0),
        "q_proj.bias": torch.full((4,), 9.0),
        "up.weight": torch.ones(2, 2),
    }
    draw_weights(places)
    assert torch.equal(places["norm1.weight"], torch.ones(4))
    assert torch.equal(places["q_proj.bias"], torch.zeros(4))


def test_it_is_another_model_than_the_one_with_weights() -> None:
    real, drawn = load_card("tiny-vl", "auto"), load_card(str(EMBEDDED), "auto", load_format="dummy")
    assert real.fingerprint != drawn.fingerprint
    assert drawn.fingerprint == load_card("tiny-vl", "auto", load_format="dummy").fingerprint


def test_other_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"serve\.load_format is 'pt', expected one of auto, dummy"):
        load_settings(environment={}, flags={"serve.load_format": "pt"})
