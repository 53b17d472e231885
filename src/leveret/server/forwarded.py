"""Addresses of clients behind proxies, which the header `X-Forwarded-For` names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

_MAX_PORT: Final = 65535
_EXPECTED: Final = "expected an IP address, with or without a port"


def forwarded_client(values: Iterable[str], peer: str, proxies: Sequence[Network]) -> tuple[str, int] | None:
    """Return the address and the port of the client that a trusted proxy names; None if none does. The port may be 0.

    Each proxy appends the address of its own client to those that it received. The last address that is not that of a
    trusted proxy is thus the client's; those before it may be forged. If all are of trusted proxies, it is the first.

    Args:
        values: The values of the header, in order.
        peer: The address of the other end of the socket.
        proxies: The networks of trusted proxies.

    Raises:
        ValueError: A trusted proxy has sent something other than an address.
    """
    if not proxies or not _is_in(_read_address(peer), proxies):
        return None
    entries = [entry.strip() for value in values for entry in value.split(",")]
    client: tuple[str, int] | None = None
    for entry in reversed(entries):
        if entry:
            address, port = _read(entry)
            client = str(address), port
            if not _is_in(address, proxies):
                break
    return client


def _is_in(address: IPv4Address | IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _read(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Return an address, which is in brackets if it is of IPv6 and has a port, and the port, 0 without one."""
    host, port = text, "0"
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or "0"
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(_MAX_PORT)) and int(port) <= _MAX_PORT):
        raise ValueError(_EXPECTED)
    return _read_address(host), int(port)


def _read_address(host: str) -> IPv4Address | IPv6Address:
    """Return the address of a host, which may have a scope; that of IPv4 in IPv6 as IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        raise ValueError(_EXPECTED) from None
    return getattr(address, "ipv4_mapped", None) or address
