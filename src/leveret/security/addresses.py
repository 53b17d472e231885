"""Addresses of clients."""

from __future__ import annotations

import ipaddress


def network_of(host: str) -> str:
    """Return the key of an address: for IPv6 its /64 network, because one client may use every address in it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
