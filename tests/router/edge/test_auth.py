"""Keys: what a file may say, who is found by a key, and what changes when the file does."""

import argparse
import dataclasses
import os
from pathlib import Path

import pytest

from triptych.cli import build_parser
from triptych.config import RouterSettings, SLOSettings, load_settings
from triptych.errors import ConfigError
from triptych.router.edge import key_command
from triptych.router.edge.auth import Key, KeyFile, KeyRing, digest_of, read_keys, toml_of
from triptych.router.edge.limits import Limits

ALICE = Key("alice", digest_of("a"), Limits(60, 1000, 8))
ROOT = Key("root", digest_of("r"), is_admin=True)


def test_what_is_written_is_read_again() -> None:
    assert read_keys("\n".join(map(toml_of, (ALICE, ROOT))).encode()) == [ALICE, ROOT]


def test_a_tenant_is_found_by_the_key_and_by_nothing_else() -> None:
    ring = KeyRing([ALICE, ROOT])
    assert ring.find(b"a") == ALICE
    assert ring.find(b"r") == ROOT
    for wrong in (b"", b"A", b"a ", digest_of("a").encode(), b"\xff"):
        assert ring.find(wrong) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[keys]]\ntenant = 'a'", "needs a text 'sha256'"),
        ("[[keys]]\ntenant = 'a'\nsha256 = 'abc'", "not 64 of 0-9 a-f"),
        (f"[[keys]]\ntenant = 'a b'\nsha256 = '{digest_of('a')}'", "tenant 'a b'"),
        (toml_of(ALICE) + "rpm = 3", "unknown entry 'rpm'"),
        (toml_of(ALICE) + "role = 'king'", "role is 'king'"),
        (toml_of(ROOT) + "max_concurrent = -1", "max_concurrent is -1"),
        (toml_of(ROOT) + "max_concurrent = true", "max_concurrent is True"),
        ("keys = 3", "'keys' is not a list"),
        ("[key]", "'key' is not a list"),
        ("keys = ['x']", "is no table"),
        ("[[keys", "no TOML"),
        ("a = " + 5000 * "9", "no TOML that can be meant"),
        ("a = " + 5000 * "[" + 5000 * "]", "no TOML that can be meant"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keys(text.encode())
    assert said in str(caught.value)


def test_keys_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="both alice's and bob's"):
        KeyRing([ALICE, Key("bob", ALICE.sha256)])
    with pytest.raises(ConfigError, match="different limits"):
        KeyRing([ALICE, Key("alice", digest_of("b"))])


def test_a_tenant_may_have_two_keys_while_one_takes_the_others_place() -> None:
    ring = KeyRing([ALICE, Key("alice", digest_of("b"), ALICE.limits)])
    assert [ring.find(key).tenant for key in (b"a", b"b")] == ["alice", "alice"]  # type: ignore[union-attr]


def test_a_changed_file_makes_a_new_ring_and_a_broken_one_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(toml_of(ALICE))
    keys = KeyFile(RouterSettings(api_keys_file=str(path), api_key="r"))
    assert not keys.reload()
    assert len(keys.ring) == 2
    path.write_text("[[broken")
    with pytest.raises(ConfigError, match=r"keys\.toml"):
        keys.reload()
    assert keys.ring.find(b"a") == ALICE
    assert not keys.reload()  # told once
    path.write_text("")
    assert keys.reload()
    assert keys.ring.find(b"a") is None
    assert keys.ring.find(b"r") is not None
    os.remove(path)
    with pytest.raises(ConfigError, match="cannot read keys"):
        keys.reload()


def test_a_file_that_is_missing_at_the_start_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read keys"):
        KeyFile(RouterSettings(api_keys_file=str(tmp_path / "none")))


def test_keys_may_stand_in_the_environment_plain_or_hashed() -> None:
    variable = f"alice=one,bob=sha256:{digest_of('two')}"
    settings = load_settings(environment={"TRIPTYCH_ROUTER_API_KEYS": variable})
    ring = KeyFile(settings.router).ring
    assert [ring.find(key).tenant for key in (b"one", b"two")] == ["alice", "bob"]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="NAME=KEY") as caught:
        KeyFile(RouterSettings(api_keys=("a-lonely-secret",)))
    assert "secret" not in str(caught.value)


def test_the_command_tells_a_key_once_and_what_the_file_is_to_hold(capsys: pytest.CaptureFixture[str]) -> None:
    arguments: argparse.Namespace = build_parser().parse_args(
        ["keys", "new", "alice", "--requests-per-minute", "60", "--admin", "--slo", "batch"]
    )
    assert key_command.run(arguments) == 0
    out, err = capsys.readouterr()
    key = next(word for word in err.split() if word.startswith("tp-"))
    assert key not in out
    assert read_keys(out.encode()) == [Key("alice", digest_of(key), Limits(60), is_admin=True, slo="batch")]


def test_the_command_knows_the_classes_of_the_server_it_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["keys", "new", "alice", "--slo", "gold"]
    with pytest.raises(ConfigError, match=r"'gold' is not one of interactive, batch.*--config"):
        key_command.run(build_parser().parse_args(asked))
    config = tmp_path / "triptych.toml"
    config.write_text('[slo]\ndefault = "gold"\n[[slo.classes]]\nname = "gold"\nttft_seconds = 0.5\n')
    assert key_command.run(build_parser().parse_args([*asked, "--config", str(config)])) == 0
    assert [key.slo for key in read_keys(capsys.readouterr().out.encode())] == ["gold"]
    with pytest.raises(ConfigError, match=r"'golden' is not one of gold$"):
        key_command.run(build_parser().parse_args([*asked[:-1], "golden", "--config", str(config)]))


def test_a_key_may_have_a_class_of_service_which_has_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(toml_of(dataclasses.replace(ALICE, slo="batch")))
    settings = RouterSettings(api_keys_file=str(path))
    key = KeyFile(settings, SLOSettings()).ring.find(b"a")
    assert key is not None
    assert key.slo == "batch"
    path.write_text(path.read_text().replace("batch", "gold"))
    with pytest.raises(ConfigError, match=r"keys\.toml.*'gold' is not one of interactive, batch"):
        KeyFile(settings, SLOSettings())
