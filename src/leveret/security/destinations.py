"""Destinations of the broker's own connections: the addresses that webhooks and shovels may connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

# Addresses of this machine, of its link, of groups, and of metadata services of clouds.
SPECIAL: Final = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "::/127",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "fd00:ec2::/32",
    "fd20:ce::/32",
)
# The prefixes of IPv6 addresses that end with an IPv4 address: of translators (RFC 6052), and IPv4-compatible ones.
_TRANSLATED: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))


class Destinations:
    """A set of addresses.

    Args:
        networks: The networks of the allowed addresses; none for all addresses.
        excluded: The networks of the other ones, if `networks` has none.
    """

    def __init__(self, networks: Iterable[str], excluded: Iterable[str] = ()) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._excluded = [ip_network(network) for network in excluded]

    def allows(self, address: str) -> bool:
        """Return whether an address is in the set. An IPv6 address that stands for an IPv4 address counts as that one."""
        found = _plain(address)
        if self._networks:
            return any(found in network for network in self._networks)
        return not any(found in network for network in self._excluded)

    def allows_name(self, host: str) -> bool:
        """Return whether a host is allowed. A name, which is not resolved here, is."""
        try:
            return self.allows(host)
        except ValueError:
            return True


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host.

    The caller checks them and connects to one that it has checked, so that the owner of the name cannot answer with one
    address for the check and with another one for the connection.

    Raises:
        OSError: The host has no address.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _plain(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address)
    if isinstance(found, IPv4Address):
        return found
    plain = found.ipv4_mapped or found.sixtofour
    if plain is not None:
        return plain
    if any(found in prefix for prefix in _TRANSLATED) and int(found) > 1:
        return IPv4Address(int(found) & 0xFFFFFFFF)
    return found
