"""Files for `ray up`, held against Ray's own rules and against what our placement asks for."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.deploy.shell import DEPLOY, ROOT
from triptych.cluster.placing import tier_resource
from triptych.config import load_settings
from triptych.journey import Role

FOLDER = DEPLOY / "ray"
FILES = sorted(FOLDER.glob("*.yaml"))
CLOUDS = [file for file in FILES if file.stem != "local"]
TIERS = {tier_resource(role) for role in Role}
NAMES = [file.stem for file in FILES]
BUILT = {"dist", "keys.toml"}  # by commands that stand in each file


def read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    return document


def all_commands(document: dict[str, Any]) -> list[str]:
    return [command for key, commands in document.items() if key.endswith("_commands") for command in commands]


def test_there_is_a_file_for_each_place() -> None:
    assert NAMES == ["aws", "gcp", "local"]


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_ray_takes_the_file(file: Path) -> None:
    """As `ray up` reads it, before it asks a cloud for anything."""
    validate_config(prepare_config(read(file)))


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_ray_refuses_the_file_with_a_key_that_is_none(file: Path) -> None:
    with pytest.raises(Exception, match="wokers"):
        validate_config(prepare_config({**read(file), "max_wokers": 1}))


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_what_is_copied_to_nodes_is_here(file: Path) -> None:
    local = [str(source) for source in read(file)["file_mounts"].values() if not str(source).startswith("~")]
    assert local
    assert [source for source in local if source not in BUILT and not (ROOT / source).exists()] == []


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_ray_of_the_cluster_asks_for_the_token(file: Path) -> None:
    document = read(file)
    assert document["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    starts = [command for command in all_commands(document) if "ray start" in command or "triptych serve" in command]
    assert len(starts) == 3
    assert all("RAY_AUTH_MODE=token" in command for command in starts)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_workers_do_not_come_after_everything_else_on_their_node(file: Path) -> None:
    starts = [command for command in all_commands(read(file)) if "ray start" in command]
    assert len(starts) == 2
    assert all("RAY_worker_niceness=0" in command for command in starts)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_the_dashboard_is_for_the_head_alone(file: Path) -> None:
    head = " ".join(read(file)["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in head
    assert "--head" in head
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_shell_understands_each_command(file: Path) -> None:
    for command in all_commands(read(file)):
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_no_key_or_token_stands_in_the_file(file: Path) -> None:
    assert re.findall(r"(?:sk-|AKIA|BEGIN [A-Z ]*PRIVATE KEY|api_key\s*[:=]\s*\S)", file.read_text()) == []


@pytest.mark.parametrize("file", CLOUDS, ids=[file.stem for file in CLOUDS])
def test_each_tier_has_a_node_type_of_its_own_that_can_grow(file: Path) -> None:
    types = read(file)["available_node_types"]
    head = types.pop(read(file)["head_node_type"])
    assert not TIERS & set(head["resources"])
    assert {name for each in types.values() for name in each["resources"] if name.startswith("triptych")} == TIERS
    assert all(len(TIERS & set(each["resources"])) == 1 for each in types.values())
    assert all(1 <= each["min_workers"] < each["max_workers"] for each in types.values())
    assert sum(each["max_workers"] for each in types.values()) <= read(file)["max_workers"]


def test_the_local_provider_gets_what_it_needs_to_add_its_workers() -> None:
    document = read(FOLDER / "local.yaml")
    num_workers = len(document["provider"]["worker_ips"])
    assert (document["min_workers"], document["max_workers"]) == (num_workers, num_workers)
    # `ray up` asks for the newer one before each of them; what reads the older one's reports must know it, too.
    started = [command for command in document["head_start_ray_commands"] if command != "ray stop"]
    assert all("RAY_enable_autoscaler_v2=0" in command for command in started)
    assert prepare_config(document)["available_node_types"]["local.cluster.node"]["min_workers"] == num_workers


def tiers_at(address: str, folder: Path) -> dict[str, int]:
    """What a node of that address tells its Ray, by the very command of the file; `ray` and `hostname` are stubs."""
    for name, body in {"ray": 'for word; do case $word in --resources=*) echo "$word";; esac; done',
                       "hostname": f"echo {address} 172.17.0.1"}.items():  # fmt: skip
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "triptych").mkdir(exist_ok=True)
    commands = read(FOLDER / "local.yaml")["worker_start_ray_commands"]
    (command,) = [each for each in commands if "ray start" in each]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RAY_HEAD_IP": "192.168.1.10", "HOME": str(folder)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=30)
    found: dict[str, int] = json.loads(done.stdout.partition("=")[2])
    return found


def test_each_local_worker_tells_ray_its_tier_by_its_address(tmp_path: Path) -> None:
    document = read(FOLDER / "local.yaml")
    told = [tiers_at(address, tmp_path) for address in document["provider"]["worker_ips"]]
    encode, prefill, decode = (tier_resource(role) for role in (Role.ENCODE, Role.PREFILL, Role.DECODE))
    assert told == [{encode: 2}, {prefill: 1, decode: 1}]
    assert tiers_at("192.168.1.99", tmp_path) == {}


def test_the_heads_address_is_the_same_wherever_it_stands() -> None:
    document = read(FOLDER / "local.yaml")
    commands = " ".join(document["head_start_ray_commands"])
    named = set(re.findall(r"(?:=|/dev/tcp/)(\d+\.\d+\.\d+\.\d+)[:/]6379", commands))
    assert named == {document["provider"]["head_ip"]}


def test_the_servers_settings_pin_tiers_and_are_understood() -> None:
    settings = load_settings(DEPLOY / "cluster.toml", environment={})
    assert settings.serve.pin_tiers
    assert settings.router.host == "127.0.0.1", "no keys stand there, so nobody from outside may ask"
