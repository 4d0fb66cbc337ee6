"""`triptych scale` and `triptych role`: how many workers of each role there are, changed while requests go on."""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from triptych.client import Client
from triptych.errors import ClusterError, InvalidRequest

_LOOK_SECONDS = 0.5

_MOST_DIGITS = 9  # of a number: what has more is refused, with as many of them


def run_scale(arguments: argparse.Namespace) -> int:
    """Without wishes it only shows how things stand."""
    client = Client(arguments.url, arguments.api_key)
    if not arguments.wishes:
        told = client.get("/admin/scale")
        print("\n".join([summary(told), *details(told)]))
        return 0 if told["settled"] else 1
    return _follow(client, client.post("/admin/scale", wishes(arguments.wishes)), arguments)


def run_role(arguments: argparse.Namespace) -> int:
    client = Client(arguments.url, arguments.api_key)
    body = {"worker": arguments.worker, "role": arguments.role}
    return _follow(client, client.post("/admin/role", body), arguments)


def wishes(texts: Sequence[str]) -> dict[str, int]:
    """Of ROLE=NUMBER each. Raises InvalidRequest."""
    counts = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isascii() and number.isdecimal()):
            raise InvalidRequest(f"{text!r} is no wish; write ROLE=NUMBER, as encode=2")
        if name in counts:
            raise InvalidRequest(f"{name} is named twice")
        counts[name] = int((number.lstrip("0") or "0")[:_MOST_DIGITS])
    return counts


def summary(told: Mapping[str, Any]) -> str:
    """One line: of each group how many are ready, of how many that are wanted."""
    return ", ".join(f"{name} {each['ready']} of {each['wanted']}" for name, each in told["groups"].items())


def details(told: Mapping[str, Any]) -> list[str]:
    """A line for each worker that is not simply ready, and for each that has failed."""
    lines = [
        f"  {worker['worker_id']} {worker['state']}" + (f" ({worker['note']})" if worker["note"] else "")
        for worker in told["workers"]
        if worker["state"] != "ready" or worker["note"]
    ]
    return lines + [f"  {name} has failed: {reason}" for name, reason in told["failures"].items()]


def _follow(client: Client, told: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Prints what changes, until there is what was wished for. Raises ClusterError where that takes too long."""
    began, shown = time.monotonic(), ""
    while True:
        changes = [summary(told)] + [f"{each['worker_id']} {each['state']}" for each in told["workers"]]
        changes += [f"{name}: {reason}" for name, reason in told["failures"].items()]
        if (text := "\n".join(changes)) != shown:
            shown = text
            print("\n".join([summary(told), *details(told)]), flush=True)
        if told["settled"] or not arguments.wait:
            return 0
        if time.monotonic() - began > arguments.timeout:
            left = "; ".join(line.strip() for line in details(told)) or summary(told)
            raise ClusterError(f"not there after {arguments.timeout:g} s, and still being worked at: {left}")
        time.sleep(_LOOK_SECONDS)
        told = client.get("/admin/scale")
