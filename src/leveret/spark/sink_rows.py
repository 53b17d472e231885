"""Rows of a sink on their way to the broker: what both protocols' encoders make, and what is common to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.segments import typed_json

if TYPE_CHECKING:
    import pyarrow as pa

# Names of exchanges, routing keys and most properties of 0-9-1 are short strings.
LONGEST: Final = 255
_LONGEST_TEXT: Final = 4096


class Rows:
    """Encoded messages of one Arrow batch, in order, without those that cannot be published.

    exchanges, routing_keys   where each goes
    properties   each one's properties as its protocol has them: the payload of a header frame behind the body's size
                 (0-9-1), or the sections before the body (1.0). One object for all, or a list
    bodies       1.0: the encoded sections from the body on
    contents     what the broker counts as the bodies: 1.0: what is in the sections; the same object otherwise
    size         octets of all bodies
    """

    __slots__ = ("bodies", "contents", "exchanges", "properties", "routing_keys", "size")

    def __init__(self, exchanges: list[str], routing_keys: list[str], properties: bytes | list[bytes],
                 bodies: list[bytes], contents: list[bytes] | None = None) -> None:
        self.contents = bodies if contents is None else contents
        self.exchanges = exchanges
        self.routing_keys = routing_keys
        self.properties = properties
        self.bodies = bodies
        self.size = sum(map(len, bodies))

    def __len__(self) -> int:
        return len(self.bodies)

    def slice(self, start: int, stop: int) -> Rows:
        """Some of them."""
        if start == 0 and stop >= len(self.bodies):
            return self
        properties = self.properties if isinstance(self.properties, bytes) else self.properties[start:stop]
        contents = None if self.contents is self.bodies else self.contents[start:stop]
        return Rows(self.exchanges[start:stop], self.routing_keys[start:stop], properties, self.bodies[start:stop],
                    contents)

    def at(self, index: int) -> Rows:
        return self.slice(index, index + 1)


class BadRow:
    """A row that cannot be published.

    index    in its batch
    reason   for people
    exchange, routing_key, body   as far as they are known
    """

    __slots__ = ("body", "exchange", "index", "reason", "routing_key")

    def __init__(self, index: int, reason: str, exchange: str, routing_key: str, body: bytes) -> None:
        self.index = index
        self.reason = reason
        self.exchange = exchange
        self.routing_key = routing_key
        self.body = body

    def headers(self) -> dict[str, str]:
        """What a dead letter that is made of it says of it."""
        return {"x-exception-message": self.reason[:_LONGEST_TEXT], "x-original-exchange": self.exchange[:_LONGEST_TEXT],
                "x-original-routing-key": self.routing_key[:_LONGEST_TEXT]}


class Limits:
    """What the connection and the exchange allow.

    body      octets of a body
    exchange  octets of an exchange's name
    header    octets of the properties of one message
    """

    __slots__ = ("body", "exchange", "header")

    def __init__(self, body: int = 128 << 20, exchange: int = LONGEST, header: int = 131064 - 12) -> None:
        self.body = body
        self.exchange = exchange
        self.header = header


class Bad:
    """Why rows cannot be published, by their index; the first reason of each counts."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def add(self, index: int, reason: str) -> None:
        self.reasons.setdefault(index, reason)


