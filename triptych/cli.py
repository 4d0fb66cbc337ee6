"""The `triptych` command. Parses, then loads what the chosen command needs."""

import argparse
import contextlib
import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import cast

from triptych.config import CLIENT_KEY_VARIABLE, TOPOLOGIES
from triptych.errors import ConfigError, InvalidRequest, TriptychError

COMMANDS = {
    "serve": "triptych.cluster.serve:run",
    "demo": "triptych.cluster.demo:run",
    "ask": "triptych.client:run_ask",
    "timeline": "triptych.client:run_timeline",
    "status": "triptych.client:run_status",
    "scale": "triptych.cluster.scale_command:run_scale",
    "role": "triptych.cluster.scale_command:run_role",
    "reload": "triptych.cluster.reload_command:run",
    "doctor": "triptych.doctor.command:run",
    "bench": "triptych.loadgen.command:run",
    "keys": "triptych.router.edge.key_command:run",
    "batch": "triptych.batch.command:run",
}
KEY_VARIABLES = (CLIENT_KEY_VARIABLE, "OPENAI_API_KEY")
DEFAULT_URL = "http://127.0.0.1:8000"


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = build_parser().parse_args(arguments)
    module, _, function = COMMANDS[parsed.command].partition(":")
    if sys.stdout is None:  # it was closed, as by >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        run = cast(Callable[[argparse.Namespace], int], getattr(importlib.import_module(module), function))
        status = run(parsed)
        sys.stdout.flush()
        return status
    except TriptychError as error:
        print(f"triptych {parsed.command}: {error}", file=sys.stderr)
        # To start again helps nobody whose settings or words cannot be; argparse ends with it, too.
        return 2 if isinstance(error, ConfigError | InvalidRequest) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads has read enough
        _let_go()
        return 1
    except OSError as error:  # a disk that is full; a machine without a process, or a descriptor, to spare
        _let_go()
        print(f"triptych {parsed.command}: {error}", file=sys.stderr)
        return 1


