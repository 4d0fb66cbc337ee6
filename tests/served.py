"""The embedded model behind three tiers of real processes and HTTP, and a web server with pictures beside it."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.checkpoints import EMBEDDED
from tests.journey.messages import image, user
from tests.processes import ProcessCluster
from tests.web import QuietHandler, WebServer
from triptych.config import MIB, load_settings

PICTURES = Path(__file__).parent / "data"
MODEL = "m"
MOST_IMAGES = 4
ANSWER_SECONDS = 60.0  # a liveness bound

_TABLES: dict[str, dict[str, object]] = {
    "serve": {"model": str(EMBEDDED), "served_name": MODEL, "device": "cpu", "cpu_threads": 1},
    "router": {
        "port": 0,
        "status_interval_seconds": 0.2,
        "allow_media_cidrs": ("127.0.0.0/8",),
        "max_images_per_prompt": MOST_IMAGES,
        "log_level": "warning",
    },
    "encoder": {"arena_bytes": 32 * MIB},
    "language": {"kv_bytes": 64 * MIB, "landing_bytes": 32 * MIB},
}


class Served:
    """What is asked over HTTP."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.url = cluster.url
        self.http = httpx.Client(base_url=cluster.url, timeout=ANSWER_SECONDS, trust_env=False)

    def chat(self, *parts: Mapping[str, Any] | str, **fields: Any) -> httpx.Response:
        """One user message of parts; fields go into the body, `messages` takes the parts' place."""
        return self.http.post("/v1/chat/completions", json=chat_body(*parts, **fields))

    def answer(self, *parts: Mapping[str, Any] | str, **fields: Any) -> dict[str, Any]:
        """The body of an answer that must come."""
        response = self.chat(*parts, **fields)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    def text(self, *parts: Mapping[str, Any] | str, **fields: Any) -> str:
        content: str = self.answer(*parts, **fields)["choices"][0]["message"]["content"]
        return content

    def chunks(self, *parts: Mapping[str, Any] | str, **fields: Any) -> list[dict[str, Any]]:
        """All chunks of a stream that must end well."""
        response = self.chat(*parts, stream=True, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        frames = response.text.removesuffix("\n\n").split("\n\n")
        assert frames.pop() == "data: [DONE]"
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def chat_body(*parts: Mapping[str, Any] | str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user(*parts)], "temperature": 0, "max_tokens": 24, **fields}


def shown(name: str = "red-circle.png") -> dict[str, Any]:
    """A picture of tests/data as an image part."""
    return image((PICTURES / name).read_bytes())


@contextmanager
def served_model(folder: Path) -> Iterator[Served]:
    """folder: for the workers' settings and logs"""
    flags = {f"{table}.{name}": value for table, entries in _TABLES.items() for name, value in entries.items()}
    cluster = ProcessCluster(load_settings(environment={}, flags=flags), folder, _TABLES)
    served = Served(cluster)
    try:
        yield served
    finally:
        served.http.close()
        cluster.stop()


class PictureSite(WebServer):
    """Serves what it is given by path and counts who came."""

    def __init__(self, pages: Mapping[str, tuple[int, str, bytes]]) -> None:
        """pages: status, content type and body of each path; anything else is a 404"""
        self.hits: Counter[str] = Counter()

        class Handler(QuietHandler):
            def do_GET(handler) -> None:
                self.hits[handler.path] += 1
                status, kind, body = pages.get(handler.path, (404, "text/plain", b"no"))
                handler.answer(status, {"content-type": kind}, body)

        super().__init__(Handler)
