"""NIXL as the doctor tries it."""

import pytest

from triptych.config import load_settings
from triptych.doctor import nixl
from triptych.doctor.finding import Asked, Verdict
from triptych.doctor.nixl import look_nixl


def asked(**transfer: object) -> Asked:
    return Asked(load_settings(environment={}, flags={f"transfer.{name}": value for name, value in transfer.items()}))


def test_one_agent_reads_anothers_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nixl_cu13")
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert look_nixl(asked(nixl_tls="tcp")).verdict is Verdict.OK


def test_nixl_is_not_looked_for_where_settings_exclude_it() -> None:
    finding = look_nixl(asked(transports=("local", "shm")))
    assert finding.seen == "not asked for: transfer.transports names local, shm"


@pytest.mark.parametrize(("version", "told"), [(None, "is not installed"), ("1.4.0", "is 1.4.0, tried is 1.5.1")])
def test_an_absent_or_other_nixl_is_warned_of(monkeypatch: pytest.MonkeyPatch, version: str | None, told: str) -> None:
    monkeypatch.setattr(nixl, "installed", lambda name: version)
    finding = look_nixl(asked())
    assert finding.verdict is Verdict.WARN
    assert told in finding.seen
