"""Names of connections: `CLIENT -> BROKER`, or `CLIENT via PROXY -> BROKER` if a proxy has named its client."""

from __future__ import annotations

from typing import Final

_BROKER: Final = " -> "
_PROXY: Final = " via "


def connection_name(client: str, broker: str, proxy: str = "") -> str:
    """Return the name of a connection.

    Args:
        client: The address and port of the client.
        broker: Those of the broker.
        proxy: Those of the proxy that has named the client; "" without one.
    """
    return f"{client}{_PROXY}{proxy}{_BROKER}{broker}" if proxy else f"{client}{_BROKER}{broker}"


def client_of(name: str) -> str:
    """Return the client of a connection."""
    return name.partition(_BROKER)[0].partition(_PROXY)[0]


def broker_of(name: str) -> str:
    """Return the broker's address and port of a connection."""
    return name.partition(_BROKER)[2]
