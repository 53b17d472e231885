"""Masking of headers and properties of the content classes that only 0-9 has: file, stream and message."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp0.classes import FILENAME, MESSAGE, class_of, decode_transfer, encode_transfer
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.values import FieldTable

_SIZE: Final = slice(4, 12)


def mask_header(header: bytes, headers: list[str], properties: list[str], mask: str) -> bytes:
    """Return the header with these headers and properties masked; the same object if it has none of them.

    Raises:
        WireError: The header cannot be decoded.
        EncodeError: The mask does not fit.
    """
    kind = class_of(header)
    message = kind == MESSAGE
    found = decode_transfer(header) if message else decode_header(header, QPID, V0_9)[2]
    table: FieldTable = found.get("application_headers" if message else "headers") or {}
    changed = {name: mask[:255] for name in properties if found.get(name)}
    if FILENAME in headers and found.get("filename"):
        changed["filename"] = mask[:255]
    masked = {name: mask for name in headers if name in table}
    if not changed and not masked:
        return header
    found.update(changed)
    if masked:
        found["application_headers" if message else "headers"] = {**table, **masked}
    size = int.from_bytes(header[_SIZE], "big")
    return encode_transfer(size, found) if message else encode_header(kind, size, found, QPID, V0_9)
