"""Applies rules of erasure to single messages by re-encoding them."""

from __future__ import annotations

from typing import Final

import msgspec

from leveret.broker.message import FORMAT_AMQP1, FORMAT_CLASS_AMQP09
from leveret.segments.content_encodings import compress, decompress
from leveret.segments.erasure import DROP_BODY, MASK, CompiledRule, Counts
from leveret.segments.reader import StoredMessage
from leveret.segments.typed_json import Document
from leveret.storage.records import decode_overlay, encode_overlay
from leveret.wire.amqp0.classes import FILENAME, MESSAGE, class_of, decode_transfer, encode_transfer
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import HEADER_MIN_SIZE, decode_header, encode_header, overlay_header
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.values import FieldTable
from leveret.wire.amqp10 import descriptors, message
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.decode import decode_value
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.sections import section_ranges, split
from leveret.wire.amqp10.values import Checked, Described, Map, Pairs

_BASIC = 60
_SIZE = slice(4, 12)
# Columns to the AMQP 1.0 properties that they are built from.
_AMQP10_FIELDS = {
    "content_type": "content_type",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "message_id": "message_id",
    "type": "subject",
    "user_id": "user_id",
}


def apply_rule(rule: CompiledRule, stored: StoredMessage, encoding: str | None, counts: Counts) -> StoredMessage | None:
    """Apply a rule to a message.

    Args:
        rule: A rule that the message meets.
        stored: The message.
        encoding: Content encoding of its body.
        counts: Updated with what was done.

    Returns:
        The changed message, the same object if nothing was masked, or None if the rule removes it.

    Raises:
        ValueError: The header cannot be decoded (WireError, DecodeError).
    """
    counts.matched += 1
    if rule.rule.action == DROP_BODY:
        counts.emptied += 1
        return _replace_body(stored, b"")
    if rule.rule.action == MASK:
        changed = _mask(rule, stored, encoding, counts)
        counts.masked += changed is not stored
        return changed
    counts.removed += 1
    return None


def _mask(rule: CompiledRule, stored: StoredMessage, encoding: str | None, counts: Counts) -> StoredMessage:
    mask = rule.rule.mask_with
    if rule.mask_paths:
        stored = _mask_body(rule, stored, encoding, counts)
    if stored.format == FORMAT_CLASS_AMQP09:
        header = mask_amqp09_header(stored.header, rule.mask_headers, rule.mask_properties, mask)
        masked = _mask_overlay(rule.mask_headers, mask, stored)
        return masked._replace(header=header) if header != stored.header else masked
    if rule.mask_headers:
        stored = _mask_headers(rule.mask_headers, mask, stored)
    if rule.mask_properties:
        stored = (_mask_amqp0_properties if stored.format != FORMAT_AMQP1 else _mask_amqp10_properties)(
            rule.mask_properties, mask, stored
        )
    return stored


# Bodies


def _mask_body(rule: CompiledRule, stored: StoredMessage, encoding: str | None, counts: Counts) -> StoredMessage:
    content = stored.body if stored.format != FORMAT_AMQP1 else _content(stored.body)
    content = None if content is None else decompress(content, encoding)
    document: Document = None
    if content is not None:
        try:
            document = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            content = None
    if content is None:
        counts.unreadable += 1
        return stored
    places = 0
    for path in rule.mask_paths:
        document, count = path.replace(document, rule.rule.mask_with)
        places += count
    return _replace_body(stored, compress(msgspec.json.encode(document), encoding)) if places else stored


def _content(body: bytes) -> bytes | None:
    """Return the content of an AMQP 1.0 body; None if it is neither bytes nor text."""
    pieces: list[bytes] = []
    for _, begin, end in section_ranges(body):
        value = decode_value(body, begin, end)[0]
        inner = value.value if isinstance(value, Described) else None
        if isinstance(inner, str):
            inner = inner.encode("utf-8")
        if not isinstance(inner, bytes):
            return None
        pieces.append(inner)
    return b"".join(pieces)


