"""`triptych doctor`: is this node fit for a server, and if not, what is to be done."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console

from triptych.config import load_settings
from triptych.doctor.checks import CHECKS, Check
from triptych.doctor.finding import Asked, Finding, Verdict
from triptych.doctor.running import run_checks
from triptych.errors import ConfigError

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def run(arguments: argparse.Namespace) -> int:
    """1 where any check fails, 0 otherwise."""
    settings = load_settings(arguments.config, flags={"serve.device": arguments.device})
    findings = run_checks(chosen(arguments.only), Asked(settings, arguments.peer or ""))
    told = list(findings) if arguments.json else list(_printed(findings))
    if arguments.json:
        print(json.dumps(as_document(told), indent=2))
    return int(any(finding.verdict is Verdict.FAIL for _, finding in told))


def chosen(names: Sequence[str]) -> list[Check]:
    """All checks, or those that were named. Raises ConfigError for a name that is none."""
    known = {check.name for check in CHECKS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--only is {name!r}, expected one of {', '.join(check.name for check in CHECKS)}")
    return [check for check in CHECKS if not names or check.name in names]


def as_document(findings: Iterable[tuple[Check, Finding]]) -> dict[str, object]:
    """The worst verdict, and every check's."""
    entries = [{"check": check.name, **finding.as_json()} for check, finding in findings]
    order = list(Verdict)
    worst = max((Verdict(entry["verdict"]) for entry in entries), key=order.index, default=Verdict.OK)
    return {"verdict": worst.value, "checks": entries}


def _printed(findings: Iterable[tuple[Check, Finding]]) -> Iterable[tuple[Check, Finding]]:
    """The same, each as a line or two once it is known."""
    console = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
    width = max(len(check.name) for check in CHECKS)
    for check, finding in findings:
        console.print(f"{finding.verdict:<4}", style=_STYLES[finding.verdict], end="  ")
        console.print(f"{check.name:<{width}}  {finding.seen}")
        if finding.advice:
            console.print(f"{'':<{width + 8}}{finding.advice}", style="bold")
        yield check, finding
