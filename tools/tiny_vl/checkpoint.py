"""The whole state of a training run on disk, complete or absent, never half."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

_FACTS = "state.json"
# A state that is about to be replaced by one of the same step keeps a name of its own until that is in place.
_NAME = re.compile(r"step-(\d{7,})(\.replaced)?")
_UNFINISHED = re.compile(r"\.unfinished-(\d+)")
_CHUNK_BYTES = 14_000_000  # small files travel where big ones don't


class StateMismatch(Exception):
    """The saved run is another one: use its options, or another folder."""


class StateUnreadable(Exception):
    """The saved state is cut short, or nothing that was saved here: remove its folder, or use another one."""


def save(state: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write `state/step-…` and remove all others, and what saves of dead processes left; returns its folder.

    Whenever it is cut short there is a complete state, if there was one before.
    facts: whatever a resumed run must agree on, as JSON
    """
    state.mkdir(parents=True, exist_ok=True)
    folder = state / f"step-{step:07d}"
    unfinished = state / f".unfinished-{os.getpid()}"
    _remove_leftovers(state)
    unfinished.mkdir()
    for number, group in enumerate(_groups(_chunks(tensors))):
        save_file(group, unfinished / f"{number:02d}.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    facts = json.loads(json.dumps(facts))
    (unfinished / _FACTS).write_text(json.dumps({"step": step, "shapes": shapes, "facts": facts}, indent=1))
    _set_aside(folder)
    unfinished.rename(folder)
    for other in state.iterdir():
        if other != folder and _NAME.fullmatch(other.name):
            shutil.rmtree(other)
    return folder


def latest_step(state: Path) -> int:
    """Steps done according to the latest state, 0 if there is none."""
    folders = _saved(state)
    return _order(folders[-1])[0] if folders else 0


def load(state: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """(step, tensors, facts) of the latest state, on the CPU; None if there is none.

    Raises StateUnreadable.
    """
    folders = _saved(state)
    if not folders:
        return None
    with reading(folders[-1]):
        return _read(folders[-1])


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Whatever a saved state brings about inside is raised as StateUnreadable, which names its folder."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        said = " ".join(str(error).split())[:200]
        raise StateUnreadable(
            f"the state in {folder} cannot be read ({type(error).__name__}: {said}): remove it or name another folder"
        ) from error


def _read(folder: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    saved = json.loads((folder / _FACTS).read_text())
    chunks: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        chunks |= load_file(file)
    parts: dict[str, list[Tensor]] = {}
    for key in sorted(chunks):
        parts.setdefault(key.rpartition(".")[0], []).append(chunks[key])
    tensors = {name: torch.cat(parts[name]).view(shape) for name, shape in saved["shapes"].items()}
    step, facts = saved["step"], saved["facts"]
    if step != _order(folder)[0] or not all(isinstance(part, dict) for part in facts.values()):
        raise ValueError(f"{_FACTS} is of step {step}, with facts {facts}")
    return step, tensors, facts


def shaped(tensors: dict[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """Raises LookupError or ValueError if there is none of that name and shape."""
    found = tensors[name]
    if list(found.shape) != list(shape):
        raise ValueError(f"{name} is {list(found.shape)}, expected {list(shape)}")
    return found


def check_same(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises StateMismatch naming each fact that differs."""
    wanted = json.loads(json.dumps(wanted))
    differing = [
        f"{part}.{name} is {saved.get(part, {}).get(name)} in the saved state, {value} was asked for"
        for part, facts in wanted.items()
        for name, value in facts.items()
        if saved.get(part, {}).get(name) != value
    ]
    if differing:
        raise StateMismatch("; ".join(differing))


def _saved(state: Path) -> list[Path]:
    """Complete states, the latest last."""
    found = [path for path in state.glob("step-*") if _NAME.fullmatch(path.name) and (path / _FACTS).is_file()]
    return sorted(found, key=_order)


def _order(folder: Path) -> tuple[int, bool]:
    name = _NAME.fullmatch(folder.name)
    assert name is not None
    return int(name[1]), name[2] is None


def _set_aside(folder: Path) -> None:
    """Make room for a state of this name, which a complete one leaves last."""
    aside = folder.with_name(f"{folder.name}.replaced")
    if (folder / _FACTS).is_file():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(state: Path) -> None:
    for path in state.iterdir():
        name = _UNFINISHED.fullmatch(path.name)
        if name and not _lives(int(name[1])):
            shutil.rmtree(path)


def _lives(process: int) -> bool:
    """Whether it is another process that runs."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _chunks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    chunks = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().reshape(-1).cpu()
        for number, part in enumerate(torch.split(flat, _CHUNK_BYTES // flat.element_size())):
            chunks[f"{name}.{number:04d}"] = part.clone()
    return chunks


def _groups(chunks: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    groups: list[dict[str, Tensor]] = [{}]
    room = _CHUNK_BYTES
    for name, chunk in sorted(chunks.items(), key=lambda item: -item[1].nbytes):
        if groups[-1] and chunk.nbytes > room:
            groups.append({})
            room = _CHUNK_BYTES
        groups[-1][name] = chunk
        room -= chunk.nbytes
    return groups
