"""`triptych ask`, `timeline` and `status`: a small HTTP client for people at a terminal."""

import argparse
import base64
import json
import mimetypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
from rich.console import Console
from rich.table import Table

from triptych.config import CLIENT_KEY_VARIABLE
from triptych.errors import ClusterError, InvalidRequest

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 300.0
_TOLD_SECONDS = 60.0  # how things stand: a router gives whoever keeps the workers twenty for it
_PIPE_WIDTH = 120
_ROLES = ("encode", "prefill", "decode")
_OF_OPERATORS = ("/admin/", "/v1/cluster")


def run_ask(arguments: argparse.Namespace) -> int:
    """Print the answer as it comes; with --timeline, also the seconds of each stage, and whose they are."""
    client = Client(arguments.url, arguments.api_key)
    body = {
        "model": arguments.model or client.first_model(),
        "messages": [{"role": "user", "content": [*map(image_part, arguments.image), text_part(arguments.question)]}],
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
    }
    if arguments.timeline:
        answer = client.ask(body)
        print(answer.text)
        print_timeline(answer.stages)
        print(f"request {answer.request_id}")
        return 0
    for piece in client.stream(body):
        print(piece, end="", flush=True)
    print()
    return 0


def run_timeline(arguments: argparse.Namespace) -> int:
    """Print the stages of a request until its first token; with --trace, write all of it to a file."""
    client, path = Client(arguments.url, arguments.api_key), f"/v1/requests/{_segment(arguments.request)}/timeline"
    if arguments.trace is not None:
        trace = json.dumps(client.get(f"{path}?format=chrome"))
        try:
            arguments.trace.write_text(trace)
        except OSError as error:
            raise InvalidRequest(f"cannot write {arguments.trace}: {error.strerror}") from error
        return 0
    told = client.get(path)
    print_timeline(told["stages"])
    first, seconds = told["first_token_seconds"], told["seconds"]
    first_words = "no token yet" if first is None else f"first token after {first * 1000:.1f} ms"
    print(f"{told['state']}: {first_words}, {seconds * 1000:.1f} ms in all")
    for placed in told["workers"]:
        print(f"{placed['role']} at {placed['worker']}: {placed['why']}")
    for retried in told["retries"]:
        print(f"{retried['stage']} was tried again after {retried['at'] * 1000:.1f} ms: {retried['error']}")
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """Print the live cluster, and of each role how many workers there are of how many; 0 once all that is wanted is."""
    cluster = Client(arguments.url, arguments.api_key).get("/v1/cluster")
    workers = cluster["workers"]
    table = Table(box=None, pad_edge=False)
    for header in ("worker", "roles", "state", "queue", "running", "cached", "KV free", "memory", "claims"):
        table.add_column(header, no_wrap=True)
    for worker in workers:
        table.add_row(
            worker["worker_id"],
            "+".join(role[0] for role in _in_order(worker["roles"])),
            worker["state"],
            *_figures(worker["gauges"]),
        )
    counts, coming = cluster.get("roles", {}), cluster.get("coming", ())
    if not workers:
        told = ["no worker is known yet; the server is still loading", *role_lines(counts, coming)]
        print("\n".join(told), file=sys.stderr)
        return 1
    # A pipe has no width, and a cut-off name would be of no use to whoever reads from it.
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(table)
    for line in ["", *role_lines(counts, coming), *set_lines(cluster.get("sets", ())), *path_lines(workers)]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    is_whole = all(0 < each["wanted"] == each["ready"] for each in counts.values())
    return 0 if is_whole and all(worker["state"] == "ready" for worker in workers) else 1


