"""Which protocol a new connection speaks, by its first octets.

`AMQP 0 0 9 1` is 0-9-1. Everything else is answered with that header and a close (0-9-1 section 2.2.4,
connection.start.protocol-name); a header that cannot be one any more is not waited for.
"""

from __future__ import annotations

from typing import Final

HEADER_0_9_1: Final = b"AMQP\x00\x00\x09\x01"
HEADER_SIZE: Final = 8

NEED_MORE: Final = 0
V0_9_1: Final = 1
UNKNOWN: Final = 2


def detect(data: bytes) -> int:
    """V0_9_1 where `data` begins with its header, NEED_MORE while it may, UNKNOWN where it cannot."""
    start = data[:HEADER_SIZE]
    if len(start) == HEADER_SIZE:
        return V0_9_1 if start == HEADER_0_9_1 else UNKNOWN
    if start[:4] == b"AMQP"[: len(start)]:
        return NEED_MORE
    return UNKNOWN
