"""`triptych bench`: flags in, a table and a JSON file out."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

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
        if arguments.json is not None:
            arguments.json.write_text(written)
    return 0 if result.measures.completed else 1


def options_from(arguments: argparse.Namespace) -> BenchOptions:
    """Raises ConfigError for a value that cannot work."""
    width, height = _read_size(arguments.size)
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
        slo_ttft_seconds=arguments.slo_ttft,
        slo_tpot_seconds=arguments.slo_tpot,
        timeout_seconds=arguments.timeout,
        api_key=arguments.api_key,
    )


def _read_size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    try:
        return int(width), int(height)
    except ValueError:
        raise ConfigError(f"size is {text!r}, expected WIDTHxHEIGHT, such as 640x480") from None
