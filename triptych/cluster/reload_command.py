"""`triptych reload`: other weights are served, while requests go on; and the way back."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triptych.client import Client
from triptych.cluster.scale_command import details
from triptych.errors import ClusterError, InvalidRequest

_LOOK_SECONDS = 0.5


def run(arguments: argparse.Namespace) -> int:
    """Without a model, and without --back, it only shows how things stand."""
    client = Client(arguments.url, arguments.api_key)
    if arguments.model == "":  # as of a variable that nobody has set: to show how things stand is not what was meant
        raise InvalidRequest("--model is empty, expected a folder")
    if not (arguments.model or arguments.back):
        told = client.get("/admin/reload")
        print("\n".join([*lines(told), *details(told)]))
        return 0 if is_done(told) and not told["trouble"] else 1
    body: dict[str, Any] = {"deadline_seconds": arguments.deadline}
    body |= {"back": True} if arguments.back else {"model": whole(arguments.model), "keep_seconds": arguments.keep}
    before = client.get("/admin/reload")["trouble"]
    told = client.post("/admin/reload", body)
    if told["trouble"] not in ("", before):
        raise ClusterError(told["trouble"])  # so little time had it
    return _follow(client, told, arguments)


def whole(model: str) -> str:
    """The whole path of a folder that is here; anything else is the server's to understand."""
    folder = Path(model).expanduser()
    return str(folder.absolute()) if folder.is_dir() else model


def lines(told: Mapping[str, Any]) -> list[str]:
    """One for each set, and one for what has gone wrong."""
    found = []
    for each in told["sets"]:
        ready = ", ".join(
            f"{name} {each['ready'].get(name, 0)} of {told['groups'][name]['wanted']}" for name in told["groups"]
        )
        line = f"set {each['set']} {each['phase']}, {ready}: {each['model']}"
        line += f", {each['requests']} requests" if each["phase"] == "finishing" else ""
        line += f", kept for {each['kept_seconds']:.0f} s" if each["kept_seconds"] else ""
        found.append(line)
    return found + ([told["trouble"]] if told["trouble"] else [])


def is_done(told: Mapping[str, Any]) -> bool:
    """Whether one set serves, whole, and no other has anything to do: it may still be kept."""
    serving = next(each for each in told["sets"] if each["phase"] == "serving")
    others = [each for each in told["sets"] if each is not serving]
    is_whole = all(serving["ready"].get(name, 0) == each["wanted"] for name, each in told["groups"].items())
    return is_whole and all(each["kept_seconds"] > 0 and not each["requests"] for each in others)


def wanted(told: Mapping[str, Any]) -> int:
    """The number of the set that serves once all goes well."""
    by_phase = {each["phase"]: each["set"] for each in told["sets"]}
    return int(by_phase.get("coming", by_phase["serving"]))


def require_wanted(told: Mapping[str, Any], number: int) -> None:
    """Raises ClusterError where this set serves no more, or never will."""
    phases = {each["set"]: each["phase"] for each in told["sets"]}
    if phases.get(number) not in ("coming", "serving"):
        raise ClusterError(told["trouble"] or f"set {number} does not serve: somebody has asked for another since")


def _follow(client: Client, told: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Prints what changes, until it is done. Raises ClusterError where it was given up, or takes too long."""
    began, shown, number = time.monotonic(), "", wanted(told)
    while True:
        text = "\n".join(lines(told))
        if text != shown:
            shown = text
            print("\n".join([text, *details(told)]), flush=True)
        require_wanted(told, number)
        if is_done(told) or not arguments.wait:
            return 0
        if time.monotonic() - began > arguments.timeout:
            raise ClusterError(f"not there after {arguments.timeout:g} s, and still being worked at: {text}")
        time.sleep(_LOOK_SECONDS)
        told = client.get("/admin/reload")
