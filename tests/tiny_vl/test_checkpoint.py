"""The state of a training run on disk: complete or absent whenever a save is cut short, and told when it is neither."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tools.tiny_vl import checkpoint
from tools.tiny_vl.checkpoint import StateUnreadable


def test_only_the_latest_state_stays_and_in_small_files(tmp_path: Path) -> None:
    big = torch.arange(9_000_000, dtype=torch.float32)
    checkpoint.save(tmp_path, 1, {"a": big}, {})
    (tmp_path / "step-0000009").mkdir()  # a save that was cut short
    checkpoint.save(tmp_path, 2, {"a": big.view(3, -1), "b": torch.tensor(3.0)}, {"x": {"y": (1, 2)}})
    assert max(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) < 15_000_000
    assert not (tmp_path / "step-0000001").exists()
    saved = checkpoint.load(tmp_path)
    assert saved is not None
    step, tensors, facts = saved
    assert (step, facts) == (2, {"x": {"y": [1, 2]}})
    assert torch.equal(tensors["a"], big.view(3, -1))
    assert tensors["b"].item() == 3.0


def test_what_saves_of_dead_processes_left_goes_at_the_next_save(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    for process in (dead.pid, os.getppid()):
        (tmp_path / f".unfinished-{process}").mkdir()
        (tmp_path / f".unfinished-{process}" / "00.safetensors").touch()
    (tmp_path / ".unfinished-business").mkdir()
    checkpoint.save(tmp_path, 1, {"a": torch.ones(2)}, {})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-0000001", f".unfinished-{os.getppid()}", ".unfinished-business"}


def test_saving_a_step_again_always_leaves_a_complete_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ones() -> torch.Tensor:
        saved = checkpoint.load(tmp_path)
        assert saved is not None
        assert saved[0] == checkpoint.latest_step(tmp_path) == 1
        return saved[1]["a"]

    checkpoint.save(tmp_path, 1, {"a": torch.zeros(2)}, {})
    rename, remove = Path.rename, shutil.rmtree
    seen = []

    def renamed(path: Path, target: Path) -> Path:
        result = rename(path, target)
        seen.append(ones().sum().item())
        return result

    def removed(path: Path, ignore_errors: bool = False) -> None:
        remove(path, ignore_errors)
        ones()

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(shutil, "rmtree", removed)
    checkpoint.save(tmp_path, 1, {"a": torch.ones(2)}, {})
    assert seen == [0.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000001"]


def test_a_save_cut_short_between_two_states_of_a_step_is_made_up_for(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 1, {"a": torch.zeros(2)}, {})
    folder.rename(tmp_path / "step-0000001.replaced")
    assert checkpoint.load(tmp_path) is not None
    checkpoint.save(tmp_path, 1, {"a": torch.ones(2)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000001"]


@pytest.mark.parametrize("spoil", ["truncated", "missing", "facts", "foreign", "step"])
def test_a_state_that_cannot_be_read_is_named(spoil: str, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 7, {"a": torch.arange(99.0)}, {"recipe": {"steps": 3}})
    weights, facts = folder / "00.safetensors", folder / "state.json"
    if spoil == "truncated":
        weights.write_bytes(weights.read_bytes()[:-9])
    elif spoil == "missing":
        weights.unlink()
    else:
        facts.write_text({"facts": "{", "foreign": "[]", "step": facts.read_text().replace("7", "8")}[spoil])
    with pytest.raises(StateUnreadable, match=rf"the state in {folder} cannot be read \(\w+: .*\): remove it"):
        checkpoint.load(tmp_path)
