"""A container file's instructions, and what is wrong with them by the rules that this repository holds itself to."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    name: str
    text: str

    def words(self) -> list[str]:
        """Of the form with brackets, its words; else what a blank parts."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return self.text.split()


def instructions(text: str) -> list[Instruction]:
    """Comments left out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.strip().split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def faults(found: list[Instruction]) -> list[str]:
    """All rules that are broken, in words."""
    return [*_of_bases(found), *_of_runs(found), *_of_user(found), *_of_rest(found)]


def _of_bases(found: list[Instruction]) -> Iterator[str]:
    arguments = dict(each.text.split("=", 1) for each in found if each.name == "ARG" and "=" in each.text)
    for each in found:
        if each.name == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda match: arguments.get(match[1], ""), each.text.split()[0])
            if ":" not in image or image.endswith(":latest"):
                yield f"base image {image!r} has no version"


def _of_runs(found: list[Instruction]) -> Iterator[str]:
    for each in found:
        if each.name != "RUN":
            continue
        for step in each.text.split("&&"):
            if re.search(r"\bpip (install|wheel)\b", step):
                if "-c " not in step and "--no-deps" not in step:
                    yield f"pip without constraints: {step.strip()}"
                if "--no-cache-dir" not in step:
                    yield f"pip leaves its cache: {step.strip()}"
        if "apt-get install" in each.text and "rm -rf /var/lib/apt/lists/*" not in each.text:
            yield "apt's lists stay in the image"
        if "apt-get install" in each.text and "--no-install-recommends" not in each.text:
            yield "apt installs what is only recommended"
        if re.search(r"curl[^|]*\|\s*(ba)?sh|\bsudo\b", each.text):
            yield f"runs what it fetches, or as somebody else: {each.text}"


def _of_user(found: list[Instruction]) -> Iterator[str]:
    last_base = max(at for at, each in enumerate(found) if each.name == "FROM")
    users = [each.text for each in found[last_base:] if each.name == "USER"]
    if not users:
        yield "it runs as root"
    elif not re.match(r"^[1-9]\d*(:[1-9]\d*)?$", users[-1]):
        yield f"user {users[-1]!r} is no number above 0, which Kubernetes wants to see"


def _of_rest(found: list[Instruction]) -> Iterator[str]:
    for each in found:
        if each.name == "ADD":
            yield "ADD unpacks and fetches; COPY does neither"
        if each.name == "COPY" and each.words()[0] in (".", "./"):
            yield "COPY of everything takes secrets along"
        if each.name in ("ENTRYPOINT", "CMD") and not each.text.startswith("["):
            yield f"{each.name} runs in a shell, which passes no signals on"
        if each.name in ("ENV", "ARG") and re.search(r"(?i)(token|secret|password|api_key)\w*=", each.text):
            yield f"a secret would stay in the image: {each.text}"