def role_lines(counts: Mapping[str, Mapping[str, int]], coming: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each role how many workers are ready, of how many that are wanted; then each that is to come, and how far."""
    lines = []
    for role, each in counts.items():
        more = f", {each['coming']} coming" if each["coming"] else ""
        lines.append(f"{role} {each['ready']} of {each['wanted']}{more}")
    return lines + [f"    {worker['worker_id']} {worker['note']}" for worker in coming]


def set_lines(sets: Sequence[Mapping[str, Any]]) -> list[str]:
    """While a reload goes on: which workers have which model, and what becomes of their requests."""
    lines = [
        f"set {each['set']}: {each['model']} {each['fingerprint'][:8]}, "
        f"{'serves' if each['serving'] else 'does not serve'}, {each['requests']} requests"
        for each in sets
    ]
    return ["", *lines] if len(lines) > 1 else []


def path_lines(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """How workers read from their neighbours, and below each one why by no nearer way."""
    name_by_address = {worker["address"]: worker["worker_id"] for worker in workers}
    lines = []
    for worker in workers:
        for path in worker.get("paths", ()):
            owner = name_by_address.get(path["owner"], path["owner"])
            what = "reads" if path["transport"] != "none" else "cannot read"
            by = f" by {path['transport']}" if path["transport"] != "none" else ""
            lines.append(f"{worker['worker_id']} {what} {owner}{by}")
            lines += [f"    not by {reason}" for reason in path["refused"]]
    return ["", *lines] if lines else []


def _in_order(roles: Sequence[str]) -> list[str]:
    """Roles in the order a request meets them."""
    return sorted(roles, key=_ROLES.index)


class _Told(dict[str, Any]):
    """An object of the server's; what it lacks is no mistake of this program."""

    def __missing__(self, name: str) -> Any:
        raise ClusterError(f"no Triptych server of this version answers there: {name!r} is missing in what it says")


@dataclass(frozen=True, slots=True)
class Answer:
    """stages: seconds of each, as the server reports them. request_id: what `triptych timeline` finds it by"""

    text: str
    stages: dict[str, float]
    request_id: str


class Client:
    """An OpenAI-compatible server; errors come out as ours, with the server's words."""

    def __init__(self, url: str, api_key: str = "") -> None:
        if "://" not in url:
            raise InvalidRequest(f"the server's address {url!r} has no scheme; write http://{url}")
        headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        try:
            base = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"the server's address {url!r} is none: {error}") from error
        if base.scheme not in ("http", "https") or not base.host:
            raise InvalidRequest(f"the server's address {url!r} is none; write http://HOST:PORT")
        self._url = str(base.copy_with(userinfo=b""))  # as told to people, to whom passwords are not
        self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout, trust_env=False)

    def get(self, path: str) -> Any:
        return self._told(self._checked(self._send(self._request("GET", path, timeout=_TOLD_SECONDS))))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._told(self._checked(self._send(self._request("POST", path, json=body, timeout=_TOLD_SECONDS))))

    def _request(self, method: str, path: str, **content: Any) -> httpx.Request:
        """Raises InvalidRequest for what JSON cannot say: half a character, a number that is none."""
        try:
            return self._http.build_request(method, path, **content)
        except (ValueError, httpx.InvalidURL) as error:
            raise InvalidRequest(f"this cannot be asked: {error}") from error

    def _told(self, response: httpx.Response) -> Any:
        """What a server of ours says. Raises ClusterError for what none would."""
        try:
            return response.json(object_hook=_Told)
        except ValueError as error:
            raise ClusterError(f"what answers at {self._url} is no Triptych server: it speaks no JSON") from error

    def first_model(self) -> str:
        models = self.get("/v1/models")["data"]
        if not models:
            raise ClusterError(f"the server at {self._url} lists no model")
        return str(models[0]["id"])

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """The whole answer, with its timeline."""
        request = self._request("POST", "/v1/chat/completions", json=body, headers={"x-triptych-timeline": "1"})
        response = self._checked(self._send(request))
        text = self._told(response)["choices"][0]["message"]["content"]
        stages = parse_server_timing(response.headers.get("server-timing", ""))
        return Answer(text, stages, response.headers.get("x-request-id", ""))

    def stream(self, body: Mapping[str, Any]) -> Iterator[str]:
        request = self._request("POST", "/v1/chat/completions", json={**body, "stream": True})
        response = self._send(request, stream=True)
        try:
            if response.status_code != httpx.codes.OK:
                response.read()
            for line in self._checked(response).iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ClusterError(event["error"]["message"])
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""
        finally:
            response.close()

    def _send(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.ConnectError as error:
            raise ClusterError(
                f"no server answers at {self._url}; start one with: make serve, or triptych serve"
            ) from error
        except httpx.TimeoutException as error:
            raise ClusterError(f"the server at {self._url} has not answered in time") from error
        except httpx.HTTPError as error:
            raise ClusterError(f"the server at {self._url} went away: {error}") from error

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.status_code == httpx.codes.OK:
            return response
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:200]
        path = response.request.url.path
        if response.status_code == httpx.codes.NOT_FOUND and path.startswith(_OF_OPERATORS):
            message += "; a server with an admin port answers there: --url http://HOST:ADMIN_PORT"
        if response.status_code == httpx.codes.UNAUTHORIZED and "Authorization" not in self._http.headers:
            message += f"; no key was sent: --api-key KEY, or {CLIENT_KEY_VARIABLE} in the environment"
        raise ClusterError(f"the server refused ({response.status_code}): {message}")


def _segment(text: str) -> str:
    """As one segment of a path, whatever it is."""
    return quote(text, safe="", errors="surrogateescape")


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(source: str) -> dict[str, Any]:
    """A content part for a file (sent as data URI), also by its file:// URL, or a URL (sent as it is).

    The file is this machine's. What the server is to read on its own is no client's to choose.
    """
    if source.startswith(("http://", "https://", "data:")):
        return {"type": "image_url", "image_url": {"url": source}}
    path = unquote(source[7:].removeprefix("localhost")) if source.startswith("file://") else source
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error
    kind = mimetypes.guess_type(path)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def parse_server_timing(header: str) -> dict[str, float]:
    """Stage -> seconds of a Server-Timing header (`name;dur=milliseconds, ...`)."""
    timeline = {}
    for entry in header.split(","):
        name, _, duration = entry.strip().partition(";dur=")
        if duration:
            timeline[name] = float(duration) / 1000
    return timeline


def print_timeline(timeline: Mapping[str, float]) -> None:
    """A bar per stage, in the order they were reported."""
    table = Table("stage", "ms", "", box=None)
    longest = max(timeline.values(), default=1.0) or 1.0
    for stage, seconds in timeline.items():
        table.add_row(stage, f"{seconds * 1000:.1f}", "█" * round(30 * seconds / longest))
    Console(file=sys.stdout).print(table)


def _figures(gauges: Mapping[str, float]) -> tuple[str, ...]:
    def pick(*names: str) -> str:
        found = [gauges[name] for name in names if name in gauges]
        return f"{sum(found):.0f}" if found else "-"

    memory = gauges.get("rss_bytes", 0) / 2**20
    device = gauges.get("device_bytes", 0) / 2**20
    return (
        pick("encoder_queued_items", "prefill_requests", "decode_reservations_queued"),
        pick("decode_sequences"),
        pick("encoder_cached_items"),
        f"{gauges['kv_free_blocks']:.0f}/{gauges['kv_blocks']:.0f}" if "kv_blocks" in gauges else "-",
        f"{memory:.0f} MiB" + (f" + {device:.0f} MiB device" if device else ""),
        pick("claims"),
    )
