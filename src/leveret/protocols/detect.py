"""Detection of the protocol of a new connection by its first bytes.

`AMQP 0 0 9 1` is 0-9-1, `AMQP 1 1 0 9` is 0-9, `AMQP 0 1 0 0` is AMQP 1.0 without SASL and `AMQP 3 1 0 0` with it.
`AMQP 2 1 0 0` requests TLS (security section 5.2.1), and so does a TLS ClientHello. The broker answers any other header
with a supported one and a close: with that of 1.0 for other versions of AMQP 1 (transport section 2.2), otherwise with that
of 0-9-1 (connection.start.protocol-name). It answers bytes that cannot begin a header at once.
"""

from __future__ import annotations

from typing import Final

HEADER_AMQP091: Final = b"AMQP\x00\x00\x09\x01"
HEADER_AMQP09: Final = b"AMQP\x01\x01\x00\x09"
HEADER_1_0: Final = b"AMQP\x00\x01\x00\x00"
HEADER_1_0_SASL: Final = b"AMQP\x03\x01\x00\x00"
HEADER_1_0_TLS: Final = b"AMQP\x02\x01\x00\x00"
HEADER_SIZE: Final = 8
# Version bytes of AMQP 0-8.
OLDEST: Final = b"\x00\x08\x00"
# TLS handshake record, of any version since SSL 3 (RFC 8446 section 5.1).
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
    """Return the protocol of the header at the start of `data`.

    NEED_MORE means that the header is incomplete, UNKNOWN that it is not supported. TLS_HEADER is the protocol header that
    requests TLS, TLS_HELLO the start of a TLS handshake.
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
    """Return the supported header closest to an unsupported one.

    Args:
        data: the client's header.
        tls: whether the connection supports TLS.
    """
    if len(data) >= HEADER_SIZE and data[:4] == b"AMQP":
        # Versions before 0-8 are answered with 1.0, the newest; 0-8 and 0-9 with 0-9-1.
        if data[4] == 0 and (data[5] >= 1 or data[5:8] < OLDEST):
            return HEADER_1_0
        if data[4] == 2 and tls:
            return HEADER_1_0_TLS
        if data[4] in (2, 3):
            return HEADER_1_0_SASL
    return HEADER_AMQP091
