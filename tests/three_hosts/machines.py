"""Machines in one network, made of namespaces: what an operator and `ray up` find where machines are real.

    with machines(folder, "192.168.1.9", {"head": "192.168.1.10"}) as (desk, (head,)):
        desk.run("ssh -o StrictHostKeyChecking=accept-new triptych@192.168.1.10 hostname", seconds=30)
        head.power_off()                 # all its processes end at once; its disk stays
        head.power_on()

Each has a user who is not root, with a home that outlives its power, memory by name and /tmp that do not, and an sshd
that lets in who sits at the desk. Python and the packages that Triptych needs lie ready; Triptych itself does not, and
there is no way out of the network. The namespaces themselves are those of tests/two_hosts/hosts.py.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.two_hosts.hosts import INTERFACE, PREFIX_BITS, Host, HostsUnavailable, require_hosts, wait_until

USER = "triptych"  # the one that deploy/ray/local.yaml names
HOME = Path("/home") / USER  # on every machine

_USER_ID = "10001"
_TOOLS = ("sshd", "ssh", "ssh-keygen", "rsync", "flock", "setpriv")
_SSHD = "/usr/sbin/sshd"
_SSHD_OPTIONS = ("UsePAM=no", "StrictModes=no", "PasswordAuthentication=no", "PidFile=none")
_SSH_SECONDS = 20.0
_SWITCH = "switch"

# Sources first: what is mounted later may lie over them. $2: Python; $3: its packages; $4: `ray`; $5: the user's home.
_MOUNTS = f"""
mount -t tmpfs -o mode=755 tmpfs /mnt && cd /mnt && mkdir python site packages bin home &&
mount --bind "$2" python && mount --bind "$3" site && mount --bind "$5" home &&
(echo '#!/usr/bin/env python3'; tail -n +2 "$4") > bin/ray && chmod 755 bin/ray &&
ls site | grep -v -i -e '^triptych' -e '^__editable__' -e '[.]pth$' | sed 's,^,/mnt/site/,' |
xargs -d '\\n' ln -s -t packages && cp /etc/passwd /etc/group . &&
echo '{USER}:*:{_USER_ID}:{_USER_ID}::{HOME}:/bin/bash' >> passwd && echo '{USER}:x:{_USER_ID}:' >> group &&
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$1" > hosts && : > resolv.conf &&
for file in passwd group hosts resolv.conf; do mount --bind $file /etc/$file || exit 1; done &&
for folder in /tmp /opt; do mount -t tmpfs -o mode=1777 tmpfs $folder || exit 1; done &&
for folder in /run /var/log /home; do mount -t tmpfs -o mode=755 tmpfs $folder || exit 1; done &&
mkdir /run/sshd {HOME} && mount --bind home {HOME}
"""
# As whoever set the machines up would have it. No index: every package is there but ours, which comes in a wheel.
_PROFILE = """
export PATH=/mnt/python/bin:/mnt/bin:$PATH PYTHONPATH=/mnt/packages LD_LIBRARY_PATH=/mnt/python/lib
export PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0 PIP_DISABLE_PIP_VERSION_CHECK=1 RAY_USAGE_STATS_ENABLED=0
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command's end; `said` is all it printed."""

    status: int
    said: str


