"""Which addresses media may be fetched from: public ones, and networks the operator has opened."""

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from triptych.errors import ConfigError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")


class AddressPolicy:
    """Decides about addresses alone: names are resolved first, and what they resolve to is dialled."""

    def __init__(self, allow_cidrs: Sequence[str], ports: Sequence[int] = ()) -> None:
        """ports: of public addresses that may be dialled, none named meaning any; an opened network has all its ports.

        Raises ConfigError for what is not a network.
        """
        self._ports = frozenset(ports)
        try:
            self._opened = tuple(ipaddress.ip_network(cidr) for cidr in allow_cidrs)
        except ValueError as error:
            raise ConfigError(f"router.allow_media_cidrs: {error}") from error

    def allows(self, host: str, port: int = 443) -> bool:
        """Whether a port of a numeric address may be dialled; False for what is no address."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # What a packet to a wrapped address ends up at counts, beside the wrapping itself.
        public_port = not self._ports or port in self._ports
        return all(self._opens(each) or (public_port and _is_public(each)) for each in (address, *_inner(address)))

    def _opens(self, address: Address) -> bool:
        return any(address in network for network in self._opened if network.version == address.version)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return True  # nothing but its inner address
        if address.scope_id or address.is_site_local or address in _NAT64_LOCAL:
            return False
        if address in _NAT64:
            return True
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _inner(address: Address) -> Sequence[Address]:
    """IPv4 addresses that an IPv6 address wraps: mapped, 6to4, Teredo, NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    wrapped = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        wrapped.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in wrapped if each is not None]
