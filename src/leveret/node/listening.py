"""Which addresses a host means, and listening on all of them with one port."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from typing import Protocol

from leveret.node.errors import StartFailed
from leveret.server.listener import Listener

log = logging.getLogger("leveret.serve")

# How often a free port is looked for that is free on every address.
ATTEMPTS = 20
# What the system says where it has no such address; asyncio leaves the number out in some versions.
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, None)


class Listening(Protocol):
    """What this needs of `leveret.server.Server`."""

    listeners: list[Listener]

    async def listen(self, host: str | None, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]: ...


async def listen(server: Listening, host: str, port: int, context: ssl.SSLContext | None) -> tuple[list[str], int]:
    """Listen on all addresses of a host; returns their URLs, and the port, which is a free one for 0.

    An address that this machine does not have (`localhost` may name one of IPv6) is left out where another is there.
    Raises `StartFailed` where it cannot listen.
    """
    addresses = addresses_of(host)
    scheme = "amqp" if context is None else "amqps"
    for attempt in range(ATTEMPTS):
        chosen = port
        bound: list[str] = []
        failure: StartFailed | None = None
        for address in addresses:
            try:
                _, chosen = await server.listen(address, chosen, context)
            except OSError as error:
                failure = _failure(address, chosen, context is not None, error)
                if error.errno not in _NO_SUCH_ADDRESS:
                    break
                log.debug("%s", failure)
            else:
                bound.append(f"{scheme}://{bracketed(address)}:{chosen}")
        else:
            if bound:
                return bound, chosen
        for _ in bound:
            server.listeners.pop().close()
        # A port that was found free on one address may be taken on the next: then look for another.
        if port or not bound or attempt + 1 == ATTEMPTS:
            assert failure is not None
            raise failure
    raise AssertionError("the last attempt returned or raised")


def _failure(address: str, port: int, tls: bool, error: OSError) -> StartFailed:
    section = "tls" if tls else "server"
    flag = "" if tls else ", --port"
    return StartFailed(f"cannot listen on {bracketed(address)}:{port}: {error.strerror or error}; choose another by"
                  f" {section}.host and {section}.port{flag} (0 takes a free port)")


def addresses_of(host: str) -> list[str]:
    """The addresses of a host, IPv4 first; of an empty one, all of the machine's. `StartFailed` for an unknown name."""
    if not host:
        return ["0.0.0.0", "::"] if socket.has_ipv6 else ["0.0.0.0"]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartFailed(f"server.host: the host '{host}' is not known: {error}") from None
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def bracketed(address: str) -> str:
    """An address as it stands in a URL."""
    return f"[{address}]" if ":" in address else address
