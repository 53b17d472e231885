"""Parsers of input before authentication: their time grows with the size of the input, not with its square."""

from __future__ import annotations

import struct
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import pytest

from leveret.cluster.node_handshake import _MESSAGE as NODE_MESSAGE
from leveret.cluster.node_handshake import MAX_UNPROVEN
from leveret.protocols.detect import detect
from leveret.security.accounts import TokenRefused
from leveret.security.mechanisms.amqplain import Amqplain
from leveret.security.mechanisms.base import Blocking, Context, Mechanism
from leveret.security.mechanisms.plain import Plain
from leveret.security.mechanisms.scram import MAX_MESSAGE_LENGTH, ScramSha256
from leveret.security.scram import ScramKeys
from leveret.server.forwarded import forwarded_client
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.fieldtable import decode_table
from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.errors import DecodeError

if TYPE_CHECKING:
    from leveret.security.oauth.tokens import TokenVerifier

# Maximum bytes of a frame before `open`.
MAX_FRAME: Final = 8192
# Seconds of processor time of a measurement, which is repeated until it takes as long.
SHORTEST: Final = 0.002
# The ratio of the lengths of the long and the short input, and the maximum ratio of the times. For a quadratic parser, the
# latter is the square of the former.
LONGER: Final = 16
SLOWER: Final = 4 * LONGER
# Units that are repeated: what parsers look for, escape, nest, and give up on.
UNITS: Final = (
    b"\\", b'"', b'\\"', b";", b"; ", b"=", b"a=b;", b';a="', b"a;b=", b",", b", ", b" ", b"a", b"%", b"%41", b"%ff", b"&",
    b"a=&", b"+", b"/", b"//", b"../", b".", b":", b"[", b"{", b'{"a":', b"[[]", b"\x00", b"\x01", b"\xff", b"\r\n",
    b"\r\n ", b"a:b\r\n", b"\n", b"=3D", b"A" * 3 + b"=", b"\x01a\x00", b"\x01at\x01", b"\x00S\x10", b"\xc0\x08\x01",
    b"\x40", b"\xa3\x01a\x40", b"n=a,", b"=2C",
)  # fmt: skip
_PROXIES: Final = (ip_network("10.0.0.0/8"),)
Parser = Callable[[bytes], object]


def _decode_table(data: bytes) -> object:
    return decode_table(data, 0, len(data), RABBITMQ)


def _open(data: bytes) -> object:
    """Decode the performative `open` with some fields."""
    size = len(data)
    return decode_composite(b"\x00\x53\x10\xd0" + struct.pack(">II", size + 4, size) + data)


def _mechanism(kind: type[Mechanism]) -> Parser:
    context = Context(decode_table=_decode_table, scram_keys=_no_keys)  # type: ignore[arg-type]

    def parse(data: bytes) -> object:
        outcome = kind(context).step(data)
        return outcome.call() if isinstance(outcome, Blocking) else outcome

    return parse


def _no_keys(name: str, mechanism: str) -> ScramKeys:
    return ScramKeys(salt=b"s" * 16, iterations=4096, stored_key=b"k" * 32, server_key=b"k" * 32)


def _request_head(data: bytes) -> None:
    h11 = pytest.importorskip("h11")
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data + b"\r\n\r\n")
    with suppress(h11.RemoteProtocolError):
        connection.next_event()


def _websocket(data: bytes) -> None:
    pytest.importorskip("wsproto")
    from leveret.server.websocket_request import Refused, WebSocketSettings, accept_request

    with suppress(Refused):
        accept_request(data + b"\r\n\r\n", "127.0.0.1", WebSocketSettings("/ws", frozenset()))


