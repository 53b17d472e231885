"""Record batches of rows over AMQP 0-9-1: framing, and the confirms and reports of the broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.encoding import encode_address
from leveret.spark.sink.amqp091_frames import Framer
from leveret.spark.sink.amqp091_window import RefusedMessage, Window
from leveret.wire.amqp0.fieldtable import encode_short_string
from leveret.wire.record_batches import CONTENT_TYPE, EXCHANGE, HEAD_BYTES, MAX_BYTES, MAX_ROWS, ROW_BYTES, encode

if TYPE_CHECKING:
    from leveret.client.engine.common.frontend import FrontEnd
    from leveret.client.errors import BatchFailed
    from leveret.spark.sink.rows import Rows

# Maximum number of unconfirmed record batches.
MAX_BATCHES: Final = 8
# Flags of the properties content-type and correlation-id.
_FLAGS: Final = b"\x84\x00"
_MAX_CACHED: Final = 4096


class BatchFramer:
    """Frames record batches for one channel. A row that is too large for one is framed as a single message.

    Attributes:
        id: Correlation id of the last record batch.
    """

    def __init__(self, channel: int, payload_max: int, prefix: str, mandatory: bool) -> None:
        self._prefix = prefix
        self._batches = Framer(channel, payload_max, "", mandatory)
        self._singles = Framer(channel, payload_max, prefix, mandatory)
        self._addresses: dict[tuple[str, str], bytes] = {}
        self._number = 0
        self.id = ""

    def chunks(self, rows: Rows, maximum: int) -> Iterator[Rows]:
        """Divide rows into record batches, and rows that are too large for one."""
        if not len(rows):
            return
        overhead = ROW_BYTES + self._largest_address(rows)
        properties = rows.properties
        overhead += len(properties) if isinstance(properties, bytes) else max(map(len, properties))
        # The size of the first rows, at most.
        ends = [size + overhead * count for count, size in enumerate(accumulate(map(len, rows.bodies), initial=HEAD_BYTES))]
        first = 0
        while first < len(rows):
            fit = bisect_right(ends, ends[first] - HEAD_BYTES + MAX_BYTES) - 1
            stop = max(first + 1, min(fit, first + MAX_ROWS))
            yield rows.slice(first, stop)
            first = stop

    def _largest_address(self, rows: Rows) -> int:
        pairs = set(zip(rows.exchanges, rows.routing_keys, strict=True))
        return max(len(self._address(exchange, key)) for exchange, key in pairs)

    def _address(self, exchange: str, key: str) -> bytes:
        address = self._addresses.get((exchange, key))
        if address is None:
            if len(self._addresses) >= _MAX_CACHED:
                self._addresses.clear()
            address = self._addresses[exchange, key] = encode_address(self._prefix + exchange, key)
        return address

    def _addresses_of(self, rows: Rows) -> list[bytes] | bytes:
        pairs = list(zip(rows.exchanges, rows.routing_keys, strict=True))
        distinct = set(pairs)
        if len(distinct) == 1:
            return self._address(*pairs[0])
        addresses = {pair: self._address(*pair) for pair in distinct}
        return [addresses[pair] for pair in pairs]

    def frames(self, rows: Rows) -> bytes:
        """Return the frames of a record batch, or of a row that is too large for one."""
        from leveret.spark.sink.rows import Rows

        self._number += 1
        self.id = str(self._number)
        batch = encode(self._addresses_of(rows), rows.properties, rows.bodies)
        if len(batch) > MAX_BYTES:
            return self._singles.frames(rows)
        header = _FLAGS + encode_short_string(CONTENT_TYPE) + encode_short_string(self.id)
        return self._batches.frames(Rows([EXCHANGE], [""], header, [batch]))


class BatchWindow(Window):
    """Record batches in flight, by delivery tag."""

    __slots__ = ("_reports", "_sent")

    def __init__(self, host: FrontEnd) -> None:
        super().__init__(host)
        # Rows and id of each record batch.
        self._sent: dict[int, tuple[Rows, str]] = {}
        self._reports: dict[str, BatchFailed] = {}

    def weight(self, rows: Rows) -> int:
        return 1

    def sent(self, rows: Rows, id: str) -> None:
        self._sent[self._tag] = rows, id
        self._tag += 1
        self.in_flight += 1

    def report(self, id: str, error: BatchFailed) -> None:
        self._reports[id] = error

    def confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        stop = min(tag + 1, self._tag) if tag else self._tag
        for number in range(self._first, stop) if multiple else (tag,):
            found = self._sent.pop(number, None)
            if found is not None:
                self.in_flight -= 1
                self._settle(*found, ack)
        if multiple:
            self._first = max(self._first, stop)
        if self.in_flight <= self._level:
            self._wake()

    def _settle(self, rows: Rows, id: str, ack: bool) -> None:
        """Note the rows of a record batch that were not published."""
        report = self._reports.pop(id, None)
        if report is not None:
            for index in report.unroutable:
                reason = (
                    f"no queue is bound to exchange '{rows.exchanges[index]}' for routing key '{rows.routing_keys[index]}'"
                )
                self.refused.append(RefusedMessage(rows.at(index), reason, True))
            for index in report.refused:
                self.refused.append(RefusedMessage(rows.at(index), str(report), False))
        elif not ack:
            for index in range(len(rows)):
                self.refused.append(self._nacked(rows.at(index)))
