"""Addresses of listeners, as clients on this machine use them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit, urlunsplit

# Addresses of all interfaces, and the ones to connect to instead.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def endpoint_of(url: str) -> tuple[str, int]:
    """Return the host and port to connect to for the URL of a listener."""
    host, _, port = urlsplit(url).netloc.rpartition(":")
    host = host.strip("[]")
    return _LOOPBACK.get(host, host), int(port)


def local_url(url: str, login: str = "") -> str:
    """Return the URL of a listener for clients on this machine, with a user and a password if `login` has them."""
    parts = urlsplit(url)
    host, port = endpoint_of(url)
    address = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{login}@{address}:{port}" if login else f"{address}:{port}"))