class Target:
    """Where rows go: the options win over the columns."""

    __slots__ = ("exchange", "routing_key")

    def __init__(self, exchange: str | None, routing_key: str | None) -> None:
        self.exchange = exchange
        self.routing_key = routing_key

    def addresses(self, batch: pa.RecordBatch, limits: Limits, bad: Bad) -> tuple[list[str], list[str]]:
        """Of each row. Those that fit nowhere are in `bad`."""
        rows = batch.num_rows
        exchanges = self._of("exchange", self.exchange, batch)
        keys = self._of("routing_key", self.routing_key, batch)
        found_exchanges = [""] * rows if exchanges is None else exchanges
        for index, exchange in _misfits(found_exchanges, limits.exchange):
            bad.add(index, "exchange: null; expected a name, \"\" for the default exchange" if exchange is None else
                    f"exchange: a name of {len(exchange.encode())} octets; at most {limits.exchange} can be published to")
            found_exchanges[index] = ""
        found_keys: list[str] = [""] * rows if keys is None else [key if key is not None else "" for key in keys]
        for index, key in _misfits(found_keys, LONGEST):
            bad.add(index, f"routing_key: {len(key.encode())} octets; expected {LONGEST} at most")
            found_keys[index] = ""
        return found_exchanges, found_keys

    @staticmethod
    def _of(name: str, option: str | None, batch: pa.RecordBatch) -> list[Any] | None:
        if option is not None:
            return [option] * batch.num_rows
        if name not in batch.schema.names:
            return None
        found: list[Any] = batch.column(name).to_pylist()
        return found


def _misfits(names: list[Any], longest: int) -> list[tuple[int, Any]]:
    distinct = {name for name in set(names) if name is None or (len(name) > longest // 4 and len(name.encode()) > longest)}
    if not distinct:
        return []
    return [(index, name) for index, name in enumerate(names) if name in distinct]


def bodies_of(batch: pa.RecordBatch, limits: Limits, bad: Bad) -> list[bytes]:
    """The bodies as octets; "" for those that are in `bad`."""
    import pyarrow as pa

    column = batch.column("body")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    bodies: list[Any] = column.to_pylist()
    if column.null_count:
        for index, body in enumerate(bodies):
            if body is None:
                bad.add(index, "body: null; expected octets")
                bodies[index] = b""
    if column.nbytes > limits.body:
        for index, body in enumerate(bodies):
            if len(body) > limits.body:
                bad.add(index, f"body: {len(body)} octets; the broker takes {limits.body} (option maxMessageBytes)")
    return bodies


def distinct(column: pa.Array, encode: Callable[[Any], Any], name: str, bad: Bad) -> tuple[list[Any], list[int]]:
    """Each distinct value encoded, None behind them, and for each row which of these it is. What `encode` raises a
    ValueError for is None, and in `bad`."""
    import pyarrow.compute as pc

    found = column.dictionary_encode()
    encoded: list[Any] = []
    wrong: dict[int, str] = {}
    for value in found.dictionary.to_pylist():
        try:
            encoded.append(encode(value))
        except (ValueError, OverflowError) as error:
            wrong[len(encoded)] = f"{name}: {error}"
            encoded.append(None)
    indices = pc.fill_null(found.indices, len(encoded)).to_pylist() if column.null_count else found.indices.to_pylist()
    encoded.append(None)
    if wrong:
        for row, index in enumerate(indices):
            if index in wrong:
                bad.add(row, wrong[index])
    return encoded, indices


def headers_of(headers: list[tuple[str, str | None]] | None, headers_json: str | None) -> dict[str, Any] | None:
    """The headers of a row as JSON data: the typed ones where there are any, else the texts. ValueError."""
    if headers_json is not None:
        found = typed_json.parse(headers_json)
        if not isinstance(found, dict):
            raise ValueError(f"expected a JSON object, not {headers_json[:40]!r}")
        return found
    return None if headers is None else dict(headers)


def drop_bad(rows: Rows, bad: Bad) -> tuple[Rows, list[BadRow]]:
    """The rows without those that are in `bad`, and these."""
    if not bad.reasons:
        return rows, []
    rejected = [BadRow(index, reason, rows.exchanges[index], rows.routing_keys[index], rows.contents[index])
                for index, reason in sorted(bad.reasons.items())]
    kept = [index for index in range(len(rows)) if index not in bad.reasons]
    properties = rows.properties if isinstance(rows.properties, bytes) else [rows.properties[index] for index in kept]
    return Rows([rows.exchanges[index] for index in kept], [rows.routing_keys[index] for index in kept], properties,
                [rows.bodies[index] for index in kept],
                None if rows.contents is rows.bodies else [rows.contents[index] for index in kept]), rejected
