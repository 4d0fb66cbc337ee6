"""Where UCX listens, when the settings do not say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.transfer.net_devices import devices_of, rdma_ports

ADDRESSES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["10.0.0.2", "fe80::1%eth0"],
    "docker0": ["172.17.0.1"],
}
RDMA = ["mlx5_0:1", "mlx5_1:1"]


@pytest.mark.parametrize(
    ("host", "devices"),
    [
        ("127.0.0.1", "lo"),
        ("::1", "lo"),
        ("10.0.0.2", "eth0,mlx5_0:1,mlx5_1:1"),
        ("fe80:0::1", "eth0,mlx5_0:1,mlx5_1:1"),
        ("0.0.0.0", ""),
        ("192.0.2.77", ""),
        ("node-a", ""),
        ("", ""),
    ],
)
def test_ucx_keeps_to_the_interface_of_the_workers_address(host: str, devices: str) -> None:
    assert devices_of(host, ADDRESSES, RDMA) == devices


def test_rdma_ports_that_are_down_are_left_out(tmp_path: Path) -> None:
    for port, state in (("mlx5_0/ports/1", "4: ACTIVE\n"), ("mlx5_1/ports/1", "1: DOWN\n")):
        (tmp_path / port).mkdir(parents=True)
        (tmp_path / port / "state").write_text(state)
    assert rdma_ports(tmp_path) == ["mlx5_0:1"]
    assert rdma_ports(tmp_path / "none") == []


_LISTENS = """
import json, os, psutil
from triptych.config import TransferSettings
from triptych.transfer.nixl_start import start_nixl
agent = start_nixl(TransferSettings(nixl_tls="tcp,sm,self"), host="127.0.0.1")
assert agent is not None
assert not {"UCX_NET_DEVICES", "UCX_TLS"} & os.environ.keys(), "a child on another network would keep to ours"
print(json.dumps([each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"]))
agent.close()
"""


def test_a_worker_on_loopback_has_no_port_that_others_could_reach() -> None:
    pytest.importorskip("nixl_cu13")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    said = subprocess.run([sys.executable, "-c", _LISTENS], env=plain, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert set(json.loads(said.stdout)) == {"127.0.0.1"}, "or none at all, and then this test shows nothing"
