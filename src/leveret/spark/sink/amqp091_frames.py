"""Frames of `basic.publish` for many rows at a time (0-9-1 section 4.2.3).

Parts that several rows share are encoded once: the method frame of each address and, if all rows have equal properties, the
header frame and the start of the body frame for each body size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.encoding import encode_address
from leveret.wire.amqp0.constants import FRAME_BODY, FRAME_HEADER, FRAME_METHOD

if TYPE_CHECKING:
    from leveret.spark.sink.rows import Rows

_METHOD: Final = struct.Struct(">BHIHHH").pack
_HEADER: Final = struct.Struct(">BHIHHQ").pack
_BODY: Final = struct.Struct(">BBHI").pack
_FRAME: Final = struct.Struct(">BHI").pack
_END: Final = b"\xce"
_BASIC: Final = 60
_PUBLISH: Final = 40
_FIXED: Final = 12
# Approximate number of bytes that are framed at a time.
CHUNK_BYTES: Final = 128 << 10
# Addresses and body sizes in the caches.
_MAX_CACHED: Final = 4096


class Framer:
    """Frames messages for one channel.

    Args:
        channel: Channel number.
        payload_max: Maximum payload of a frame, in bytes.
        prefix: Prefix for exchange names.
        mandatory: Whether the broker returns unroutable messages.
    """

    # Single messages are identified by their delivery tags.
    id: Final = ""

    def __init__(self, channel: int, payload_max: int, prefix: str = "", mandatory: bool = False) -> None:
        self._channel = channel
        self._payload_max = payload_max
        self._prefix = prefix
        self._flags = b"\x01" if mandatory else b"\x00"
        self._methods: dict[tuple[str, str], bytes] = {}
        self._heads: dict[int, bytes] = {}
        self._same = b""

    def chunks(self, rows: Rows, maximum: int) -> Iterator[Rows]:
        """Divide rows into pieces of at most `maximum` that are framed at a time."""
        total = len(rows)
        step = max(1, min(maximum, CHUNK_BYTES * total // (rows.size + 200 * total + 1) or 1))
        for start in range(0, total, step):
            yield rows.slice(start, start + step)

    def frames(self, rows: Rows) -> bytes:
        """Return all frames of all rows. Raises EncodeError for a name that is too long."""
        properties = rows.properties
        pieces: list[bytes] = []
        append = pieces.append
        methods = self._methods
        largest = self._payload_max
        if isinstance(properties, bytes):
            if properties != self._same:
                self._same = properties
                self._heads.clear()
            heads = self._heads
            for exchange, key, body in zip(rows.exchanges, rows.routing_keys, rows.bodies, strict=True):
                method = methods.get((exchange, key))
                append(self._method(exchange, key) if method is None else method)
                size = len(body)
                head = heads.get(size)
                append(self._head(size, properties) if head is None else head)
                if 0 < size <= largest:
                    append(body)
                    append(_END)
                elif size:
                    self._split_body(body, pieces)
            return b"".join(pieces)
        channel = self._channel
        for exchange, key, payload, body in zip(rows.exchanges, rows.routing_keys, properties, rows.bodies, strict=True):
            method = methods.get((exchange, key))
            append(self._method(exchange, key) if method is None else method)
            size = len(body)
            append(_HEADER(FRAME_HEADER, channel, _FIXED + len(payload), _BASIC, 0, size))
            append(payload)
            if 0 < size <= largest:
                append(_BODY(0xCE, FRAME_BODY, channel, size))
                append(body)
                append(_END)
            elif size:
                append(_END)
                self._split_body(body, pieces)
            else:
                append(_END)
        return b"".join(pieces)

    def _method(self, exchange: str, key: str) -> bytes:
        if len(self._methods) >= _MAX_CACHED:
            self._methods.clear()
        address = encode_address(self._prefix + exchange, key)
        method = self._methods[exchange, key] = (
            _METHOD(FRAME_METHOD, self._channel, 7 + len(address), _BASIC, _PUBLISH, 0) + address + self._flags + _END
        )
        return method

    def _head(self, size: int, properties: bytes) -> bytes:
        """Return the header frame, and the start of the body frame if there is only one."""
        if len(self._heads) >= _MAX_CACHED:
            self._heads.clear()
        head = _HEADER(FRAME_HEADER, self._channel, _FIXED + len(properties), _BASIC, 0, size) + properties
        head += _BODY(0xCE, FRAME_BODY, self._channel, size) if 0 < size <= self._payload_max else _END
        self._heads[size] = head
        return head

    def _split_body(self, body: bytes, pieces: list[bytes]) -> None:
        view = memoryview(body)
        largest = self._payload_max
        for start in range(0, len(body), largest):
            part = view[start : start + largest]
            pieces.append(_FRAME(FRAME_BODY, self._channel, len(part)))
            pieces.append(part)  # type: ignore[arg-type]
            pieces.append(_END)
