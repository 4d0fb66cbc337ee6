"""Ports, interfaces, keys."""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.web import QuietHandler, WebServer
from triptych.config import load_settings
from triptych.doctor.finding import Asked, Verdict
from triptych.doctor.network import judge_access, judge_interfaces, look_interfaces, look_ports, own_address, refusal_of


def asked(**router: object) -> Asked:
    return Asked(load_settings(environment={}, flags={f"router.{name}": value for name, value in router.items()}))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


class Version(QuietHandler):
    def do_GET(self) -> None:
        self.answer(200, {}, json.dumps({"version": "0.1.0"}).encode())


def test_a_port_that_somebody_has_fails(taken: int) -> None:
    finding = look_ports(asked(port=taken))
    assert finding.verdict is Verdict.FAIL
    assert f"router.port: 127.0.0.1:{taken} cannot be had: it is taken" in finding.seen


def test_a_port_that_a_server_of_ours_has_is_fine() -> None:
    with WebServer(Version) as server:
        finding = look_ports(asked(port=int(server.url.rpartition(":")[2])))
    assert finding.verdict is Verdict.OK
    assert "is a running Triptych's (0.1.0)" in finding.seen


def test_an_admin_port_is_looked_at_where_there_is_one(taken: int) -> None:
    finding = look_ports(asked(port=0, admin_port=taken))
    assert finding.verdict is Verdict.FAIL
    assert "router.admin_port" in finding.seen


def test_an_address_that_is_not_this_nodes_is_no_place_to_listen() -> None:
    assert refusal_of("192.0.2.77", 8000) != ""


def test_any_free_port_is_fine() -> None:
    assert look_ports(asked(port=0)).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("addresses", "own", "chosen", "verdict", "told"),
    [
        ({"lo": ["127.0.0.1"]}, "", "", Verdict.OK, "no interface but loopback"),
        ({"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"]}, "10.0.0.2", "", Verdict.OK, "reach it as 10.0.0.2"),
        ({"eth0": ["10.0.0.2"], "docker0": ["172.17.0.1"]}, "10.0.0.2", "", Verdict.OK, "docker0 172.17.0.1"),
        ({"eth0": ["10.0.0.2"], "docker0": ["172.17.0.1"]}, "10.0.0.2", "eth0", Verdict.OK, "eth0"),
        ({"eth0": ["10.0.0.2"]}, "10.0.0.2", "ib0", Verdict.FAIL, "no ib0"),
        ({"eth0": ["10.0.0.2"]}, "10.0.0.2", "mlx5_0:1", Verdict.OK, "eth0"),
        ({"eth0": ["8.8.4.4"]}, "8.8.4.4", "", Verdict.WARN, "a public address"),
    ],
)
def test_what_is_said_of_interfaces(
    addresses: dict[str, list[str]], own: str, chosen: str, verdict: Verdict, told: str
) -> None:
    finding = judge_interfaces(addresses, own, chosen)
    assert finding.verdict is verdict
    assert told in finding.seen


def test_this_machines_interfaces_are_looked_at() -> None:
    assert own_address() in look_interfaces(asked()).seen


@pytest.mark.parametrize(
    ("router", "verdict"),
    [
        ({}, Verdict.OK),
        ({"host": "0.0.0.0"}, Verdict.WARN),
        ({"host": "0.0.0.0", "api_key": "sesame"}, Verdict.OK),
        ({"host": "10.0.0.2", "api_keys_file": "keys.toml"}, Verdict.OK),
        ({"host": "::1"}, Verdict.OK),
    ],
)
def test_a_server_that_strangers_reach_wants_keys(router: dict[str, object], verdict: Verdict) -> None:
    assert judge_access(asked(**router).settings.router).verdict is verdict


def test_keys_are_never_told() -> None:
    assert "sesame" not in str(judge_access(asked(host="0.0.0.0", api_key="sesame").settings.router))
