"""Load a server, measure it: `run_bench(BenchOptions(url=..., rate=2.0))`. Definitions of the figures: measures.py."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from triptych.loadgen.exchange import ChatClient, Exchange, closed_loop, open_loop
from triptych.loadgen.measures import Measures, error_kind, measure, words_of
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.provenance import provenance
from triptych.loadgen.samples import Sample, judge
from triptych.loadgen.workload import WARMUP, arrival_times, make_bodies


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run: what was sent, what came back."""

    options: BenchOptions
    samples: tuple[Sample, ...]  # in sending order
    measures: Measures

    def examples(self) -> dict[str, str]:
        """For each kind of error what the first of them said, in the server's words where it has any."""
        found: dict[str, str] = {}
        for error in filter(None, (sample.error for sample in self.samples)):
            found.setdefault(error_kind(error), words_of(error))
        return {kind: said for kind, said in found.items() if said}

    def to_json(self) -> dict[str, Any]:
        """Ready for json.dump: workload, figures, samples, and where they come from."""
        return {
            "what": self.options.workload(),
            "measures": dataclasses.asdict(self.measures),
            **provenance(),
            "samples": [sample.to_json() for sample in self.samples],
        }


def run_bench(
    options: BenchOptions, progress: Callable[[str], None] = lambda text: None, told_every: float = 10.0
) -> BenchResult:
    """Make the pictures, warm the server up, send everything, measure.

    progress is told what begins and, every `told_every` seconds, how far it is. Raises ClusterError when no model is
    named and the server lists none; what goes wrong later is counted, never raised.
    """
    options, exchanges = asyncio.run(_drive(options, progress, told_every))
    origin = min(exchange.sent or exchange.due for exchange in exchanges)
    samples = tuple(judge(exchange, origin) for exchange in exchanges)
    return BenchResult(options, samples, measure(samples, options))


async def _drive(
    options: BenchOptions, progress: Callable[[str], None], told_every: float
) -> tuple[BenchOptions, Sequence[Exchange]]:
    async with ChatClient(options) as client:
        if not options.model:
            options = dataclasses.replace(options, model=await client.first_model())
        progress(f"making {options.requests * options.images} pictures")
        bodies = make_bodies(options)
        if options.warmup:
            progress(f"warming up with {options.warmup} requests")
            await closed_loop(client, make_bodies(options, WARMUP), options.concurrency)
        progress(f"sending {options.requests} requests")
        telling = asyncio.create_task(_tell(client, options.requests, progress, told_every))
        try:
            if options.rate is None:
                return options, await closed_loop(client, bodies, options.concurrency)
            return options, await open_loop(client, bodies, arrival_times(options))
        finally:
            telling.cancel()


async def _tell(client: ChatClient, requests: int, progress: Callable[[str], None], every: float) -> None:
    """A slow server is no reason to think that nothing goes on."""
    before = client.num_ended
    while True:
        await asyncio.sleep(every)
        progress(f"{client.num_ended - before} of {requests} have ended")


def render(result: BenchResult) -> Table:
    """The figures for people at a terminal."""
    measures = result.measures
    title = _title(result.options)
    table = Table("", "p50", "p90", "p99", title=title, title_justify="left", min_width=len(title))
    for name, figures in (
        ("TTFT ms", measures.ttft_seconds),
        ("TPOT ms", measures.tpot_seconds),
        ("ITL ms", measures.itl_seconds),
        ("E2E ms", measures.e2e_seconds),
        ("lateness ms", measures.lateness_seconds),
    ):
        if figures is not None:
            table.add_row(name, *(f"{seconds * 1000:.1f}" for seconds in figures.values()))
    table.add_section()
    for name, value in _totals(measures, result.options):
        table.add_row(name, value)
    return table


def _title(options: BenchOptions) -> str:
    pace = f"{options.concurrency} in flight" if options.rate is None else f"Poisson, {options.rate:g} req/s"
    return f"{options.requests} requests, {options.images} images of {options.width}x{options.height}, {pace}"


def _totals(measures: Measures, options: BenchOptions) -> list[tuple[str, str]]:
    rows = [
        ("req/s", f"{measures.requests_per_second:.2f}"),
        ("output tok/s", f"{measures.output_tokens_per_second:.1f}"),
        ("prompt tok/s", f"{measures.prompt_tokens_per_second:.1f}"),
        ("images/s", f"{measures.images_per_second:.2f}"),
    ]
    if measures.chunk_tokens is not None:
        rows.append(("tokens per chunk", f"{measures.chunk_tokens:.2f}"))
    if measures.attainment is not None and measures.attainment_interval is not None:
        low, high = measures.attainment_interval
        of_class = f" of {options.slo_class}" if options.slo_class else ""
        rows.append((f"SLO attainment{of_class}", f"{measures.attainment:.1%} ({low:.1%} to {high:.1%})"))
        if options.slo_target is not None:
            verdict = "met" if measures.attainment >= options.slo_target else "missed"
            rows.append(("target", f"{options.slo_target:.1%}: {verdict}"))
        rows.append(("goodput req/s", f"{measures.goodput_requests_per_second:.2f}"))
    rows.append(("completed", f"{measures.completed} of {measures.requests}"))
    if measures.short_answers:
        rows.append(("other length", str(measures.short_answers)))
    return rows + [(f"error: {kind}", str(count)) for kind, count in measures.errors.items()]
