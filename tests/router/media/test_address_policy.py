"""Which numeric addresses may be dialled."""

import pytest

from triptych.errors import ConfigError
from triptych.router.media.address_policy import AddressPolicy

CLOSED = AddressPolicy(())


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert CLOSED.allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
        "64:ff9b:1::1",
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "2002:a00:1::1",
        "2001:0:a00:1::1",  # Teredo
        "2001:db8::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "localhost",
        "",
        "2130706433",
    ],
)
def test_everything_else_is_not(address: str) -> None:
    assert not CLOSED.allows(address)


def test_an_opened_network_is_allowed_and_no_more() -> None:
    policy = AddressPolicy(("127.0.0.0/8", "fd00::/8"))
    assert policy.allows("127.0.0.1")
    assert policy.allows("::ffff:127.0.0.1")
    assert policy.allows("fd12::1")
    assert policy.allows("8.8.8.8")
    assert not policy.allows("10.0.0.1")
    assert not policy.allows("::1")


def test_ports_are_limited_for_public_addresses_alone() -> None:
    policy = AddressPolicy(("10.0.0.0/8",), ports=(80, 443))
    assert policy.allows("8.8.8.8", 443)
    assert not policy.allows("8.8.8.8", 8080)
    assert policy.allows("10.1.2.3", 8080)
    assert not policy.allows("192.168.0.1", 80)


def test_what_is_no_network_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="allow_media_cidrs"):
        AddressPolicy(("10.0.0.0/8", "internal"))
