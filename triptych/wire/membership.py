"""Who may speak within a cluster: both ends of every connection prove that they belong to it (mutual TLS).

The cluster's secret is turned into the key of a certificate authority, the same in every process that has the secret;
each process signs a certificate for a key of its own, which never leaves its memory. So one string is all that has to
be handed out, nothing is written to disk, and a listener or an impostor at a worker's address learns nothing.
"""

import datetime
import functools
import ipaddress
from dataclasses import dataclass

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from triptych.errors import ConfigError
from triptych.wire.calls import CHANNEL_OPTIONS

# The name in every certificate. Addresses change with each start; what counts is who has signed.
MEMBER = "member.triptych.internal"

_AUTHORITY = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "triptych cluster")])
_ORDER_OF_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# A certificate is worth as long as its process: one that ended earlier would be an outage, and hosts' clocks differ.
_FROM, _UNTIL = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 1, 1)


@dataclass(frozen=True, slots=True, repr=False)
class Papers:
    """By which a process proves itself, and whom it believes; PEM each."""

    authority: bytes
    certificate: bytes
    key: bytes


class Membership:
    """One process's place in a cluster. Without a secret nothing is proven, and only loopback is served."""

    def __init__(self, secret: str = "") -> None:
        self.papers = _papers(secret) if secret else None

    def channel(self, address: str) -> grpc.Channel:
        """To a worker, from a thread."""
        if self.papers is None:
            return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(address, self._channel_credentials(), options=_MEMBER_OPTIONS)

    def aio_channel(self, address: str) -> grpc.aio.Channel:
        """To a worker, from an event loop."""
        if self.papers is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, self._channel_credentials(), options=_MEMBER_OPTIONS)

    def listen(self, server: grpc.aio.Server, host: str, port: int) -> int:
        """Binds a server that is to be started; the port it got.

        Raises ConfigError for an address that others can reach where nobody would have to prove anything.
        """
        address = address_of(host, port)
        if self.papers is not None:
            papers = self.papers
            credentials = grpc.ssl_server_credentials(
                [(papers.key, papers.certificate)], papers.authority, require_client_auth=True
            )
            return server.add_secure_port(address, credentials)
        if not _is_loopback(host):
            raise ConfigError(f"a worker that listens on {host} needs serve.cluster_secret, the same in all processes")
        return server.add_insecure_port(address)

    def _channel_credentials(self) -> grpc.ChannelCredentials:
        assert self.papers is not None
        return grpc.ssl_channel_credentials(self.papers.authority, self.papers.key, self.papers.certificate)


_MEMBER_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", MEMBER))


@functools.lru_cache(maxsize=8)
def _papers(secret: str) -> Papers:
    authority = _authority_key(secret)
    own = ec.generate_private_key(ec.SECP256R1())
    # Serial numbers and signatures of the authority's own certificate differ from process to process, and may: it is
    # found by its name and trusted for its key.
    root = _unsigned(_AUTHORITY, authority.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    member = _unsigned(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, MEMBER)]), own.public_key())
    member = member.add_extension(x509.SubjectAlternativeName([x509.DNSName(MEMBER)]), critical=False)
    pem = serialization.Encoding.PEM
    return Papers(
        authority=root.sign(authority, hashes.SHA256()).public_bytes(pem),
        certificate=member.sign(authority, hashes.SHA256()).public_bytes(pem),
        key=own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _authority_key(secret: str) -> ec.EllipticCurvePrivateKey:
    """16 bytes more than the curve's order has, so that no key is likelier than another."""
    derived = HKDF(hashes.SHA256(), length=48, salt=None, info=b"triptych cluster authority").derive(secret.encode())
    return ec.derive_private_key(int.from_bytes(derived, "big") % (_ORDER_OF_P256 - 1) + 1, ec.SECP256R1())


def _unsigned(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(_AUTHORITY).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(_FROM).not_valid_after(_UNTIL)


def address_of(host: str, port: int) -> str:
    """As gRPC takes it. An IPv6 address, with or without brackets, gets them: else its colons would begin the port."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
