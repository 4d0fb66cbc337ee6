"""`python -m tests.two_hosts.asker`: who asks a cluster from inside its host; one JSON question or answer a line.

    {"id": 1, "get": "http://10.77.0.2:9000/health"}                    {"id": 1, "code": 200, "text": "..."}
    {"id": 2, "post": "http://...", "body": {...}, "seconds": 60}       {"id": 2, "code": 500, "text": "..."}
    {"id": 3, "status": "10.77.0.1:9001"}                               {"id": 3, "idle": true, "violation": "", ...}

Questions are asked side by side; what cannot be asked is answered with {"id": ..., "lost": "why"}.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
from google.protobuf.json_format import MessageToDict

from triptych.pb import worker_pb2
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.wire.membership import Membership

CLUSTER_SECRET = "two-hosts-" * 4
_MOST_AT_ONCE = 32
_SECONDS = 10.0


class Asker:
    """Answers come out in the order in which they are known."""

    def __init__(self) -> None:
        self._http = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._lock = threading.Lock()

    def serve(self) -> None:
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            for line in sys.stdin:
                pool.submit(self._answer, json.loads(line))

    def _answer(self, question: dict[str, Any]) -> None:
        try:
            answer = self._ask(question)
        except (grpc.RpcError, httpx.HTTPError) as error:
            answer = {"lost": f"{type(error).__name__}: {error}"}
        with self._lock:
            print(json.dumps({"id": question["id"], **answer}), flush=True)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        seconds = question.get("seconds", _SECONDS)
        if address := question.get("status"):
            return _status(address, seconds)
        if url := question.get("post"):
            response = self._http.post(url, json=question["body"], timeout=seconds)
        else:
            response = self._http.get(question["get"], timeout=seconds)
        return {"code": response.status_code, "text": response.text}


def _status(address: str, seconds: float) -> dict[str, Any]:
    """A worker's own word, its invariants checked."""
    with Membership(CLUSTER_SECRET).channel(address) as channel:
        stub = WorkerStub(channel)  # type: ignore[no-untyped-call]
        reply = stub.Status(worker_pb2.StatusRequest(check_invariants=True), timeout=seconds)
    told: dict[str, Any] = MessageToDict(reply, preserving_proto_field_name=True)
    gauges = {gauge.name: gauge.value for gauge in reply.gauges}
    return told | {"idle": reply.idle, "violation": reply.violation, "gauges": gauges}


if __name__ == "__main__":
    Asker().serve()
