"""Filters of stream readers: filter values (`x-stream-filter`) and routing keys (`x-stream-filter-routing-key`).

Most messages do not match, so a check of their bytes skips them: the routing key is in the address, and a header that does
not contain the bytes of a wanted value is not decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Effort
from leveret.broker.exchanges.topic import TopicExchange
from leveret.broker.message import FORMAT_AMQP1, Message, Overlay
from leveret.broker.values import FieldTable, FieldValue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

FILTER: Final = "x-stream-filter"
FILTER_VALUE: Final = "x-stream-filter-value"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
ROUTING_KEYS: Final = "x-stream-filter-routing-key"

_VALUE_BYTES: Final = FILTER_VALUE.encode()
# Type of a string value after the name: the types of a field table, and of AMQP 1.0.
_TEXTS_0: Final = b"S"
_TEXTS_1: Final = b"\xa1\xb1\xa3\xb3"
# An empty string: its type and its size.
_EMPTY_0: Final = b"S\x00\x00\x00\x00"
_EMPTY_1: Final = (b"\xa1\x00", b"\xa3\x00", b"\xb1\x00\x00\x00\x00", b"\xb3\x00\x00\x00\x00")
_MAX_CACHED_VALUES: Final = 4096


class StreamFilter:
    """The filter of one reader. Raises PreconditionFailed for invalid arguments.

    any         whether it accepts everything
    values      accepted filter values, None for any; with `unfiltered` also messages that have none, or an empty one
    keys        patterns of accepted routing keys, None for any
    """

    __slots__ = ("_known", "_needles", "any", "keys", "unfiltered", "values")

    def __init__(self, arguments: FieldTable) -> None:
        unfiltered = arguments.get(MATCH_UNFILTERED, False)
        if not isinstance(unfiltered, bool):
            raise PreconditionFailed(f"invalid arg '{MATCH_UNFILTERED}': received '{unfiltered!s}', expected true or false")
        self.unfiltered = unfiltered
        self.values: frozenset[str] | None = None
        self._needles: list[bytes] = []
        self.keys: TopicExchange | None = None
        self._known: dict[bytes, bool] = {}
        wanted = _texts(FILTER, arguments.get(FILTER))
        if wanted:
            self.values = frozenset(wanted)
            self._needles = [value.encode("utf-8", "surrogateescape") for value in wanted]
            if any("\ufffd" in value for value in wanted):
                self._needles = [b""]  # other bytes may decode to the replacement character
        patterns = _texts(ROUTING_KEYS, arguments.get(ROUTING_KEYS))
        if patterns:
            self.keys = TopicExchange(ROUTING_KEYS)
            for pattern in patterns:
                self.keys.bind(self.keys, pattern, {})
        self.any = not wanted and not patterns

    def wants(self, broker: Broker, message: Message, overlay: Overlay | None) -> bool:
        """Return whether the reader accepts a message. `overlay` has the broker's changes to it."""
        if self.keys is not None:
            address = message.address
            if overlay is not None and overlay.address is not None:
                address = overlay.address
            known = self._known.get(address)
            if known is None:
                known = self._match(self.keys, address)
            if not known:
                return False
        return self.values is None or self._has_value(broker, message, self.values)

    def _match(self, keys: TopicExchange, address: bytes) -> bool:
        found = bool(keys.match(address[2 + address[0] :].decode("utf-8", "surrogateescape"), {}, "", Effort()))
        if len(self._known) >= _MAX_CACHED_VALUES:
            self._known.clear()
        self._known[address] = found
        return found

    def _has_value(self, broker: Broker, message: Message, values: frozenset[str]) -> bool:
        header = message.header
        at = header.find(_VALUE_BYTES)
        if at < 0:
            return self.unfiltered
        after = at + len(_VALUE_BYTES)
        kind = header[after : after + 1]
        if kind and kind in (_TEXTS_1 if message.format == FORMAT_AMQP1 else _TEXTS_0):
            for needle in self._needles:
                if needle in header:
                    break
            else:
                return self.unfiltered and header.startswith(
                    _EMPTY_1 if message.format == FORMAT_AMQP1 else _EMPTY_0, after
                )
        value = broker.decode_headers(message).get(FILTER_VALUE)
        text = "" if value is None else _text(value)
        return (self.unfiltered and not text) or (value is not None and text in values)


def _texts(name: str, wanted: FieldValue) -> list[str]:
    """Return a string or a list of strings as a list; an empty one for None."""
    if wanted is None:
        return []
    values = wanted if isinstance(wanted, (list, tuple)) else (wanted,)
    if not values or not all(isinstance(value, (str, bytes)) for value in values):
        raise PreconditionFailed(
            f"invalid arg '{name}': received '{str(wanted)[:60]}', expected a string or a list of strings"
        )
    return [_text(value) for value in values]


def _text(value: FieldValue) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