def _http(name: str) -> Parser:
    """Return a parser of the HTTP process."""
    pytest.importorskip("starlette")
    from leveret.management.http import app, multipart, session, sign_in, table
    from leveret.management.http.errors import HttpError

    parsers: dict[str, Callable[[str], object]] = {
        "path": lambda text: table.find(app.parts_of(text)),
        "query": lambda text: app.query_of(text.encode("latin-1")),
        "cookies": lambda text: sign_in.read_cookie(text, "leveret_session_15672"),
        "quoted cookie": lambda text: sign_in.read_cookie(f'a="{text}"', "leveret_session_15672"),
        "Basic authentication": lambda text: sign_in.read_basic(text),
        "sign-in form": lambda text: session.read_form(text.encode("latin-1")),
        "parameters of a form with files": lambda text: multipart.read_form(b"", f"multipart/form-data{text}"),
        "parameter in quotes": lambda text: multipart.read_form(b"", f'multipart/form-data;boundary="{text}'),
        "form with files": lambda text: multipart.read_form(text.encode("latin-1"), "multipart/form-data;boundary=a"),
    }
    parser = parsers[name]

    def parse(data: bytes) -> None:
        with suppress(HttpError):
            parser(data.decode("latin-1"))

    return parse


def _token_verifier() -> TokenVerifier:
    pytest.importorskip("joserfc")
    from leveret.security.oauth.tokens import TokenSettings, TokenVerifier

    return TokenVerifier(TokenSettings(audience="broker"))


def _token(data: bytes) -> None:
    from leveret.security.oauth.keys import Keys

    verifier = _token_verifier()
    with suppress(TokenRefused):
        verifier.verify(data, Keys([]))


def _token_header(data: bytes) -> None:
    _token(urlsafe_b64encode(data).rstrip(b"=") + b".e30.AA")


# The parsers, and the maximum size of their input in bytes, as in docs/threat-model.md.
PARSERS: Final[dict[str, tuple[Callable[[], Parser], int]]] = {
    "protocol header": (lambda: detect, 8),
    "field table": (lambda: _decode_table, MAX_FRAME),
    "composite of AMQP 1.0": (lambda: _open, MAX_FRAME),
    "PLAIN": (lambda: _mechanism(Plain), MAX_FRAME),
    "AMQPLAIN": (lambda: _mechanism(Amqplain), MAX_FRAME),
    "SCRAM": (lambda: _mechanism(ScramSha256), MAX_MESSAGE_LENGTH),
    "token": (lambda: _token, 16 << 10),
    "header of a token": (lambda: _token_header, 3 << 10),
    "WebSocket handshake": (lambda: _websocket, 8 << 10),
    "X-Forwarded-For": (lambda: lambda data: forwarded_client([data.decode("latin-1")], "10.0.0.1", _PROXIES), 8 << 10),
    "handshake of a node": (lambda: NODE_MESSAGE.decode, MAX_UNPROVEN),
    "head of an HTTP request": (lambda: _request_head, 64 << 10),
    "path": (lambda: _http("path"), 64 << 10),
    "query": (lambda: _http("query"), 16 << 10),
    "cookies": (lambda: _http("cookies"), 4096),
    "quoted cookie": (lambda: _http("quoted cookie"), 4000),
    "Basic authentication": (lambda: _http("Basic authentication"), 64 << 10),
    "sign-in form": (lambda: _http("sign-in form"), 64 << 10),
    "parameters of a form with files": (lambda: _http("parameters of a form with files"), 64 << 10),
    "parameter in quotes": (lambda: _http("parameter in quotes"), 64 << 10),
    "form with files": (lambda: _http("form with files"), 1 << 20),
}


def cost(parse: Parser, data: bytes) -> float:
    """Return the processor time of parsing some input: the minimum of some measurements."""
    best = float("inf")
    for _ in range(3):
        count = 0
        begin = time.process_time()
        while (spent := time.process_time() - begin) < SHORTEST:
            with suppress(ValueError, WireError, DecodeError):
                parse(data)
            count += 1
        best = min(best, spent / count)
    return best


@pytest.mark.parametrize("name", PARSERS)
def test_time_grows_with_the_size(name: str) -> None:
    make, bound = PARSERS[name]
    parse = make()
    for unit in UNITS:
        short, long = (unit * (size // len(unit)) for size in (bound // LONGER, bound))
        # A busy machine disturbs a measurement, so it is repeated: a quadratic parser is always slow.
        ratios: list[float] = []
        while not ratios or (ratios[-1] > SLOWER and len(ratios) < 3):
            ratios.append(cost(parse, long) / cost(parse, short))
        assert ratios[-1] <= SLOWER, (name, unit, ratios)
