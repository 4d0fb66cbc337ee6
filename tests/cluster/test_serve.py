"""`triptych serve` where it cannot start."""

from pathlib import Path

import pytest

from triptych.cli import main


@pytest.mark.parametrize("text", [None, "no TOML", "[[keys]]\ntenant = 5\n"])
def test_keys_that_cannot_be_read_are_one_clean_line_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    file = tmp_path / "keys.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("TRIPTYCH_ROUTER_API_KEYS_FILE", str(file))
    assert main(["serve", "--port", "0"]) == 1
    _, reason = capsys.readouterr().err.splitlines()  # behind the model's name
    assert reason.startswith("triptych serve: ")
    assert reason.count(str(file)) == 1