def _let_go() -> None:
    """Of what is not written yet, where it cannot be: Python would try again at its end, and tell of it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="triptych", description="Multimodal model serving in three panels")
    parser.add_argument("--version", action="version", version=f"triptych {version('triptych')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="start encoders, prefill and decode workers and the router"))
    _add_demo(commands.add_parser("demo", help="start a server, ask about the pictures in tests/data"))
    _add_ask(commands.add_parser("ask", help="ask a running server, with or without pictures"))
    _add_timeline(commands.add_parser("timeline", help="where the time of a recent request went"))
    _add_status(commands.add_parser("status", help="the live cluster as a table"))
    _add_scale(commands.add_parser("scale", help="change how many workers of a role there are, while requests go on"))
    _add_role(commands.add_parser("role", help="let a worker make room for one of another role"))
    _add_reload(commands.add_parser("reload", help="serve other weights, while requests go on; and the way back"))
    _add_doctor(commands.add_parser("doctor", help="is this machine fit for a server, and if not, what to do"))
    _add_bench(commands.add_parser("bench", help="load a server and measure it"))
    _add_batch(commands.add_parser("batch", help="answer a file of requests, in OpenAI's batch format"))
    _add_keys(commands.add_parser("keys", help="API keys for a server's file of keys"))
    return parser


def _add_keys(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="print a fresh key, and its table for the file")
    new.add_argument("name", help="the tenant, as logs and limits call it")
    new.add_argument("--requests-per-minute", type=_limit, default=0, help="0: no limit (default)")
    new.add_argument("--tokens-per-minute", type=_limit, default=0, help="of prompt and answer; 0: no limit (default)")
    new.add_argument("--max-concurrent", type=_limit, default=0, help="requests in flight; 0: no limit (default)")
    new.add_argument("--admin", action="store_true", help="may ask what operators ask")
    new.add_argument("--slo", default="", metavar="CLASS", help="class of service (default: the server's)")
    new.add_argument("--config", type=Path, help="the server's file of settings, for its classes of service")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a local folder or a hub id (default: the embedded model)")
    parser.add_argument("--served-name", help="model name that requests use (default: the folder's name)")
    parser.add_argument("--topology", choices=TOPOLOGIES, help="which roles share a process (default: e+p+d)")
    parser.add_argument("--encoders", type=int, help="encoder workers (default: 1)")
    parser.add_argument("--prefills", type=int, help="prefill workers (default: 1)")
    parser.add_argument("--decodes", type=int, help="decode workers (default: 1)")
    parser.add_argument("--routers", type=int, help="router processes behind the port (default: 1)")
    parser.add_argument("--chat-template", metavar="FILE", help="a template in place of the model's own")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for any free one (default: 8000)")
    parser.add_argument("--log-format", choices=("text", "json"), help="json: one object a line, one for each request")
    parser.add_argument("--admin-port", type=int, help="port that /metrics, /admin/ and /v1/cluster move to")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="auto: a GPU where there is one")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="auto: float32 on the CPU, the checkpoint's own on a GPU",
    )
    parser.add_argument("--load-format", choices=("auto", "dummy"), help="dummy: random weights, for measuring")
    parser.add_argument(
        "--gpu-share",
        action="append",
        metavar="ROLE=SHARE",
        help="of a GPU, for each worker of a role, as encode=0.2 (default: equal shares); may be repeated",
    )
    parser.add_argument("--gpu-memory", type=float, metavar="PART", help="of each GPU's memory to use (default: 0.9)")
    parser.add_argument("--kv-bytes", type=int, help="of each worker's KV (default: what is left; 512 MiB on the CPU)")
    parser.add_argument("--max-model-len", type=int, help="tokens of prompt and answer (default: the model's own)")
    parser.add_argument("--images-per-prompt", type=int, help="at most (default: 64)")
    parser.add_argument("--config", type=Path, help="TOML file of settings; flags and TRIPTYCH_* variables override it")
    parser.add_argument(
        "--allow-media-cidr",
        action="append",
        metavar="CIDR",
        help="non-public network that image URLs may point to, e.g. 127.0.0.0/8; may be repeated",
    )
    parser.add_argument(
        "--allow-media-host",
        action="append",
        metavar="HOST",
        help="the only hosts that images are fetched from: example.com, or .example.com for all below; may be repeated",
    )
    parser.add_argument(
        "--media-root",
        action="append",
        metavar="FOLDER",
        help="folder below which file:// URLs are read (default: none is); may be repeated",
    )
    parser.add_argument(
        "--media-proxy",
        metavar="URL",
        help="http://host:port, by which images are fetched; it must keep clients out of the inner network itself",
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pictures", type=Path, default=Path("tests/data"), help="folder with questions.json")
    parser.add_argument("--topology", choices=TOPOLOGIES)


def _add_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE_OR_URL", help="a picture; may be repeated, in order"
    )
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
    parser.add_argument("--model", help="model name (default: the first the server lists)")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    _add_key(parser)
    parser.add_argument("--timeline", action="store_true", help="also print where the time went")


def _add_timeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request", metavar="ID", help="the request's x-request-id")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace that https://ui.perfetto.dev opens")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
    _add_key(parser, "of whoever asked the request, or an operator's")


def _add_status(parser: argparse.ArgumentParser) -> None:
    told = f"the server, at its admin port if it has one (default: {DEFAULT_URL})"
    parser.add_argument("--url", default=DEFAULT_URL, help=told)
    _add_key(parser)


def _add_scale(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Workers that are too many finish what they have before they end, and no request fails. "
        "Roles that share a process are scaled as that process. Without wishes it shows how things stand."
    )
    parser.add_argument("wishes", nargs="*", metavar="ROLE=NUMBER", help="as encode=2 prefill=1 decode=3")
    _add_operator(parser)


def _add_role(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The worker finishes what it has and ends; one of the role takes its place, also on its GPU. No request fails."
    )
    parser.add_argument("worker", metavar="WORKER", help="its id, as `triptych status` shows it: decode-1")
    parser.add_argument("role", metavar="ROLE", help="encode, prefill or decode, or the group that has it: ep, pd, epd")
    _add_operator(parser)


def _add_reload(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A second set of workers, with the new model, comes up beside the first. Once every router has proven it new "
        "requests begin there; those that have begun end where they are, then the first set ends. No request fails. "
        "Without --model and --back it shows how things stand."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="FOLDER", help="on the server's machine, and on those of its workers")
    which.add_argument("--back", action="store_true", help="give up what comes, or serve the model before again")
    parser.add_argument(
        "--deadline", type=_seconds_or_none, default=600.0, help="seconds for the new set to be ready, or given up"
    )
    parser.add_argument(
        "--keep", type=_seconds_or_none, default=0.0, metavar="SECONDS", help="keep the first set for a way back"
    )
    _add_operator(parser)


def _add_operator(parser: argparse.ArgumentParser) -> None:
    told = f"the server, at its admin port if it has one (default: {DEFAULT_URL})"
    parser.add_argument("--url", default=DEFAULT_URL, help=told)
    _add_key(parser, "an operator's; a server without keys lets nobody do this")
    parser.add_argument("--timeout", type=_seconds, default=600.0, help="seconds to wait for it (default: 600)")
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return at once; it goes on all the same")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Exit status 1 where a check fails. Nothing is changed, and no check can hang: each has a limit."
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON, for machines")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="what workers shall run on (default: auto)")
    parser.add_argument("--config", type=Path, help="the server's TOML file: its ports, limits and shares are checked")
    parser.add_argument("--peer", metavar="URL", help="an HTTP server of another node, whose clock is compared")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="this check; may be repeated")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"any OpenAI-compatible server (default: {DEFAULT_URL})")
    parser.add_argument("--model", help="model name (default: the first the server lists)")
    parser.add_argument("--requests", type=int, default=32, help="so many in all (default: 32)")
    parser.add_argument("--images", type=int, default=1, help="images per request")
    parser.add_argument("--size", default="224x224", help="image size, WIDTHxHEIGHT")
    parser.add_argument("--text-tokens", type=int, default=32, help="words of text per request (default: 32)")
    parser.add_argument("--max-tokens", type=int, default=32, help="tokens of each answer (default: 32)")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=int, help="closed loop: requests in flight (default: 1)")
    pace.add_argument("--rate", type=float, help="open loop: Poisson arrivals per second")
    parser.add_argument("--repeat-share", type=float, default=0.0, help="share of images that were sent before")
    parser.add_argument("--warmup", type=int, default=2, help="requests before those that count (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of pictures, words and arrivals")
    parser.add_argument("--slo", default="", metavar="CLASS", help="class of service: limits, and what requests name")
    parser.add_argument("--config", type=Path, help="the server's file of settings, for its classes of service")
    parser.add_argument("--slo-ttft", type=float, help="seconds (default: the class's, as the following)")
    parser.add_argument("--slo-tpot", type=float, help="seconds per output token")
    parser.add_argument("--slo-e2e", type=float, help="seconds for the whole answer")
    parser.add_argument("--timeout", type=_seconds, default=300.0, help="seconds per request")
    _add_key(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")


def _add_batch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sends every line of IN.jsonl and appends a line with its answer to OUT.jsonl, in the order in which answers "
        "come. Started again after it was stopped in any way, it goes on with the lines that have none yet. Lines that "
        "failed are asked again once they are removed, as all are with the file of --errors."
    )
    parser.add_argument("source", type=Path, metavar="IN.jsonl")
    parser.add_argument("target", type=Path, metavar="OUT.jsonl")
    parser.add_argument(
        "--errors", type=Path, metavar="FILE", help="where lines without an answer go (default: OUT.jsonl)"
    )
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
    _add_key(parser)
    parser.add_argument("--concurrency", type=int, default=16, help="requests in flight (default: 16)")
    parser.add_argument("--timeout", type=_seconds, default=600.0, help="seconds per request with its retries")
    parser.add_argument("--max-retries", type=int, default=5, help="after 429, 5xx and lost connections (default: 5)")


def _add_key(parser: argparse.ArgumentParser, what: str = "as the server asks for it") -> None:
    default = next(filter(None, map(os.environ.get, KEY_VARIABLES)), "")
    told = f"{what} (default: {', else '.join(KEY_VARIABLES)} of the environment)"
    parser.add_argument("--api-key", type=_key, default=default, metavar="KEY", help=told)


def _key(text: str) -> str:
    """The key alone, as files of one end with a line's end. Raises what argparse tells, which is never the key."""
    key = text.strip()
    if key.isprintable():  # nor is half a character
        return key
    raise argparse.ArgumentTypeError("it has characters that no header of a request can have")


def _seconds(text: str) -> float:
    """Raises what argparse tells."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def _seconds_or_none(text: str) -> float:
    """Raises what argparse tells."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")


def _limit(text: str) -> int:
    """Raises what argparse tells."""
    with contextlib.suppress(ValueError):
        if int(text) >= 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text[:32]!r} is no limit, which is a whole number, 0 for none")


if __name__ == "__main__":
    sys.exit(main())
