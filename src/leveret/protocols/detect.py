"""Which protocol a new connection speaks, by its first bytes.

`AMQP 0 0 9 1` is 0-9-1, `AMQP 1 1 0 9` is 0-9, `AMQP 0 1 0 0` is AMQP 1.0 without SASL and `AMQP 3 1 0 0` with it.
`AMQP 2 1 0 0` asks for TLS (security section 5.2.1), and so does a ClientHello without more ado. Other versions of AMQP 1
are answered with the header of the version that is spoken (transport section 2.2), everything else with that of 0-9-1
(connection.start.protocol-name), and a close; a header that cannot be one any more is not waited for.
"""

from __future__ import annotations

from typing import Final

HEADER_AMQP091: Final = b"AMQP\x00\x00\x09\x01"
HEADER_AMQP09: Final = b"AMQP\x01\x01\x00\x09"
HEADER_1_0: Final = b"AMQP\x00\x01\x00\x00"
HEADER_1_0_SASL: Final = b"AMQP\x03\x01\x00\x00"
HEADER_1_0_TLS: Final = b"AMQP\x02\x01\x00\x00"
HEADER_SIZE: Final = 8
# The version of AMQP 0-8.
OLDEST: Final = b"\x00\x08\x00"
# A record of TLS that carries a handshake, of any version from SSL 3 on (RFC 8446 section 5.1).
TLS_RECORD: Final = b"\x16\x03"

NEED_MORE: Final = 0
V0_9_1: Final = 1
UNKNOWN: Final = 2
V1_0: Final = 3
V1_0_SASL: Final = 4
TLS_HEADER: Final = 5
TLS_HELLO: Final = 6
V0_9: Final = 7


def detect(data: bytes) -> int:
    """The protocol whose header `data` begins with, NEED_MORE while it may be one, UNKNOWN where it cannot.

    TLS_HEADER is the protocol header that asks for TLS, TLS_HELLO the beginning of TLS itself.
    """
    start = data[:HEADER_SIZE]
    if len(start) == HEADER_SIZE:
        if start == HEADER_AMQP091:
            return V0_9_1
        if start == HEADER_AMQP09:
            return V0_9
        if start == HEADER_1_0:
            return V1_0
        if start == HEADER_1_0_SASL:
            return V1_0_SASL
        if start == HEADER_1_0_TLS:
            return TLS_HEADER
    if start[:2] == TLS_RECORD[: len(start)]:
        return TLS_HELLO if len(start) >= len(TLS_RECORD) else NEED_MORE
    if len(start) < HEADER_SIZE and start[:4] == b"AMQP"[: len(start)]:
        return NEED_MORE
    return UNKNOWN


def supported_header(data: bytes, tls: bool = False) -> bytes:
    """What answers a header that is UNKNOWN, or one of TLS where there is none: the nearest of those that are known.

    `tls` says whether TLS can be had on this connection.
    """
    if len(data) >= HEADER_SIZE and data[:4] == b"AMQP":
        # Versions that are older than all others are answered with the newest; 0-8 and 0-9 are near to 0-9-1.
        if data[4] == 0 and (data[5] >= 1 or data[5:8] < OLDEST):
            return HEADER_1_0
        if data[4] == 2 and tls:
            return HEADER_1_0_TLS
        if data[4] in (2, 3):
            return HEADER_1_0_SASL
    return HEADER_AMQP091
