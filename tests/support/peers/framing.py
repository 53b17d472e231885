"""Frames of AMQP 0-9 and 0-9-1, valid or not, and methods of 0-9-1 by pamqp's codec."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from pamqp import commands, frame
from pamqp.header import ContentHeader

HEADER_AMQP091 = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME = 1, 2, 3, 8
FRAME_TYPES = (METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME)
FRAME_END = b"\xce"
# Bytes of a frame around its payload.
OVERHEAD = 8

# pamqp accepts fewer names than RabbitMQ and its clients; here the broker decides.
for _class in vars(commands).values():
    for _method in vars(_class).values() if isinstance(_class, type) else ():
        if isinstance(_method, type) and hasattr(_method, "validate"):
            _method.validate = lambda self: None

Frame = tuple[int, int, bytes]
"""Type, channel and payload."""


def frame_bytes(kind: int, channel: int, payload: bytes, end: bytes = FRAME_END, size: int | None = None) -> bytes:
    """Return a frame from its parts, which need not fit together."""
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + end


def header_frame(
    channel: int, size: int, *, class_id: int = 60, weight: int = 0, flags: int = 0, rest: bytes = b""
) -> bytes:
    """Return a content header; `rest` takes the place of the properties that the flags announce."""
    return frame_bytes(HEADER_FRAME, channel, struct.pack(">HHQH", class_id, weight, size, flags) + rest)


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    """Return a body in as many frames as necessary."""
    size = frame_max - OVERHEAD
    return b"".join(frame_bytes(BODY_FRAME, channel, body[at : at + size]) for at in range(0, len(body), size))


def split(buffer: bytearray) -> Iterator[Frame]:
    """Remove the complete frames from the front of a buffer. Raises AssertionError if one is malformed."""
    start, end = 0, len(buffer)
    while end - start >= OVERHEAD:
        kind, channel, size = struct.unpack_from(">BHI", buffer, start)
        assert kind in FRAME_TYPES, f"frame type {kind}"
        if end - start < size + OVERHEAD:
            break
        assert buffer[start + 7 + size] == FRAME_END[0], "no frame end"
        yield kind, channel, bytes(buffer[start + 7 : start + 7 + size])
        start += size + OVERHEAD
    del buffer[:start]


def short_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return bytes((len(data),)) + data


def decode(kind: int, channel: int, payload: bytes) -> Any:
    """Return the pamqp object of a frame."""
    consumed, number, value = frame.unmarshal(frame_bytes(kind, channel, payload))
    assert (consumed, number) == (len(payload) + OVERHEAD, channel)
    return value


def encode(value: Any, channel: int) -> bytes:
    return bytes(frame.marshal(value, channel))


def content(
    channel: int, method: Any, body: bytes, properties: commands.Basic.Properties | None = None, frame_max: int = 131072
) -> bytes:
    """Return all frames of a method with content."""
    header = ContentHeader(0, len(body), properties or commands.Basic.Properties())
    return encode(method, channel) + encode(header, channel) + body_frames(channel, body, frame_max)
