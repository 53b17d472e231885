"""Record batches of rows, for both protocols."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.encoding import encode_address
from leveret.spark.sink.amqp091_window import RefusedMessage
from leveret.wire.record_batches import HEAD_BYTES, MAX_BYTES, MAX_ROWS, ROW_BYTES, encode_packed

if TYPE_CHECKING:
    from leveret.client.errors import BatchFailed
    from leveret.spark.sink.rows import Rows

# Maximum number of unconfirmed record batches.
MAX_BATCHES: Final = 8
_MAX_CACHED: Final = 4096


class BatchEncoder:
    """Encodes rows, whose exchanges get a prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._addresses: dict[tuple[str, str], bytes] = {}

    def chunks(self, rows: Rows) -> Iterator[Rows]:
        """Divide rows into record batches, and rows that are too large for one."""
        if not len(rows):
            return
        overhead = ROW_BYTES + self._largest_address(rows)
        properties = rows.properties
        overhead += len(properties) if isinstance(properties, bytes) else max(map(len, properties))
        ends = rows.body_ends()

        def size_of(count: int) -> int:
            """Return the size of the first rows, at most."""
            return ends[count] + overhead * count

        counts = range(len(rows) + 1)
        first = 0
        while first < len(rows):
            fit = bisect_right(counts, size_of(first) - HEAD_BYTES + MAX_BYTES, first, key=size_of) - 1
            stop = max(first + 1, min(fit, first + MAX_ROWS))
            yield rows.slice(first, stop)
            first = stop

    def _largest_address(self, rows: Rows) -> int:
        return max(len(self._address(*pair)) for pair in set(rows.addresses()))

    def _address(self, exchange: str, key: str) -> bytes:
        address = self._addresses.get((exchange, key))
        if address is None:
            if len(self._addresses) >= _MAX_CACHED:
                self._addresses.clear()
            address = self._addresses[exchange, key] = encode_address(self._prefix + exchange, key)
        return address

    def _addresses_of(self, rows: Rows) -> list[bytes] | bytes:
        pairs = rows.addresses()
        distinct = set(pairs)
        if len(distinct) == 1:
            return self._address(*pairs[0])
        addresses = {pair: self._address(*pair) for pair in distinct}
        return [addresses[pair] for pair in pairs]

    def encode(self, rows: Rows) -> bytes | None:
        """Return the rows of a chunk as a record batch; None for a row that is too large for one."""
        batch = encode_packed(len(rows), self._addresses_of(rows), rows.properties, *rows.packed_bodies())
        return batch if len(batch) <= MAX_BYTES else None


def refused_rows(rows: Rows, report: BatchFailed) -> list[RefusedMessage]:
    """Return the rows that the broker did not publish."""
    refused: list[RefusedMessage] = []
    for index in report.unroutable:
        reason = f"no queue is bound to exchange '{rows.exchanges[index]}' for routing key '{rows.routing_keys[index]}'"
        refused.append(RefusedMessage(rows.at(index), reason, True))
    refused += [RefusedMessage(rows.at(index), str(report), False) for index in report.refused]
    return refused
