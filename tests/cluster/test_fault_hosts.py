"""A node is lost, and Ray's head restarted, under load: on the hosts, made of namespaces, of the table of faults."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.fault_hosts import HOST_KINDS
from tests.cluster.fault_rows import Row
from tests.cluster.fault_table import RESULTS, complaints
from tests.two_hosts.hosts import HostsUnavailable, require_hosts

KINDS = [kind.name for kind in HOST_KINDS if "GCS alone" not in kind.name]  # which takes a minute more: nightly
TIMES_AS_LONG = 5  # as was measured when the table was made
SECONDS = 400.0  # a liveness bound

pytestmark = [
    pytest.mark.skipif(
        find_spec("nixl_cu13") is None, reason="NIXL is not installed, and nothing else joins two hosts"
    ),
    pytest.mark.cluster,
    pytest.mark.timeout(420),
]


def test_hosts_that_are_lost_cost_a_pause_and_nothing_else(tmp_path: Path) -> None:
    try:
        require_hosts()
    except HostsUnavailable as error:
        pytest.skip(str(error))
    output = tmp_path / "rows.json"
    # A process of its own, as it leaves this machine's network.
    command = [sys.executable, "-m", "tests.cluster.fault_table", "--place", "hosts", "--output", str(output)]
    command += ["--only", *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-8000:]
    rows = [Row(**row) for row in json.loads(output.read_text())["rows"]]
    assert [row.kind for row in rows] == KINDS
    assert complaints(rows) == []
    measured = {row["kind"]: row for row in json.loads(RESULTS.read_text())["rows"]}
    for row in rows:
        for name in ("pause", "ready"):
            assert getattr(row, name) < max(10.0, TIMES_AS_LONG * measured[row.kind][name]), (name, row)
