"""A small OpenAI-like server that counts what it is asked, and answers as it is told."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], Any]
Script = Callable[[str, int], Reply]  # of the question's text and how often it has come before


def echo(text: str, before: int) -> Reply:
    return 200, {}, {"choices": [{"message": {"content": f"to {text}"}}]}


class CountingServer:
    """A context; runs on threads of its own."""

    def __init__(self, script: Script = echo) -> None:
        self.asked: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.most_at_once = 0
        lock, at_once = threading.Lock(), [0]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:
                body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
                with lock:
                    at_once[0] += 1
                    self.most_at_once = max(self.most_at_once, at_once[0])
                    before = self.asked[body["question"]]
                    self.asked[body["question"]] += 1
                    self.keys.add(handler.headers["authorization"])
                status, headers, answer = script(body["question"], before)
                with lock:
                    at_once[0] -= 1
                data = json.dumps(answer).encode()
                handler.send_response(status)
                for name, value in {"x-request-id": "r", "content-length": str(len(data)), **headers}.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(data)

            def log_message(handler, format: str, *args: object) -> None:
                """Quiet."""

            def handle(handler) -> None:
                try:
                    super().handle()
                except OSError:
                    pass  # the batch was killed

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> "CountingServer":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
