"""Headers before encoded values: those of serializers for schema registries, and of Avro's single-object encoding."""

from __future__ import annotations

from typing import Final

from leveret.management.decoding.jobs import Framing

# The magic byte, and the id of the schema in 4 bytes.
_MAGIC: Final = b"\x00"
_HEADER_SIZE: Final = 5
# The marker, and the fingerprint of the schema in 8 bytes.
_MARKER: Final = b"\xc3\x01"
_MARKED_SIZE: Final = 10
_MAX_INDEXES: Final = 32


def schema_id(payload: bytes) -> int | None:
    """Return the id of a schema in a registry with which a payload may begin."""
    if len(payload) < _HEADER_SIZE or not payload.startswith(_MAGIC):
        return None
    return int.from_bytes(payload[1:_HEADER_SIZE], "big")


def split(payload: bytes) -> tuple[Framing, bytes]:
    """Return the header with which a payload may begin, and the bytes after it."""
    number = schema_id(payload)
    if number is not None:
        return Framing(name="confluent", schema_id=number), payload[_HEADER_SIZE:]
    if payload.startswith(_MARKER) and len(payload) >= _MARKED_SIZE:
        return Framing(name="single-object", detail=payload[2:_MARKED_SIZE].hex()), payload[_MARKED_SIZE:]
    return Framing(), payload


def split_indexes(body: bytes) -> tuple[list[int], bytes]:
    """Return the message indexes behind the id of a Protobuf schema, and the bytes after them. Raises `ValueError`."""
    number, at = _read_integer(body, 0)
    if number == 0:  # short for the first message
        return [0], body[at:]
    if not 0 < number <= _MAX_INDEXES:
        raise ValueError(f"the header has {number} message indexes; expected at most {_MAX_INDEXES}")
    indexes = []
    for _ in range(number):
        index, at = _read_integer(body, at)
        indexes.append(index)
    return indexes, body[at:]


def _read_integer(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag integer of variable length, and the position behind it. Raises `ValueError`."""
    value = 0
    for shift in range(0, 70, 7):
        if at == len(body):
            raise ValueError("the payload ends inside the message indexes of its header")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("the header has a message index of more than 10 bytes")
