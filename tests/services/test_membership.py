"""Both ends of every connection inside a cluster prove that they belong to it, whichever rpc is called."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.services.conftest import SECRET
from triptych.config import ServeSettings
from triptych.errors import ConfigError, Unproven
from triptych.journey import Endpoint
from triptych.pb import decode_pb2, encoder_pb2, prefill_pb2, worker_pb2
from triptych.services.peers import Peers
from triptych.transfer.leases import LeaseTable
from triptych.wire import CHANNEL_OPTIONS, SERVER_OPTIONS
from triptych.wire.membership import MEMBER, Membership

ANOTHER = "fedcba9876543210" * 2
CALL_SECONDS = 20.0
FILES = (health_pb2, worker_pb2, encoder_pb2, prefill_pb2, decode_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def call(channel: grpc.Channel, path: str) -> grpc.StatusCode:
    """What an rpc with an empty message ends with, whatever its shape."""
    method = METHODS[path]
    sends = "stream" if method.client_streaming else "unary"
    answers = "stream" if method.server_streaming else "unary"
    ask = getattr(channel, f"{sends}_{answers}")(path, request_serializer=bytes, response_deserializer=bytes)
    question: Any = iter([b""]) if method.client_streaming else b""
    try:
        answer = ask(question, timeout=CALL_SECONDS)
        if method.server_streaming:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def strangers(address: str) -> Mapping[str, grpc.Channel]:
    """Ways to a worker for those that lack the secret; the last two were even told whom the worker trusts."""
    ours, theirs = Membership(SECRET).papers, Membership(ANOTHER).papers
    assert ours is not None
    assert theirs is not None
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", MEMBER))
    bare = grpc.ssl_channel_credentials(ours.authority)
    posing = grpc.ssl_channel_credentials(ours.authority, theirs.key, theirs.certificate)
    return {
        "unencrypted": grpc.insecure_channel(address, options=CHANNEL_OPTIONS),
        "another cluster": Membership(ANOTHER).channel(address),
        "no certificate": grpc.secure_channel(address, bare, options=options),
        "another cluster's certificate": grpc.secure_channel(address, posing, options=options),
    }


@pytest.mark.parametrize("path", METHODS)
def test_an_rpc_answers_members_and_nobody_else(worker: Endpoint, path: str) -> None:
    with Membership(SECRET).channel(worker.address) as channel:
        assert call(channel, path) is not grpc.StatusCode.UNAVAILABLE
    for name, stranger in strangers(worker.address).items():
        with stranger:
            assert call(stranger, path) is grpc.StatusCode.UNAVAILABLE, name


def test_a_member_of_another_cluster_is_told_what_is_wrong_and_not_the_secret(worker: Endpoint) -> None:
    peers = Peers(Endpoint("127.0.0.1:1", 3), bytes(32), None, LeaseTable(), membership=Membership(ANOTHER))
    with pytest.raises(Unproven, match=r"serve\.cluster_secret") as caught:
        peers.connect(worker)
    peers.close()
    assert caught.value.grpc_status == "UNAUTHENTICATED"
    assert SECRET not in str(caught.value)
    assert ANOTHER not in str(caught.value)


@contextmanager
def impostor(credentials: grpc.ServerCredentials | None) -> Iterator[tuple[str, list[bytes]]]:
    """Somebody who answers anything at a worker's address, and what he was told."""
    heard: list[bytes] = []

    def serve(request: bytes, _: grpc.ServicerContext) -> bytes:
        heard.append(request)
        return b""

    handler = grpc.unary_unary_rpc_method_handler(serve)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("triptych.Worker", {"Connect": handler}),))
    port = (
        server.add_insecure_port("127.0.0.1:0")
        if credentials is None
        else server.add_secure_port("127.0.0.1:0", credentials)
    )
    server.start()
    yield f"127.0.0.1:{port}", heard
    server.stop(None)


@pytest.mark.parametrize("encrypts", [False, True])
def test_whoever_poses_as_a_worker_hears_nothing(encrypts: bool) -> None:
    theirs = Membership(ANOTHER).papers
    assert theirs is not None
    credentials = grpc.ssl_server_credentials([(theirs.key, theirs.certificate)]) if encrypts else None
    peers = Peers(Endpoint("127.0.0.1:1", 3), bytes(32), None, LeaseTable(), membership=Membership(SECRET))
    with impostor(credentials) as (address, heard), pytest.raises(Unproven):
        peers.connect(Endpoint(address, 7))
    peers.close()
    assert heard == []


HELD_SECONDS = 15.0  # of connections that never become any; gRPC alone would hold them for 120


def seconds_held(connection: socket.socket) -> float:
    """Until the other end has hung up, whatever it says before. Raises TimeoutError where it does not."""
    began = time.monotonic()
    while (left := began + HELD_SECONDS - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(4096):
                break
        except ConnectionError:
            break
    else:
        raise TimeoutError
    return time.monotonic() - began


def members_connection(address: tuple[str, int], folder: Path) -> ssl.SSLSocket:
    """One that has proven itself, and says nothing of HTTP/2."""
    papers = Membership(SECRET).papers
    assert papers is not None
    (folder / "pem").write_bytes(papers.key + papers.certificate)
    context = ssl.create_default_context(cadata=papers.authority.decode())
    context.load_cert_chain(folder / "pem")
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection(address), server_hostname=MEMBER)


def test_a_connection_that_never_becomes_one_is_not_held_and_an_idle_one_is(worker: Endpoint, tmp_path: Path) -> None:
    host, _, port = worker.address.rpartition(":")
    address = host, int(port)
    with Membership(SECRET).channel(worker.address) as idle, contextlib.ExitStack() as opened:
        states: list[grpc.ChannelConnectivity] = []
        idle.subscribe(states.append)
        assert call(idle, "/triptych.Worker/Status") is not grpc.StatusCode.UNAVAILABLE
        silent, half = (opened.enter_context(socket.create_connection(address)) for _ in range(2))
        half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # a TLS ClientHello's first bytes
        proven = opened.enter_context(members_connection(address, tmp_path))
        with ThreadPoolExecutor(3) as pool:
            assert max(pool.map(seconds_held, (silent, half, proven))) < HELD_SECONDS
        assert call(idle, "/triptych.Worker/Status") is not grpc.StatusCode.UNAVAILABLE
        assert states[states.index(grpc.ChannelConnectivity.READY) :] == [grpc.ChannelConnectivity.READY]


@pytest.mark.parametrize("words", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_nor_is_one_that_would_have_to_prove_nothing(words: bytes) -> None:
    server = grpc.server(ThreadPoolExecutor(1), options=SERVER_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(words)
        assert seconds_held(connection) < HELD_SECONDS
    server.stop(None)


def test_without_a_secret_a_worker_listens_on_loopback_alone() -> None:
    async def listen(host: str) -> int:
        server = grpc.aio.server()
        try:
            return Membership().listen(server, host, 0)
        finally:
            await server.stop(None)

    for host in ("127.0.0.1", "::1", "[::1]", "localhost"):
        assert asyncio.run(listen(host)) > 0, host
    with pytest.raises(ConfigError, match=r"serve\.cluster_secret"):
        asyncio.run(listen("0.0.0.0"))
    with pytest.raises(ConfigError, match=r"serve\.cluster_secret"):
        asyncio.run(listen("::"))


def test_a_secret_that_could_be_guessed_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="7 characters long") as caught:
        ServeSettings(cluster_secret="hunter2")
    assert "hunter2" not in str(caught.value)