def _replace_body(stored: StoredMessage, content: bytes) -> StoredMessage:
    """Replace the content of the body. In AMQP 1.0 a text stays a text, and any other body becomes data."""
    if stored.format != FORMAT_AMQP1:
        header = stored.header
        if len(header) >= HEADER_MIN_SIZE:
            header = header[: _SIZE.start] + len(content).to_bytes(8, "big") + header[_SIZE.stop :]
        return stored._replace(header=header, body=content)
    ranges = section_ranges(stored.body)
    if content and len(ranges) == 1 and ranges[0][0] == descriptors.AMQP_VALUE:
        value = decode_value(stored.body)[0]
        if isinstance(value, Described) and isinstance(value.value, str):
            return stored._replace(body=message.encode_body_value(content.decode("utf-8")))
    return stored._replace(body=message.encode_data(content))


# Headers


def _mask_overlay(names: list[str], mask: str, stored: StoredMessage) -> StoredMessage:
    """Mask headers that the broker added."""
    if stored.overlay is None:
        return stored
    overlay = decode_overlay(stored.overlay)
    if not any(name in overlay.headers for name in names):
        return stored
    overlay.headers.update({name: mask for name in names if overlay.headers.get(name) is not None})
    return stored._replace(overlay=encode_overlay(overlay))


def _mask_headers(names: list[str], mask: str, stored: StoredMessage) -> StoredMessage:
    stored = _mask_overlay(names, mask, stored)
    if stored.format != FORMAT_AMQP1:
        present = decode_header(stored.header)[2].get("headers") or {}
        found: FieldTable = {name: mask for name in names if name in present}
        return stored._replace(header=overlay_header(stored.header, found, False)) if found else stored
    sections = split(stored.header)
    if sections.application_properties < 0:
        return stored
    changed = _mask_pairs(message.application_properties(sections), names, mask)
    if changed is None:
        return stored
    return _replace_section(
        stored,
        sections.application_properties,
        sections.application_properties_end,
        bytes((0, 0x53, descriptors.APPLICATION_PROPERTIES)) + encode_pairs(changed),
    )


def _mask_pairs(found: Checked, names: list[str], mask: str) -> Pairs | None:
    """Return the pairs with these values masked; None if it has none of them."""
    pairs = found.pairs if isinstance(found, Map) else list(found.items())
    if not any(key in names for key, _ in pairs):
        return None
    return [(key, mask if key in names else value) for key, value in pairs]


# Properties


def _mask_amqp0_properties(names: list[str], mask: str, stored: StoredMessage) -> StoredMessage:
    _, size, properties = decode_header(stored.header)
    found = [name for name in names if name in properties]
    if not found:
        return stored
    # The table is copied byte for byte: its values alone do not determine their types.
    table = properties.pop("headers", None)
    properties.update(dict.fromkeys(found, mask[:255]))
    header = encode_header(_BASIC, size, {**properties, "headers": {} if table is not None else None})
    if table is not None:
        begin, end = _table_range(stored.header)
        at, stop = _table_range(header)
        header = header[:at] + stored.header[begin:end] + header[stop:]
    return stored._replace(header=header)


def _table_range(header: bytes) -> tuple[int, int]:
    """Return where the field table of a header begins and ends; the header must have one."""
    flags = header[12]
    pos = HEADER_MIN_SIZE
    if flags & 0x80:
        pos += 1 + header[pos]
    if flags & 0x40:
        pos += 1 + header[pos]
    return pos, pos + 4 + int.from_bytes(header[pos : pos + 4], "big")


def _mask_amqp10_properties(names: list[str], mask: str, stored: StoredMessage) -> StoredMessage:
    sections = split(stored.header)
    fields = message.properties(sections)
    if fields is None:
        return stored
    found = [
        _AMQP10_FIELDS[name]
        for name in names
        if name in _AMQP10_FIELDS and getattr(fields, _AMQP10_FIELDS[name]) is not None
    ]
    if not found:
        return stored
    for name in found:
        setattr(fields, name, mask.encode("utf-8") if name == "user_id" else mask)
    return _replace_section(stored, sections.properties, sections.properties_end, encode_composite(fields))


def _replace_section(stored: StoredMessage, begin: int, end: int, encoded: bytes) -> StoredMessage:
    header = stored.header[:begin] + encoded + stored.header[end:]
    at = stored.headers_at
    return stored._replace(header=header, headers_at=at + len(header) - len(stored.header) if at >= 0 else at)


_SIZE_FIELD: Final = slice(4, 12)


def mask_amqp09_header(header: bytes, headers: list[str], properties: list[str], mask: str) -> bytes:
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
    size = int.from_bytes(header[_SIZE_FIELD], "big")
    return encode_transfer(size, found) if message else encode_header(kind, size, found, QPID, V0_9)