class Machine:
    """`home` is the folder outside where its user's home lies; the machine is off until `power_on`."""

    def __init__(self, name: str, address: str, home: Path) -> None:
        self.name = name
        self.address = address
        self.home = home
        home.mkdir(parents=True)
        (home / ".ssh").mkdir()
        (home / ".profile").write_text(_PROFILE)
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        assert self._host is not None, f"{self.name} is off"
        return self._host

    def power_on(self) -> None:
        ray = Path(sys.executable).with_name("ray")
        arguments = (sys.base_prefix, sysconfig.get_path("purelib"), str(ray), str(self.home))
        self._host = Host(self.name, self.address, _MOUNTS, arguments)
        self.own_home()

    def own_home(self) -> None:
        """What lies there becomes its user's."""
        owner = int(_USER_ID)
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)

    def power_off(self) -> None:
        """Every process on it ends at once; off again does nothing."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def run(self, command: str, seconds: float) -> Ran:
        """As its user, in a login shell. Raises TimeoutError with what it has said so far."""
        shell = ["setpriv", "--reuid", _USER_ID, "--regid", _USER_ID, "--clear-groups", "env", "-i"]
        shell += [f"HOME={HOME}", f"USER={USER}", f"LOGNAME={USER}", "TERM=dumb", "bash", "--login", "-c"]
        # A file: what stays in the background would hold a pipe open, and whoever reads it.
        with tempfile.TemporaryFile("w+") as said:
            entered = subprocess.Popen(
                [*self.host.enter(), *shell, f"cd && {command}"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )
            process = self.host.took(entered)
            try:
                status = entered.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                said.seek(0)
                raise TimeoutError(f"on {self.name}, {command!r} takes over {seconds:g} s: {said.read()}") from None
            said.seek(0)
            return Ran(status, said.read())

    def all_pids(self) -> set[int]:
        """Of everything that runs here, its first process included, by their numbers outside."""
        return self.host.processes() | {self.host.first_pid}

    def processes(self) -> dict[int, str]:
        """Command lines of all that runs here for its user, by their numbers outside."""
        return {pid: line for pid in self.host.processes() if (line := _of_the_user(pid))}


class Site:
    """The desk from which an operator works, and the machines that the switch in its network joins."""

    def __init__(self, folder: Path, desk_address: str, addresses: Mapping[str, str]) -> None:
        self.desk = Machine("desk", desk_address, folder / "desk")
        self.machines = [Machine(name, address, folder / name) for name, address in addresses.items()]
        self._folder = folder
        self._cables = 0

    def open(self) -> None:
        key = _make_key(self.desk.home / ".ssh" / "id_ed25519")
        known = []
        for machine in self.machines:
            known.append(f"{machine.address} {_make_key(machine.home / '.ssh' / 'host_key')}")
            (machine.home / ".ssh" / "authorized_keys").write_text(key)
        (self.desk.home / ".ssh" / "known_hosts").write_text("".join(known))
        self.desk.power_on()
        for command in (
            f"link add {_SWITCH} type bridge",
            f"address add {self.desk.address}/{PREFIX_BITS} dev {_SWITCH}",
            f"link set {_SWITCH} up",
        ):
            self.desk.host.network("ip", *command.split())
        for machine in self.machines:
            self.power_on(machine)

    def power_on(self, machine: Machine) -> None:
        """Returns when its sshd answers."""
        machine.power_on()
        self._join(machine)
        command = [_SSHD, "-D", "-e", "-f", "/dev/null", "-h", str(HOME / ".ssh" / "host_key")]
        command += [word for option in _SSHD_OPTIONS for word in ("-o", option)]
        machine.host.start(command, self._folder / f"{machine.name}-sshd.log")
        wait_until(lambda: _listens(machine.address, self.desk), _SSH_SECONDS, f"no sshd on {machine.name}")

    def close(self) -> None:
        for machine in (*self.machines, self.desk):
            machine.power_off()

    def _join(self, machine: Machine) -> None:
        """A new cable each time: the old one of a machine that was off may take a moment to go."""
        self._cables += 1
        port = f"port{self._cables}"
        here = machine.host
        # The same card each time, as others remember it.
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in machine.address.split("."))
        add = f"link add {port} type veth peer name {INTERFACE} address {card} netns {here.first_pid}"
        for command in (add, f"link set {port} master {_SWITCH}", f"link set {port} up"):
            self.desk.host.network("ip", *command.split())
        for command in (
            f"address add {machine.address}/{PREFIX_BITS} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route add default via {self.desk.address}",
        ):
            here.network("ip", *command.split())


@contextmanager
def machines(folder: Path, desk_address: str, addresses: Mapping[str, str]) -> Iterator[Site]:
    """A new site, gone at the end; addresses: of the machines, by name. Raises HostsUnavailable."""
    require_hosts()
    path = f"{os.environ['PATH']}:{os.path.dirname(_SSHD)}"
    if missing := [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]:
        raise HostsUnavailable(f"machines are made with {', '.join(missing)}, which this one does not have")
    made = Site(folder, desk_address, addresses)
    with ExitStack() as opened:
        opened.callback(made.close)
        made.open()
        yield made


def _make_key(file: Path) -> str:
    """Its public half, as one line."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)]
    subprocess.run(command, check=True, timeout=_SSH_SECONDS, stdin=subprocess.DEVNULL)
    return file.with_suffix(".pub").read_text()


def _listens(address: str, desk: Machine) -> bool:
    return desk.run(f"exec 3<>/dev/tcp/{address}/22", _SSH_SECONDS).status == 0


def _of_the_user(pid: int) -> str:
    """A process's command line; empty where it has ended, or is root's."""
    folder = Path(f"/proc/{pid}")
    try:
        if folder.stat().st_uid != int(_USER_ID):
            return ""
        return (folder / "cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""
