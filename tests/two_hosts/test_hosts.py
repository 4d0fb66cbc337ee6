"""The two hosts themselves: apart, joined by the cable alone, and gone when whoever made them is."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.two_hosts.hosts import (
    REPOSITORY,
    Cable,
    Host,
    HostFailed,
    HostProcess,
    HostsUnavailable,
    two_hosts,
    wait_until,
)

Made = tuple[Host, Host, Cable]

HOST_ID = "from triptych.multimodal.memfd import host_id; print(host_id())"
LISTENER = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while data := connection.recv(65536):
    print(len(data), flush=True)
"""
MAKER = """
import time
from pathlib import Path
from tests.two_hosts.hosts import two_hosts
with two_hosts() as (left, right, cable):
    sleeper = right.start(["sleep", "600"], Path("/dev/null"))
    print(left.first_pid, right.first_pid, sleeper.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def made() -> Iterator[Made]:
    try:
        with two_hosts() as hosts:
            yield hosts
    except HostsUnavailable as error:
        pytest.skip(str(error))


def python(host: Host, code: str, *arguments: str) -> HostProcess:
    return host.start([sys.executable, "-c", code, *arguments], Path("/dev/null"))


def test_each_host_has_an_id_a_network_and_a_memory_of_its_own(made: Made) -> None:
    left, right, _ = made
    ids = {python(host, HOST_ID).output.readline() for host in (left, right)}
    ids.add(subprocess.run([sys.executable, "-c", HOST_ID], capture_output=True, text=True).stdout)
    assert len(ids) == 3
    left.start(["touch", "/dev/shm/of-left"], Path("/dev/null")).output.read()
    assert left.shared_memory() == ["of-left"]
    assert right.shared_memory() == []
    assert not os.path.exists("/dev/shm/of-left")
    listed = left.network("ip", "-brief", "link").splitlines()
    assert sorted(line.split()[0].split("@")[0] for line in listed) == ["cable", "lo"]


def test_the_cable_carries_bytes_until_it_is_cut_and_again_once_mended(made: Made) -> None:
    left, right, cable = made
    listener = python(right, LISTENER, right.address)
    port = listener.output.readline().strip()
    sender = "import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    sender += "for line in sys.stdin: s.sendall(line.encode())"
    speaker = python(left, sender, right.address, port)

    def say(word: str) -> None:
        speaker.input.write(word + "\n")
        speaker.input.flush()

    say("one")
    assert listener.output.readline() == "4\n"
    cable.cut()
    before = cable.sent_bytes(right)
    say("three")
    assert not _readable(listener, 0.5)
    assert cable.sent_bytes(right) == before
    cable.mend()
    assert _readable(listener, 30)
    assert listener.output.readline() == "6\n"


def test_a_slow_cable_takes_its_time(made: Made) -> None:
    left, right, cable = made
    cable.slow(left, bits_per_second=400_000)
    listener = python(right, LISTENER, right.address)
    port = listener.output.readline().strip()
    before = cable.sent_bytes(left)
    python(left, f"import socket; socket.create_connection(('{right.address}', {port})).sendall(bytes(200_000))")
    wait_until(lambda: cable.sent_bytes(left) - before > 20_000, 10, "nothing was sent")
    assert cable.sent_bytes(left) - before < 150_000
    cable.fast()
    wait_until(lambda: cable.sent_bytes(left) - before > 200_000, 10, "it stayed slow")


def test_what_is_closed_leaves_no_process_and_no_interface(made: Made) -> None:
    left, right, _ = made
    before = _interfaces()
    sleeper = right.start(["sleep", "600"], Path("/dev/null"))
    assert sleeper.pid in right.processes()
    pids = {left.first_pid, right.first_pid, sleeper.pid}
    left.close()
    right.close()
    assert not pids & _alive()
    assert _interfaces() == before


def test_a_host_goes_also_while_a_process_of_it_is_stopped(made: Made) -> None:
    """It stops who would have to bury it, too."""
    left, _, _ = made
    sleeper = left.start(["sleep", "600"], Path("/dev/null"))
    os.kill(sleeper.pid, signal.SIGSTOP)
    began = time.monotonic()
    left.close()
    assert time.monotonic() - began < 10
    assert not {left.first_pid, sleeper.pid} & _alive()


def test_a_killed_maker_leaves_no_process(made: Made) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert maker.stdout is not None
    pids = {int(word) for word in maker.stdout.readline().split()}
    assert len(pids) == 3
    assert pids <= _alive()
    maker.send_signal(signal.SIGKILL)
    maker.wait(10)
    wait_until(lambda: not pids & _alive(), 10, f"some of {pids} live on")
    maker.stdout.close()


def test_what_goes_wrong_on_a_host_is_no_want_of_hosts(made: Made) -> None:
    left, _, _ = made
    with pytest.raises(HostFailed, match="left: ip link set nothing up: Cannot find device"):
        left.network("ip", "link", "set", "nothing", "up")
    with pytest.raises(HostFailed, match=r"third was not made: .*/no/such/folder"):
        Host("third", "10.77.0.3", "ls /no/such/folder")


def test_without_root_the_reason_is_told() -> None:
    code = "import os\nfrom tests.two_hosts.hosts import require_hosts\nos.setuid(65534)\nrequire_hosts()"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY).stderr
    assert "only root may make" in told


def _readable(process: HostProcess, seconds: float) -> bool:
    poll = select.poll()  # a whole test run has more descriptors than select takes
    poll.register(process.output, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _alive() -> set[int]:
    """Zombies do not count: they are their parents' to bury."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] if name.isdigit() else "Z"
        except OSError:
            continue
        if state != "Z":
            found.add(int(name))
    return found


def _interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))
