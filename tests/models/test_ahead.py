"""Compiling ahead: a model of one layer is the same model and runs once; the supervisor's command is understood."""

import json
from pathlib import Path

import pytest

from tests.checkpoints import EMBEDDED
from triptych.cluster.ahead import CompilingAhead, command
from triptych.config import ServeSettings, Settings
from triptych.journey import Role
from triptych.models import ahead
from triptych.models.card import load_card


def test_a_shallow_model_differs_in_its_depth_alone(tmp_path: Path) -> None:
    ahead.make_shallow(EMBEDDED, tmp_path)
    made, source = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, EMBEDDED))
    assert made["text_config"]["num_hidden_layers"] == 1
    assert made["vision_config"]["depth"] == 2
    for config in (made, source):
        for table, names in {
            "text_config": ("num_hidden_layers", "layer_types"),
            "vision_config": ("depth", "fullatt_block_indexes"),
        }.items():
            for name in names:
                config[table].pop(name, None)
    assert made == source
    assert load_card(str(tmp_path), "float32", load_format="dummy").chat_template


@pytest.mark.parametrize("part", ahead.PARTS)
def test_each_part_runs_once_as_the_supervisor_asks_for_it(part: str) -> None:
    words = command(Settings(serve=ServeSettings(model=str(EMBEDDED), dtype="float32")), part)
    assert words[1:3] == ["-m", "triptych.models.ahead"]
    assert ahead.main([*words[3:], "--device", "cpu"]) == 0


def test_what_goes_wrong_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ahead.main([str(tmp_path), "decoder", "--device", "cpu"]) == 1
    assert capsys.readouterr().err.startswith("the decoder's kernels are not compiled ahead")


def test_nothing_is_compiled_for_a_cpu() -> None:
    starting = CompilingAhead(Settings(serve=ServeSettings(device="cpu")), frozenset(Role))
    assert len(starting) == 0
    starting.stop()
