"""What a rule of erasure does to one message: its octets are made anew."""

from __future__ import annotations

from typing import Any

import msgspec

from leveret.broker.message import FORMAT_AMQP1, FORMAT_CLASS_0_9
from leveret.segments.class_masking import with_values
from leveret.segments.content_encodings import compress, decompress
from leveret.segments.erasure import DROP_BODY, MASK, CompiledRule, Counts
from leveret.segments.reader import Stored
from leveret.storage.records import decode_overlay, encode_overlay
from leveret.wire.amqp0.properties import HEADER_MIN_SIZE, decode_header, encode_header, overlay_header
from leveret.wire.amqp1 import descriptors, message
from leveret.wire.amqp1.composites import encode_composite
from leveret.wire.amqp1.decode import decode_value
from leveret.wire.amqp1.encode import encode_pairs
from leveret.wire.amqp1.sections import section_ranges, split
from leveret.wire.amqp1.values import Described, Map

_BASIC = 60
_SIZE = slice(4, 12)
# Properties of 0-9-1 by the fields of AMQP 1.0 that the columns of their names are made of.
_FIELDS = {"content_type": "content_type", "correlation_id": "correlation_id", "reply_to": "reply_to",
           "message_id": "message_id", "type": "subject", "user_id": "user_id"}


def applied(rule: CompiledRule, stored: Stored, encoding: str | None, counts: Counts) -> Stored | None:
    """The message as the rule leaves it, None where it removes it; `encoding` is the content encoding of its body.
    ValueError (WireError, DecodeError) for a header that cannot be read."""
    counts.matched += 1
    if rule.rule.action == DROP_BODY:
        counts.emptied += 1
        return _with_body(stored, b"")
    if rule.rule.action == MASK:
        changed = _masked(rule, stored, encoding, counts)
        counts.masked += changed is not stored
        return changed
    counts.removed += 1
    return None


def _masked(rule: CompiledRule, stored: Stored, encoding: str | None, counts: Counts) -> Stored:
    mask = rule.rule.mask_with
    if rule.mask_paths:
        stored = _masked_body(rule, stored, encoding, counts)
    if stored.format == FORMAT_CLASS_0_9:
        header = with_values(stored.header, rule.mask_headers, rule.mask_properties, mask)
        masked = _masked_overlay(rule.mask_headers, mask, stored)
        return masked._replace(header=header) if header != stored.header else masked
    if rule.mask_headers:
        stored = _masked_headers(rule.mask_headers, mask, stored)
    if rule.mask_properties:
        stored = (_masked_properties0 if stored.format != FORMAT_AMQP1 else _masked_properties1)(
            rule.mask_properties, mask, stored)
    return stored


# Bodies


def _masked_body(rule: CompiledRule, stored: Stored, encoding: str | None, counts: Counts) -> Stored:
    content = stored.body if stored.format != FORMAT_AMQP1 else _content(stored.body)
    content = None if content is None else decompress(content, encoding)
    document: Any = None
    if content is not None:
        try:
            document = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            content = None
    if content is None:
        counts.unread += 1
        return stored
    places = 0
    for path in rule.mask_paths:
        document, count = path.replace(document, rule.rule.mask_with)
        places += count
    return _with_body(stored, compress(msgspec.json.encode(document), encoding)) if places else stored


def _content(body: bytes) -> bytes | None:
    """What the body of AMQP 1.0 holds, None for what is neither octets nor a text."""
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


def _with_body(stored: Stored, content: bytes) -> Stored:
    """The message with another content; of AMQP 1.0 a text stays one, and whatever else there was becomes data."""
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


def _masked_overlay(names: list[str], mask: str, stored: Stored) -> Stored:
    """With what the broker has added."""
    if stored.overlay is None:
        return stored
    overlay = decode_overlay(stored.overlay)
    if not any(name in overlay.headers for name in names):
        return stored
    overlay.headers.update({name: mask for name in names if overlay.headers.get(name) is not None})
    return stored._replace(overlay=encode_overlay(overlay))


def _masked_headers(names: list[str], mask: str, stored: Stored) -> Stored:
    stored = _masked_overlay(names, mask, stored)
    if stored.format != FORMAT_AMQP1:
        present = decode_header(stored.header)[2].get("headers") or {}
        found = {name: mask for name in names if name in present}
        return stored._replace(header=overlay_header(stored.header, found, False)) if found else stored
    sections = split(stored.header)
    if sections.application_properties < 0:
        return stored
    changed = _masked_map(message.application_properties(sections), names, mask)
    if changed is None:
        return stored
    return _with_section(stored, sections.application_properties, sections.application_properties_end,
                         bytes((0, 0x53, descriptors.APPLICATION_PROPERTIES)) + encode_pairs(changed))


def _masked_map(found: Any, names: list[str], mask: str) -> list[tuple[Any, Any]] | None:
    """The pairs with the mask in the place of these values, None where there are none of them."""
    pairs = found.pairs if isinstance(found, Map) else list(found.items())
    if not any(key in names for key, _ in pairs):
        return None
    return [(key, mask if key in names else value) for key, value in pairs]


# Properties


def _masked_properties0(names: list[str], mask: str, stored: Stored) -> Stored:
    _, size, properties = decode_header(stored.header)
    found = [name for name in names if name in properties]
    if not found:
        return stored
    # The table stays octet for octet as it was: its types are not all told apart by their values.
    table = properties.pop("headers", None)
    properties.update(dict.fromkeys(found, mask[:255]))
    header = encode_header(_BASIC, size, {**properties, "headers": {} if table is not None else None})
    if table is not None:
        begin, end = _table(stored.header)
        at, stop = _table(header)
        header = header[:at] + stored.header[begin:end] + header[stop:]
    return stored._replace(header=header)


def _table(header: bytes) -> tuple[int, int]:
    """Where the table of a header that has one begins and ends."""
    flags = header[12]
    pos = HEADER_MIN_SIZE
    if flags & 0x80:
        pos += 1 + header[pos]
    if flags & 0x40:
        pos += 1 + header[pos]
    return pos, pos + 4 + int.from_bytes(header[pos : pos + 4], "big")


def _masked_properties1(names: list[str], mask: str, stored: Stored) -> Stored:
    sections = split(stored.header)
    fields = message.properties(sections)
    if fields is None:
        return stored
    found = [_FIELDS[name] for name in names if name in _FIELDS and getattr(fields, _FIELDS[name]) is not None]
    if not found:
        return stored
    for name in found:
        setattr(fields, name, mask.encode("utf-8") if name == "user_id" else mask)
    return _with_section(stored, sections.properties, sections.properties_end, encode_composite(fields))


def _with_section(stored: Stored, begin: int, end: int, octets: bytes) -> Stored:
    header = stored.header[:begin] + octets + stored.header[end:]
    at = stored.headers_at
    return stored._replace(header=header, headers_at=at + len(header) - len(stored.header) if at >= 0 else at)


