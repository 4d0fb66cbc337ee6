"""`triptych batch`: a file of requests in, a file of answers out."""

import argparse
import sys

from triptych.batch.options import BatchOptions
from triptych.batch.run import run_batch


def run(arguments: argparse.Namespace) -> int:
    """0 when every line has an answer."""
    options = BatchOptions(
        source=arguments.source,
        target=arguments.target,
        errors=arguments.errors,
        url=arguments.url,
        api_key=arguments.api_key,
        concurrency=arguments.concurrency,
        timeout_seconds=arguments.timeout,
        max_retries=arguments.max_retries,
    )
    summary = run_batch(options)
    if summary.failed:
        where = options.errors or options.target
        print(
            f"triptych batch: {summary.failed} of {summary.lines} have no answer of status 2xx, see {where}",
            file=sys.stderr,
        )
    return 1 if summary.failed else 0
