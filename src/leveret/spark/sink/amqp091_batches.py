"""Record batches of rows over AMQP 0-9-1: framing, and the confirms and reports of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.spark.sink.amqp091_frames import Framer
from leveret.spark.sink.amqp091_window import Window
from leveret.spark.sink.batches import BatchEncoder, refused_rows
from leveret.wire.amqp0.fieldtable import encode_short_string
from leveret.wire.record_batches import CONTENT_TYPE, EXCHANGE

if TYPE_CHECKING:
    from leveret.client.engine.common.frontend import FrontEnd
    from leveret.client.errors import BatchFailed
    from leveret.spark.sink.rows import Rows

# Flags of the properties content-type and correlation-id.
_FLAGS: Final = b"\x84\x00"


class BatchFramer:
    """Frames record batches for one channel. A row that is too large for one is framed as a single message.

    Attributes:
        id: Correlation id of the last record batch.
    """

    def __init__(self, channel: int, payload_max: int, prefix: str, mandatory: bool) -> None:
        self._encoder = BatchEncoder(prefix)
        self._batches = Framer(channel, payload_max, "", mandatory)
        self._singles = Framer(channel, payload_max, prefix, mandatory)
        self._number = 0
        self.id = ""

    def chunks(self, rows: Rows, maximum: int) -> Iterator[Rows]:
        """Divide rows into record batches, and rows that are too large for one."""
        return self._encoder.chunks(rows)

    def frames(self, rows: Rows) -> bytes:
        """Return the frames of a record batch, or of a row that is too large for one."""
        from leveret.spark.sink.rows import Rows

        self._number += 1
        self.id = str(self._number)
        batch = self._encoder.encode(rows)
        if batch is None:
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
            self.refused += refused_rows(rows, report)
        elif not ack:
            for index in range(len(rows)):
                self.refused.append(self._nacked(rows.at(index)))
