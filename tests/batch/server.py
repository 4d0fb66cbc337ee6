"""A small OpenAI-like server that counts what it is asked, and answers as it is told."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.web import QuietHandler, WebServer

Reply = tuple[int, dict[str, str], Any]
Script = Callable[[str, int], Reply]  # of the question's text and how often it has come before


def echo(text: str, before: int) -> Reply:
    return 200, {}, {"choices": [{"message": {"content": f"to {text}"}}]}


class CountingServer(WebServer):
    def __init__(self, script: Script = echo) -> None:
        self.asked: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.most_at_once = 0
        lock, at_once = threading.Lock(), [0]

        class Handler(QuietHandler):
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
                handler.answer(status, {"x-request-id": "r", **headers}, json.dumps(answer).encode())

        super().__init__(Handler)
