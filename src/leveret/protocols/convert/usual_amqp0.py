"""Cached 0-9-1 properties for 1.0 messages that differ only in ids and times.

Most senders repeat the same sections and change only message-id, correlation-id and creation-time. The rest, converted by
`to_amqp0`, is cached in pieces, between which these three are inserted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from leveret.broker.message import Message
from leveret.wire.amqp0.errors import EncodeError
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.values import ContentProperties
from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.descriptors import PROPERTIES
from leveret.wire.amqp10.errors import DecodeError

_BASIC: Final = 60
_FLAGS_AT: Final = 12
_CORRELATION_ID: Final = 0x0400
_MESSAGE_ID: Final = 0x0080
_TIMESTAMP: Final = 0x0040
# The properties before correlation-id, between it and message-id, and after timestamp.
_FIRST: Final = ("content_type", "content_encoding", "headers", "delivery_mode", "priority")
_SECOND: Final = ("reply_to", "expiration")
_THIRD: Final = ("type", "user_id", "app_id", "cluster_id")
_PACK_FLAGS: Final = struct.Struct(">H").pack
_MAX_CACHED: Final = 1024
_MAX_HEADER_SIZE: Final = 2048

_Key = tuple[bytes, bytes, bytes, bytes, bytes, bool, int]
# Flags, and the encoded properties of the three groups.
_Pieces = tuple[int, bytes, bytes, bytes]

_cache: dict[_Key, _Pieces | None] = {}


def usual_properties(message: Message, data: bytes, make: Callable[[Message], ContentProperties]) -> bytes | None:
    """Return the encoded flags and properties of a message.

    Args:
        message: the message.
        data: its sections before the body.
        make: converts the properties of a message that is not cached.

    Returns:
        None if the message has neither ids nor a time, or is encoded in an unusual form.
    """
    try:
        return _usual(message, data, make)
    except (IndexError, DecodeError):
        return None


def _usual(message: Message, data: bytes, make: Callable[[Message], ContentProperties]) -> bytes | None:
    end = len(data)
    begin = _properties_at(data, end)
    if begin < 0:
        return None
    pos = begin + 3
    if data[pos] == codes.LIST_8:
        stop = pos + 2 + data[pos + 1]
        count = data[pos + 2]
        pos += 3
    elif data[pos] == codes.LIST_32:
        stop = pos + 5 + int.from_bytes(data[pos + 1 : pos + 5], "big")
        count = int.from_bytes(data[pos + 5 : pos + 9], "big")
        pos += 9
    else:
        return None
    message_id = correlation_id = b""
    milliseconds = -1
    # Offsets around the three fields; the end of the list for absent ones.
    first = second = second_end = third = stop
    for index in range(min(count, 10)):
        start = pos
        code = data[pos]
        if code == codes.NULL:
            pos += 1
        elif code == codes.STRING_8 or code == codes.SYMBOL_8 or code == codes.BINARY_8:
            pos += 2 + data[pos + 1]
        elif code == codes.TIMESTAMP:
            pos += 9
        else:
            pos = value_end(data, pos, stop)
        if index == 0:
            first = pos
            if code == codes.STRING_8:
                message_id = data[start + 1 : pos]
            elif code != codes.NULL:
                return None
        elif index == 5:
            second = start
            second_end = pos
            if code == codes.STRING_8:
                correlation_id = data[start + 1 : pos]
            elif code != codes.NULL:
                return None
        elif index == 9:
            third = start
            if code == codes.TIMESTAMP:
                milliseconds = int.from_bytes(data[start + 1 : pos], "big", signed=True)
            elif code != codes.NULL:
                return None
    if pos > stop or stop > end or not (message_id or correlation_id or milliseconds >= 0):
        return None
    # The check includes the length byte, so ids of 128 bytes and more are not cached.
    if not (message_id.isascii() and correlation_id.isascii()):
        return None
    key = (
        data[:begin],
        data[first:second],
        data[second_end:third],
        data[pos:stop] if count > 10 else b"",
        data[stop:],
        message.persistent,
        message.priority,
    )
    pieces = _cache.get(key)
    if pieces is None:
        if key in _cache:
            return None
        pieces = _split(make(message), bool(message_id), bool(correlation_id), milliseconds >= 0)
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        if end < _MAX_HEADER_SIZE:
            _cache[key] = pieces
        if pieces is None:
            return None
    flags = pieces[0]
    if message_id:
        flags |= _MESSAGE_ID
    if correlation_id:
        flags |= _CORRELATION_ID
    time = b""
    if milliseconds >= 0:
        flags |= _TIMESTAMP
        time = (milliseconds // 1000).to_bytes(8, "big")
    packed: bytes = _PACK_FLAGS(flags)
    return packed + pieces[1] + correlation_id + pieces[2] + message_id + time + pieces[3]


def _properties_at(data: bytes, end: int) -> int:
    """Return the offset of the properties section; -1 if it is missing or encoded in an unusual form."""
    pos = 0
    while pos + 4 < end:
        if data[pos] != codes.DESCRIBED or data[pos + 1] != codes.SMALL_ULONG:
            return -1
        kind = data[pos + 2]
        if kind == PROPERTIES:
            return pos
        if kind > PROPERTIES:
            return -1
        pos = value_end(data, pos + 3, end)
    return -1


def _split(properties: ContentProperties, has_id: bool, has_correlation: bool, has_time: bool) -> _Pieces | None:
    """Return the pieces; None if the converted properties lack an id or a time, or do not fit."""
    if (
        ("message_id" in properties) != has_id
        or ("correlation_id" in properties) != has_correlation
        or ("timestamp" in properties) != has_time
    ):
        return None
    if not properties["headers"]:
        del properties["headers"]
    flags = 0
    pieces: list[bytes] = []
    for group in (_FIRST, _SECOND, _THIRD):
        try:
            encoded = encode_header(_BASIC, 0, {name: properties[name] for name in group if name in properties})
        except EncodeError:
            return None
        flags |= encoded[_FLAGS_AT] << 8 | encoded[_FLAGS_AT + 1]
        pieces.append(encoded[_FLAGS_AT + 2 :])
    return flags, pieces[0], pieces[1], pieces[2]
