"""Message annotations `x-exchange` and `x-routing-key`, which RabbitMQ adds to deliveries.

RabbitMQ's clients require annotations in every message.
"""

from __future__ import annotations

from typing import Final

from leveret.protocols.convert.annotations import merged
from leveret.protocols.convert.values import text_of
from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.values import Symbol

EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
_NAME_BYTES: Final = (EXCHANGE.encode(), ROUTING_KEY.encode())
_SECTION: Final = b"\x00\x53\x72"
_MAX_CACHED: Final = 1024


class Origin:
    """The two annotations of an address: encoded as a section, and as pairs for an existing section."""

    __slots__ = ("exchange", "pairs", "routing_key", "section")

    def __init__(self, address: bytes) -> None:
        length = address[0]
        self.exchange = text_of(address[1 : 1 + length].decode("utf-8", "surrogateescape"))
        self.routing_key = text_of(address[2 + length :].decode("utf-8", "surrogateescape"))
        encoded = encode_pairs([(Symbol(EXCHANGE), self.exchange), (Symbol(ROUTING_KEY), self.routing_key)])
        self.section = _SECTION + encoded
        self.pairs = encoded[3:] if encoded[0] == codes.MAP_8 else encoded[9:]


_cache: dict[bytes, Origin] = {}


def annotate(data: bytes, address: bytes) -> bytes:
    """Return the sections from the message annotations on, with the annotations of the address added."""
    origin = _cache.get(address)
    if origin is None:
        origin = Origin(address)
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[address] = origin
    if not data:
        return origin.section
    if data[1] != codes.SMALL_ULONG:
        return _general(data, origin)  # descriptors in another form
    if not data.startswith(_SECTION):
        return origin.section + data
    stop = value_end(data, 3, len(data))
    known = data[3:stop]
    if known[0] == codes.MAP_8:
        pairs = known[3:] + origin.pairs
        count = known[2] + 4
    elif known[0] == codes.MAP_32:
        pairs = known[9:] + origin.pairs
        count = int.from_bytes(known[5:9], "big") + 4
    else:
        return _general(data, origin)
    # A client that forwards a message may have kept these annotations.
    if _NAME_BYTES[0] in known or _NAME_BYTES[1] in known:
        return _general(data, origin)
    if len(pairs) < 255 and count < 256:
        return _SECTION + bytes((codes.MAP_8, len(pairs) + 1, count)) + pairs + data[stop:]
    return (
        _SECTION
        + bytes((codes.MAP_32,))
        + (len(pairs) + 4).to_bytes(4, "big")
        + count.to_bytes(4, "big")
        + pairs
        + data[stop:]
    )


def _general(data: bytes, origin: Origin) -> bytes:
    try:
        return merged(data, {EXCHANGE: origin.exchange, ROUTING_KEY: origin.routing_key})
    except (DecodeError, EncodeError):
        return data  # malformed annotations
