"""https: the certificate is checked for the name in the URL, whatever address is dialled."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.router.origin import Origin, always, origin, response
from triptych.config import RouterSettings
from triptych.errors import InvalidMedia
from triptych.router.media.fetch import MediaFetcher

pytestmark = pytest.mark.anyio
IMAGE = b"image bytes"
NAME = "pictures.example"


@dataclass(slots=True)
class Tls:
    server: ssl.SSLContext
    client: ssl.SSLContext
    server_names: list[str | None] = field(default_factory=list)  # as clients have told them


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tls:
    """A certificate for one name, both names resolve to loopback."""
    original = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **hints: Any) -> Any:
        return original("127.0.0.1" if str(host).endswith(".example") else host, port, *args, **hints)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    file = tmp_path / "certificate.pem"
    file.write_bytes(_certificate(NAME))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    made = Tls(server, ssl.create_default_context(cafile=str(file)))
    server.sni_callback = lambda _socket, name, _context: made.server_names.append(name)
    return made


@asynccontextmanager
async def fetcher(tls: Tls, proxy: str = "") -> AsyncIterator[MediaFetcher]:
    settings = RouterSettings(
        allow_media_cidrs=("127.0.0.0/8",), allow_media_ports=(), fetch_timeout_seconds=5.0, media_proxy=proxy
    )
    made = MediaFetcher(settings, tls.client)
    try:
        yield made
    finally:
        await made.close()


async def test_the_name_goes_into_sni_and_the_certificate_is_checked_for_it(tls: Tls) -> None:
    async with origin(always(response(IMAGE)), tls.server, NAME) as server, fetcher(tls) as fetch:
        assert await fetch.fetch(server.url(scheme="https")) == IMAGE
    assert tls.server_names == [NAME]


async def test_a_certificate_for_another_name_is_refused(tls: Tls) -> None:
    async with origin(always(response(IMAGE)), tls.server, "other.example") as server, fetcher(tls) as fetch:
        with pytest.raises(InvalidMedia) as caught:
            await fetch.fetch(server.url(scheme="https"))
    assert caught.value.media_code == "image_fetch_failed"
    assert server.visits == []


async def test_a_host_that_wants_a_certificate_of_ours_has_failed(tls: Tls) -> None:
    """It says so behind the handshake, which has been done by then."""
    tls.server.verify_mode = ssl.CERT_REQUIRED
    async with origin(always(response(IMAGE)), tls.server, NAME) as server, fetcher(tls) as fetch:
        with pytest.raises(InvalidMedia) as caught:
            await fetch.fetch(server.url(scheme="https"))
    assert caught.value.media_code == "image_fetch_failed"


async def test_a_redirect_from_https_to_http_is_refused(tls: Tls) -> None:
    async with origin(always(response(IMAGE))) as plain, fetcher(tls) as fetch:
        away = always(response(b"", "302 Found", location=plain.url()))
        async with origin(away, tls.server, NAME) as server:
            with pytest.raises(InvalidMedia) as caught:
                await fetch.fetch(server.url(scheme="https"))
        assert caught.value.media_code == "media_url_not_allowed"
        assert plain.connections == 0


async def test_a_redirect_from_http_to_https_is_followed(tls: Tls) -> None:
    async with origin(always(response(IMAGE)), tls.server, NAME) as secure, fetcher(tls) as fetch:
        there = always(response(b"", "308 Permanent Redirect", location=secure.url(scheme="https")))
        server: Origin
        async with origin(there) as server:
            assert await fetch.fetch(server.url()) == IMAGE


async def test_through_a_proxy_the_certificate_is_checked_as_without(tls: Tls) -> None:
    """The proxy carries bytes that it cannot read."""
    seen: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        there = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_carry(reader, there[1]), _carry(there[0], writer))

    async with origin(always(response(IMAGE)), tls.server, NAME) as server:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        async with fetcher(tls, f"http://127.0.0.1:{port}") as fetch:
            assert await fetch.fetch(f"https://{NAME}/a.png") == IMAGE
            with pytest.raises(InvalidMedia):
                await fetch.fetch("https://other.example/a.png")
        proxy.close()
    assert seen[:2] == [f"CONNECT {NAME}:443 HTTP/1.1".encode(), b"CONNECT other.example:443 HTTP/1.1"]
    assert tls.server_names[0] == NAME


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def _certificate(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
