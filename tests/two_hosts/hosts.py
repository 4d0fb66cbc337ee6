"""Two hosts on one machine: namespaces of their own for network, processes, memory by name and mounts; one cable.

    with two_hosts() as (left, right, cable):
        server = left.start(["python3", "-m", "http.server", "--bind", left.address], log)
        cable.cut()

Nothing here has a name outside: no file under /run/netns, no interface in the machine's own network. A host is its
first process, which reads a pipe that only this process can write to. When this process ends, however it ends, the
kernel closes the pipe, the first process leaves, and everything in its process namespace is killed; the network and
the cable go with the last process in them. So there is nothing that a killed test run could leave behind.

Needs root and util-linux's unshare and nsenter, iproute2's ip and tc; raises HostsUnavailable with what is missing.
That is found out before any is made: whatever goes wrong later is HostFailed, which is no reason to skip a test.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[2]
INTERFACE = "cable"  # what the one network interface of each host is called, beside lo
PREFIX_BITS = 24
ADDRESSES = ("10.77.0.1", "10.77.0.2")  # in networks that only the two hosts are in, so every run has the same

_TOOLS = ("unshare", "nsenter", "ip", "tc", "bash")
_START_SECONDS = 10.0
_END_SECONDS = (
    30.0  # a Python with torch in it takes a second of processor time to leave, on a machine that may be busy
)
_COMMAND_SECONDS = 10.0
_NOTHING_MORE: Mapping[str, str] = {}

# Own mounts first: what /sys and /dev/shm show is what the library under test will look at. Then it waits, in a bash:
# that one buries, as the first process of a machine does, those whose parents have ended.
_FIRST_PROCESS = """
mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && hostname "$1" && ip link set lo up && {
%s
} && echo ready && exec > /dev/null && while read -r; do :; done
"""


# What every host, and whatever joins them, is made of.
_TRIAL = """
mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && hostname trial && ip link set lo up &&
ip link add one type veth peer name other && ip link add joins type bridge && ip link set one master joins
"""
_UNSHARE = ("unshare", "--net", "--pid", "--ipc", "--uts", "--mount", "--fork", "--mount-proc")


class HostsUnavailable(Exception):
    """This machine does not let us make hosts; the message says what is missing."""


class HostFailed(Exception):
    """Hosts can be made here, and yet something on one of them has gone wrong; the message says what."""


class HostProcess:
    """A process inside a host. `pid` is its number outside, 0 when it was over at once."""

    def __init__(self, entered: "subprocess.Popen[str]", name: str) -> None:
        """entered: nsenter, whose only child is the process; it ends when that does."""
        self._entered = entered
        self._name = name
        self.pid = _only_child(entered)

    @property
    def output(self) -> IO[str]:
        stdout = self._entered.stdout
        assert stdout is not None
        return stdout

    @property
    def input(self) -> IO[str]:
        stdin = self._entered.stdin
        assert stdin is not None
        return stdin

    def running(self) -> bool:
        return self._entered.poll() is None

    def end(self) -> bool:
        """Ask it to end, then make it; whether asking was enough. Ending it again does nothing."""
        self._signal(signal.SIGTERM)
        if not (ended_itself := _is_over(self._entered, _END_SECONDS)):
            self.kill()
        for stream in (self._entered.stdin, self._entered.stdout):
            if stream is not None:
                stream.close()
        return ended_itself

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._entered.wait(_END_SECONDS)

    def _signal(self, number: int) -> None:
        if self.running():  # so the child is not reaped, and its number is still its own
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass


class Host:
    """One of the two. `close` ends all that runs on it."""

    def __init__(self, name: str, address: str, prepare: str = ":", arguments: Sequence[str] = ()) -> None:
        """prepare: what bash runs there before anything else, with the arguments from $2 on."""
        self.name = name
        self.address = address
        self.first_pid = 0
        self._entered: list[subprocess.Popen[str]] = []
        self._unshare = subprocess.Popen(
            [*_UNSHARE, "bash", "-c", _FIRST_PROCESS % prepare, "bash", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert self._unshare.stdout is not None
            assert self._unshare.stderr is not None
            if self._unshare.stdout.readline() != "ready\n":
                raise HostFailed(f"{name} was not made: {self._unshare.stderr.read().strip()}")
            self.first_pid = _only_child(self._unshare)
        except BaseException:
            self.close()
            raise

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str] = _NOTHING_MORE) -> HostProcess:
        """Run a command here, in the repository's root; its standard streams are pipes, its errors go to `log`."""
        with log.open("a") as errors:
            entered = subprocess.Popen(
                [*self.enter(), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | environment,
            )
        return self.took(entered)

    def took(self, entered: "subprocess.Popen[str]") -> HostProcess:
        """A process that somebody has started with `enter`; one that is over is forgotten."""
        self._entered = [*(each for each in self._entered if each.poll() is None), entered]
        return HostProcess(entered, self.name)

    def network(self, *command: str) -> str:
        """What a command that ends at once prints, with this host's network and the machine's processes."""
        try:
            done = subprocess.run(
                [*self.enter("--net"), *command], check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS
            )
        except subprocess.CalledProcessError as error:
            raise HostFailed(f"{self.name}: {' '.join(command)}: {error.stderr.strip()}") from error
        return done.stdout

    def shared_memory(self) -> list[str]:
        """Names in this host's /dev/shm."""
        return sorted(os.listdir(f"/proc/{self.first_pid}/root/dev/shm"))

    def processes(self) -> set[int]:
        """Who runs here, by their numbers outside; without the first process, which only waits."""
        mine = os.stat(f"/proc/{self.first_pid}/ns/pid").st_ino
        return {pid for pid in _all_pids() if _namespace_of(pid) == mine} - {self.first_pid}

    def running(self) -> bool:
        return self._unshare.poll() is None

    def close(self) -> None:
        """Ends its first process, and the kernel all others; closing again does nothing. Raises TimeoutError."""
        if self._unshare.stdin is not None:
            self._unshare.stdin.close()
        # A host has gone once all its processes are buried, those started from outside by their nsenters. An nsenter
        # stops where its child is stopped, and buries nobody from then on. So these end first.
        for entered in self._entered:
            entered.kill()
        for process in (*self._entered, self._unshare):
            if not _is_over(process, _END_SECONDS):
                left = [f"{pid} ({_state_of(pid)})" for pid in sorted(self.processes())]
                raise TimeoutError(f"{self.name} has not gone after {_END_SECONDS:g} s: {', '.join(left)}")
        for stream in (self._unshare.stdout, self._unshare.stderr):
            if stream is not None:
                stream.close()

    def enter(self, *namespaces: str) -> list[str]:
        """What to put before a command that shall run in all namespaces, or those named, in the repository's root."""
        chosen = namespaces or ("--pid", "--mount", "--uts", "--ipc", "--net")
        return ["nsenter", "--target", str(self.first_pid), *chosen, f"--wd={REPOSITORY}", "--"]


class Cable:
    """What joins the two hosts: it can be pulled, mended, and made slow."""

    def __init__(self, left: Host, right: Host) -> None:
        self._ends = (left, right)
        left.network("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns",
                     str(right.first_pid))  # fmt: skip
        for host in self._ends:
            host.network("ip", "address", "add", f"{host.address}/{PREFIX_BITS}", "dev", INTERFACE)
            # Under BBR a connection may wait for half a minute once its cable is mended: all it has to send is paced at
            # what the cable carried while it was cut. Reno is in every kernel, and asks again as RFC 6298 says.
            host.network("sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        self.mend()

    def cut(self) -> None:
        """Nothing passes any more; connections are not told."""
        self._ends[0].network("ip", "link", "set", INTERFACE, "down")

    def mend(self) -> None:
        """As new; returns when both ends have noticed."""
        for host in self._ends:
            host.network("ip", "link", "set", INTERFACE, "up")
        wait_until(lambda: all(self._carries(host) for host in self._ends), _START_SECONDS, "the cable carries nothing")

    def slow(self, sender: Host, bits_per_second: int) -> None:
        """What this host sends goes at most at this rate from now on."""
        shape = ("tbf", "rate", f"{bits_per_second}bit", "burst", "16kb", "latency", "2s")
        sender.network("tc", "qdisc", "replace", "dev", INTERFACE, "root", *shape)

    def fast(self) -> None:
        for host in self._ends:
            if "tbf" in host.network("tc", "qdisc", "show", "dev", INTERFACE):
                host.network("tc", "qdisc", "del", "dev", INTERFACE, "root")

    def sent_bytes(self, host: Host) -> int:
        """What has gone out of a host so far."""
        interfaces = Path(f"/proc/{host.first_pid}/net/dev").read_text().splitlines()
        line = next(line for line in interfaces if line.strip().startswith(f"{INTERFACE}:"))
        return int(line.split(":")[1].split()[8])

    def _carries(self, host: Host) -> bool:
        return "LOWER_UP" in host.network("ip", "link", "show", INTERFACE)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host, Cable]]:
    """Two new hosts and their cable; gone at the end. Raises HostsUnavailable."""
    require_hosts()
    with ExitStack() as opened:
        hosts = []
        for name, address in zip(("left", "right"), ADDRESSES, strict=True):
            host = Host(name, address)
            opened.callback(host.close)
            hosts.append(host)
        left, right = hosts
        yield left, right, Cable(left, right)


