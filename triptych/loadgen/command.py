"""`triptych bench`: flags in, a table and a JSON file out."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from triptych.config import load_settings
from triptych.errors import ConfigError
from triptych.loadgen.bench import render, run_bench
from triptych.loadgen.options import BenchOptions


def run(arguments: argparse.Namespace) -> int:
    """0 when at least one request was completed."""
    notes = Console(stderr=True)
    result = run_bench(options_from(arguments), lambda text: notes.print(text, style="dim", highlight=False))
    written = json.dumps(result.to_json(), indent=1) + "\n"
    if arguments.json == Path("-"):
        sys.stdout.write(written)
    else:
        Console().print(render(result))
        for kind, said in result.examples().items():
            Console().print(f"{kind}, for example: {said}", markup=False, highlight=False, soft_wrap=True)
        if arguments.json is not None:
            arguments.json.write_text(written)
    return 0 if result.measures.completed else 1


def options_from(arguments: argparse.Namespace) -> BenchOptions:
    """Raises ConfigError for a value that cannot work."""
    width, height = _read_size(arguments.size)
    of_class = _class_limits(arguments)
    return BenchOptions(
        url=arguments.url,
        model=arguments.model or "",
        requests=arguments.requests,
        images=arguments.images,
        width=width,
        height=height,
        text_tokens=arguments.text_tokens,
        max_tokens=arguments.max_tokens,
        concurrency=1 if arguments.concurrency is None else arguments.concurrency,
        rate=arguments.rate,
        repeat_share=arguments.repeat_share,
        warmup=arguments.warmup,
        seed=arguments.seed,
        slo_ttft_seconds=arguments.slo_ttft or of_class.get("ttft"),
        slo_tpot_seconds=arguments.slo_tpot or of_class.get("tpot"),
        slo_e2e_seconds=arguments.slo_e2e or of_class.get("e2e"),
        slo_class=arguments.slo,
        slo_target=of_class.get("target"),
        timeout_seconds=arguments.timeout,
        api_key=arguments.api_key,
    )


def _class_limits(arguments: argparse.Namespace) -> Mapping[str, float]:
    """Of the class that is named, from the file of settings that the server has as well; flags come before them."""
    if not arguments.slo:
        return {}
    service = load_settings(arguments.config).slo.of(arguments.slo)
    return {name: seconds for name, seconds in service.limits.items() if seconds} | {"target": service.target}


def _read_size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    try:
        return int(width), int(height)
    except ValueError:
        raise ConfigError(f"size is {text!r}, expected WIDTHxHEIGHT, such as 640x480") from None
