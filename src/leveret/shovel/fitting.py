"""Properties of messages that another protocol cannot represent.

A shovel must not stop at a message because of them: it would try the same message forever. As the broker does for
consumers of another protocol, it leaves them out, or changes headers into text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Final, TypeAlias

from leveret.client.errors import InvalidMessage
from leveret.client.properties import NAMES, Headers, Properties, PropertyValue

# Encodes properties for a protocol. Raises `InvalidMessage`.
Encode: TypeAlias = Callable[[Properties], bytes]

# Maximum number of values in the headers of a message, which are tried one by one: these take 13 ms. A message with more of
# them, one of which does not fit, stops the shovel.
MAX_VALUES: Final = 256
_MIN_INTEGER: Final = -(1 << 63)
_MAX_INTEGER: Final = (1 << 63) - 1


def encode_fitting(properties: Properties, encode: Encode) -> bytes:
    """Return the encoded properties, without those that do not fit.

    Raises:
        InvalidMessage: They do not fit because of their size or number.
    """
    try:
        return encode(properties)
    except InvalidMessage:
        if _count(properties.headers) > MAX_VALUES:
            raise
    kept: dict[str, PropertyValue] = {}
    for name in NAMES:
        value = getattr(properties, name)
        if name == "headers":
            kept[name] = _fitting_headers(value or {}, encode) or None
        elif value is not None and _fits({name: value}, encode):
            kept[name] = value
    return encode(Properties(**kept))


def _fitting_headers(headers: Headers, encode: Encode) -> Headers:
    kept: Headers = {}
    for name, value in headers.items():
        for other, text in _forms(name, value):
            if _fits({"headers": {other: text}}, encode):
                kept[other] = text
                break
    return kept


def _forms(name: str, value: PropertyValue) -> Iterator[tuple[str, PropertyValue]]:
    """Yield a header as it is, with text for what may not fit, and with a name in ASCII."""
    yield name, value
    text = _as_text(value)
    yield _as_text(name), text
    yield name.encode("ascii", "backslashreplace").decode("ascii"), text


def _fits(properties: dict[str, PropertyValue], encode: Encode) -> bool:
    try:
        encode(Properties(**properties))
    except InvalidMessage:
        return False
    return True


def _count(value: PropertyValue) -> int:
    """Return the number of values in a value, with itself."""
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _as_text(value: PropertyValue) -> PropertyValue:
    """Return a value with text in Unicode, and text in place of numbers that some protocols do not have."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, Decimal) or (type(value) is int and not _MIN_INTEGER <= value <= _MAX_INTEGER):
        return str(value)
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    return value