def require_hosts() -> None:
    """Raises HostsUnavailable where none can be made: it makes one."""
    if os.geteuid() != 0:
        raise HostsUnavailable("two hosts need network namespaces, which only root may make")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise HostsUnavailable(f"two hosts are made with {', '.join(missing)}, which this machine does not have")
    trial = [*_UNSHARE, "bash", "-c", _TRIAL]
    done = subprocess.run(trial, check=False, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
    if done.returncode != 0:
        raise HostsUnavailable(f"no namespaces can be made here: {done.stderr.strip()}")


def wait_until(holds: Callable[[], bool], seconds: float, otherwise: str, every: float = 0.01) -> None:
    """Raises TimeoutError with `otherwise` when it does not hold within the seconds; every: those between two looks."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise}, after {seconds:g} s")
        time.sleep(every)


def _only_child(parent: "subprocess.Popen[str]") -> int:
    """0 when the parent has ended, and the child with it."""
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")

    def found() -> list[str]:
        try:
            return children.read_text().split()
        except OSError:  # ended between two looks
            return []

    wait_until(lambda: bool(found()) or parent.poll() is not None, _START_SECONDS, "no process came into the host")
    return int((found() or ["0"])[0])


def _is_over(process: "subprocess.Popen[str]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _namespace_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:  # gone meanwhile, or a thread of the kernel
        return 0
