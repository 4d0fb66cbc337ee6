"""What connections between processes bear: a peer that is slow to begin is no lost one."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from triptych import wire

SLOW_SECONDS = 0.5  # as a worker takes whose machine is busy, or that is far away


@contextmanager
def echoing() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Send": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@contextmanager
def slow_way_to(port: int) -> Iterator[int]:
    """Another port for it, where the first connection is heard only after a while; later ones never are."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        ours, _ = listener.accept()
        time.sleep(SLOW_SECONDS)
        theirs = socket.create_connection(("127.0.0.1", port))
        with ours, theirs:
            back = threading.Thread(target=_pass_on, args=(theirs, ours), daemon=True)
            back.start()
            _pass_on(ours, theirs)
            back.join()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield listener.getsockname()[1]
    thread.join(5)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(4096):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def test_a_worker_that_is_slow_to_take_a_connection_is_not_lost() -> None:
    with (
        echoing() as port,
        slow_way_to(port) as slow,
        grpc.insecure_channel(f"127.0.0.1:{slow}", options=wire.CHANNEL_OPTIONS) as channel,
    ):
        assert channel.unary_unary("/test.Echo/Send")(b"hello", timeout=10) == b"hello"
