"""Listening on all addresses of a host with the same port."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.node.errors import StartFailed
from leveret.server.listener import Listener
from leveret.server.transport import MakeProtocol, SocketProtocol

logger = logging.getLogger("leveret.serve")

# Attempts to find a port that is free on every address.
MAX_ATTEMPTS = 20
# Error numbers for an address that the machine lacks. Some versions of asyncio omit the number.
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, None)


class Listening(Protocol):
    """The part of `leveret.server.server.Server` that this module uses."""

    listeners: list[Listener]

    async def listen(
        self,
        host: str | None,
        port: int,
        tls: ssl.SSLContext | None = None,
        make_protocol: MakeProtocol = SocketProtocol,
    ) -> tuple[str, int]: ...


@dataclass(frozen=True)
class Endpoint:
    """A listener.

    Attributes:
        section: The section of the configuration with its `host` and `port`.
        scheme: The scheme of its URLs.
        path: The path of its URLs.
        make_protocol: Makes the protocol of an accepted socket.
    """

    section: str
    scheme: str
    path: str = ""
    make_protocol: MakeProtocol = SocketProtocol


PLAIN: Final = Endpoint("server", "amqp")
TLS: Final = Endpoint("tls", "amqps")
# Schemes of the listener for WebSockets.
WS: Final = "ws"
WSS: Final = "wss"


async def listen(
    server: Listening, endpoint: Endpoint, host: str, port: int, context: ssl.SSLContext | None
) -> tuple[list[str], int]:
    """Listen on all addresses of a host. Returns their URLs and the port; 0 picks a free port.

    Skips addresses that this machine lacks, such as the IPv6 address of `localhost`, if at least one is available.

    Args:
        server: The server.
        endpoint: The listener.
        host: The host.
        port: The port.
        context: The TLS context of a listener that accepts only TLS; None for a plain listener.

    Raises:
        StartFailed: An address cannot be listened on.
    """
    addresses = addresses_of(host, f"{endpoint.section}.host")
    for attempt in range(MAX_ATTEMPTS):
        chosen = port
        bound: list[str] = []
        failure: StartFailed | None = None
        for address in addresses:
            try:
                _, chosen = await server.listen(address, chosen, context, endpoint.make_protocol)
            except OSError as error:
                failure = _failure(address, chosen, endpoint.section, error)
                if error.errno not in _NO_SUCH_ADDRESS:
                    break
                logger.debug("%s", failure)
            else:
                bound.append(f"{endpoint.scheme}://{bracketed(address)}:{chosen}{endpoint.path}")
        else:
            if bound:
                return bound, chosen
        for _ in bound:
            server.listeners.pop().close()
        # A port that is free on one address may be in use on the next. Retry with another port.
        if port or not bound or attempt + 1 == MAX_ATTEMPTS:
            assert failure is not None
            raise failure
    raise AssertionError("the last attempt returned or raised")


def _failure(address: str, port: int, section: str, error: OSError) -> StartFailed:
    flag = ", --port" if section == PLAIN.section else ""
    # asyncio's text repeats the address.
    reason = error if error.errno is None else os.strerror(error.errno)
    return StartFailed(
        f"cannot listen on {bracketed(address)}:{port}: {reason}; change"
        f" '{section}.host' or '{section}.port'{flag} (0 picks a free port)"
    )


def addresses_of(host: str, setting: str) -> list[str]:
    """Return the addresses of a host, IPv4 first; an empty host means all addresses of the machine.

    Args:
        host: The host.
        setting: The setting that has it.

    Raises:
        StartFailed: The host is unknown.
    """
    if not host:
        return ["0.0.0.0", "::"] if socket.has_ipv6 else ["0.0.0.0"]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartFailed(f"cannot resolve '{setting}' '{host}': {error}") from None
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def bracketed(address: str) -> str:
    """Return an address in URL notation."""
    return f"[{address}]" if ":" in address else address
