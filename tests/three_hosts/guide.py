"""The operations guide's own commands, and an operator who gives them in their order and leaves none out."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.three_hosts.machines import Machine, Ran

GUIDE = Path(__file__).parents[2] / "docs" / "operations.md"

_KEY = re.compile(r"\btp-[\w-]+")
_SECONDS = 60.0


def commands_under(heading: str) -> list[str]:
    """Lines of the shell blocks between a heading and the next one. Raises ValueError where there are none."""
    _, found, rest = GUIDE.read_text().partition(f"\n{heading}\n")
    section = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)).splitlines()
    if not (found and lines):
        raise ValueError(f"{GUIDE.name} has no commands under {heading!r}")
    return lines


class Operator:
    """Sits at the desk, in a folder with the repository, or at another machine, and goes by the guide."""

    def __init__(self, desk: Machine, folder: str, commands: Iterable[str], key: str = "KEY") -> None:
        """key: the one that an earlier part of the guide made"""
        self.key = key
        self._desk = desk
        self._shell = [f"cd {folder}"]  # what later commands find: each has a shell of its own
        self.left = list(commands)

    def follow(self, start: str, seconds: float = _SECONDS) -> str:
        """Gives the guide's next command, which begins so; what it said. Raises AssertionError where it fails."""
        command = self.left.pop(0)
        assert command.startswith(start), f"the guide goes on with {command!r}, not with {start!r}"
        if command.startswith("export "):
            self._shell.append(command)
            return ""
        ran = self.run(command, seconds)
        assert ran.status == 0, f"{command}: {ran.said}"
        if found := _KEY.search(ran.said):
            self.key = found[0]
        return ran.said

    def run(self, command: str, seconds: float = _SECONDS) -> Ran:
        """Any command; KEY in it stands for the key that the guide made. Raises TimeoutError."""
        return self._desk.run(" && ".join([*self._shell, re.sub(r"\bKEY\b", self.key, command)]), seconds)
