"""A device that a pull finds lost ends the worker: nothing that is asked of it could go well any more."""

import os
import time
from collections.abc import Iterator

import pytest
import torch

from tests.transfer.neighbours import rows_ref
from triptych.config import MIB, LanguageSettings, ServeSettings, Settings, TransferSettings
from triptych.errors import TransferFailed
from triptych.journey import Endpoint, Role
from triptych.models.card import load_card
from triptych.services.guard import Door
from triptych.services.site import EMBEDDING_ARENA, Language, Site
from triptych.transfer.pull import CopyAbandoned, HostCopier

HERE = Endpoint("127.0.0.1:1", 3)
CPU = torch.device("cpu")
SETTINGS = Settings(
    serve=ServeSettings(model="tiny-vl", device="cpu"),
    language=LanguageSettings(kv_bytes=8 * MIB),
    transfer=TransferSettings(copy_timeout_seconds=60.0),
)
LOST = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def language() -> Iterator[Language]:
    """Of a worker that also has rows."""
    card = load_card("tiny-vl", "auto")
    door = Door(HERE.incarnation, card.fingerprint, 300.0)
    site = Site("p0", HERE, card, CPU, torch.float32, SETTINGS, door, roles=frozenset({Role.ENCODE, Role.PREFILL}))
    site.add_slab("embedding", EMBEDDING_ARENA, 4096, 1, asked_by="the test").stamp([0], [1])
    made = Language(site)
    yield made
    made.stop()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses that this process would have ended with."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


def _lose(*_: object) -> bool:
    raise torch.AcceleratorError(LOST)


def _read(language: Language) -> None:
    language.read_rows(rows_ref(1, 1, 8, arena=EMBEDDING_ARENA, owner=HERE), torch.zeros(1, 8, dtype=torch.int64))


def test_rows_that_are_read_whole_end_nothing(language: Language, ended: list[int]) -> None:
    _read(language)
    assert not ended


def test_a_copy_that_finds_the_device_lost_ends_the_worker(
    language: Language, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostCopier, "copy", _lose)
    with pytest.raises(torch.AcceleratorError):
        _read(language)
    assert ended == [70]


def test_a_device_that_is_found_lost_while_a_copy_is_waited_out_ends_the_worker_at_once(
    language: Language, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object) -> None:
        raise CopyAbandoned("copying is overdue", _lose)

    monkeypatch.setattr(HostCopier, "copy", hang)
    began = time.monotonic()
    with pytest.raises(torch.AcceleratorError):
        _read(language)
    assert ended == [70]
    assert time.monotonic() - began < SETTINGS.transfer.copy_timeout_seconds / 2
    language.reader._quarantine._held.clear()  # or stopping would ask for it again


def test_a_copy_that_fails_of_itself_does_not(
    language: Language, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TransferFailed("the owner went away")

    monkeypatch.setattr(HostCopier, "copy", fail)
    with pytest.raises(TransferFailed):
        _read(language)
    assert not ended
