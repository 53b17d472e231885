"""The request for a WebSocket, and its response (RFC 6455 section 4.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11
from wsproto.utilities import generate_accept_token

from leveret.server.forwarded import Network, forwarded_client

# The name of the AMQP WebSocket binding 1.0, and that of its draft, which Azure's clients offer.
SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")
VERSION: Final = "13"
ANY_ORIGIN: Final = "*"
# Characters of a client's value in a message.
MAX_SHOWN: Final = 100

_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==")


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """Settings of a listener.

    Attributes:
        path: The path of the WebSocket.
        origins: The origins of pages that may connect, in lower case; "*" means every origin.
        proxies: The networks of proxies that name the clients for which they connect.
    """

    path: str
    origins: frozenset[str]
    proxies: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted request.

    Attributes:
        response: The response.
        client: The address and port of the client that a trusted proxy names; None if none does.
    """

    response: bytes
    client: tuple[str, int] | None


class Refused(Exception):
    """A request for a WebSocket is refused.

    Attributes:
        status: The status of the response.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def _values(request: h11.Request, name: bytes) -> list[str]:
    """Return the values of a header, which may be repeated."""
    return [value.decode("ascii", "backslashreplace") for given, value in request.headers if given == name]


def _tokens(request: h11.Request, name: bytes) -> list[str]:
    """Return the values of a header that is a list."""
    return [token.strip() for value in _values(request, name) for token in value.split(",")]


def _key_of(request: h11.Request) -> str:
    """Return the key of a request. Raises `Refused` if it is not one for a WebSocket (RFC 6455 section 4.2.1)."""
    if request.http_version != b"1.1":
        version = request.http_version.decode()
        raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, f"the request is HTTP/{version}; expected HTTP/1.1")
    for name, expected in ((b"Connection", "Upgrade"), (b"Upgrade", "websocket")):
        if expected.lower() not in (token.lower() for token in _tokens(request, name.lower())):
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"not a request for a WebSocket; expected the header '{name.decode()}: {expected}'"
            )
    versions = _values(request, b"sec-websocket-version")
    if versions != [VERSION]:
        status = HTTPStatus.UPGRADE_REQUIRED if versions else HTTPStatus.BAD_REQUEST
        raise Refused(status, f"the version is {_shown(', '.join(versions))}; expected {VERSION} (Sec-WebSocket-Version)")
    keys = _values(request, b"sec-websocket-key")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise Refused(HTTPStatus.BAD_REQUEST, "invalid Sec-WebSocket-Key; expected 16 bytes in Base64")
    return keys[0]


def _check_target(request: h11.Request, settings: WebSocketSettings) -> None:
    """Raise `Refused` if a request is for another path, or from a page that may not connect."""
    path = request.target.decode("ascii", "backslashreplace").partition("?")[0]
    if path != settings.path:
        raise Refused(
            HTTPStatus.NOT_FOUND, f"no WebSocket at {_shown(path)}; expected {settings.path!r} ('websocket.path')"
        )
    for origin in _values(request, b"origin"):
        if ANY_ORIGIN not in settings.origins and origin.lower() not in settings.origins:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"pages of the origin {_shown(origin)} may not connect; expected one of 'websocket.allowed_origins'",
            )


def _subprotocol(request: h11.Request) -> str | None:
    """Return the subprotocol of a WebSocket; None if the client offers none. Raises `Refused` for other ones."""
    offered = _tokens(request, b"sec-websocket-protocol")
    for name in offered:
        if name in SUBPROTOCOLS:
            return name
    if offered:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"the subprotocol is {_shown(', '.join(offered))}; expected {SUBPROTOCOLS[0]!r} (Sec-WebSocket-Protocol)",
        )
    return None


def _client_of(request: h11.Request, peer: str, settings: WebSocketSettings) -> tuple[str, int] | None:
    """Return the client that a trusted proxy names; None if none does. Raises `Refused` if it names something else."""
    values = _values(request, b"x-forwarded-for")
    try:
        return forwarded_client(values, peer, settings.proxies)
    except ValueError as error:
        shown = _shown(", ".join(values))
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"X-Forwarded-For of the proxy {peer} is {shown}; {error} ('websocket.trusted_proxies')",
        ) from None


def accept_request(head: bytes, peer: str, settings: WebSocketSettings) -> Accepted:
    """Accept a request for a WebSocket.

    Args:
        head: The request line and the headers.
        peer: The address of the other end of the socket.
        settings: The requests that are accepted.

    Raises:
        Refused: The request is not accepted.
    """
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(head)
    try:
        request = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"not a request for a WebSocket: {str(error)[:MAX_SHOWN]}") from None
    assert isinstance(request, h11.Request)
    key = _key_of(request)
    _check_target(request, settings)
    subprotocol = _subprotocol(request)
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {generate_accept_token(key.encode()).decode()}",
    ]
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return Accepted("\r\n".join([*lines, "\r\n"]).encode(), _client_of(request, peer, settings))


def refusal(refused: Refused) -> bytes:
    """Return the response that refuses a request."""
    body = f"{refused}\n".encode()
    status = HTTPStatus(refused.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"X-Content-Type-Options: nosniff\r\nSec-WebSocket-Version: 13\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
