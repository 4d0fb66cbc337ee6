"""The whole state of a training run on disk, complete or absent, never half."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_FACTS = "state.json"
_CHUNK_BYTES = 14_000_000  # small files travel where big ones don't


class StateMismatch(Exception):
    """The saved run is another one: use its options, or another folder."""


def save(state: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write `state/step-…` and remove the older ones; returns its folder.

    facts: whatever a resumed run must agree on, as JSON
    """
    state.mkdir(parents=True, exist_ok=True)
    folder = state / f"step-{step:07d}"
    unfinished = state / f".unfinished-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for number, group in enumerate(_groups(_chunks(tensors))):
        save_file(group, unfinished / f"{number:02d}.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    facts = json.loads(json.dumps(facts))
    (unfinished / _FACTS).write_text(json.dumps({"step": step, "shapes": shapes, "facts": facts}, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    for other in _saved(state):
        if other != folder:
            shutil.rmtree(other)
    return folder


def latest_step(state: Path) -> int:
    """Steps done according to the latest state, 0 if there is none."""
    folders = _saved(state)
    return int(folders[-1].name.removeprefix("step-")) if folders else 0


def load(state: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """(step, tensors, facts) of the latest state, on the CPU; None if there is none."""
    folders = _saved(state)
    if not folders:
        return None
    saved = json.loads((folders[-1] / _FACTS).read_text())
    chunks: dict[str, Tensor] = {}
    for file in sorted(folders[-1].glob("*.safetensors")):
        chunks |= load_file(file)
    parts: dict[str, list[Tensor]] = {}
    for key in sorted(chunks):
        parts.setdefault(key.rpartition(".")[0], []).append(chunks[key])
    tensors = {name: torch.cat(parts[name]).view(shape) for name, shape in saved["shapes"].items()}
    return saved["step"], tensors, saved["facts"]


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
    return sorted(path for path in state.glob("step-*") if (path / _FACTS).is_file())


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
