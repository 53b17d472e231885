"""Confirms of rows over AMQP 0-9-1, which are only counted.

Rows stay in memory until they are confirmed, so that rows that the broker nacks or returns can be dead-lettered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from leveret.client.engine.amqp091.pending_confirms import PendingConfirms, Publish
from leveret.client.errors import ConnectionLost, Error, Returned

if TYPE_CHECKING:
    from leveret.client.engine.common.frontend import FrontEnd, Waiter
    from leveret.spark.sink.rows import Rows


class RefusedMessage(NamedTuple):
    """A message that the broker rejected.

    Attributes:
        rows: The message, as a batch of one row.
        reason: The broker's reason.
        unroutable: Whether it was returned as unroutable; otherwise it was nacked.
    """

    rows: Rows
    reason: str
    unroutable: bool


class Window(PendingConfirms):
    """Publishes in flight, as ranges of delivery tags."""

    __slots__ = ("_chunks", "_host", "_level", "_single", "_tag", "_waiter", "error", "in_flight", "refused")

    def __init__(self, host: FrontEnd) -> None:
        super().__init__()
        self._host = host
        # First tag and rows of each chunk that was sent.
        self._chunks: deque[tuple[int, Rows]] = deque()
        # The next tag, and tags after `_first` that were confirmed individually.
        self._tag = 1
        self._single: set[int] = set()
        self._waiter: Waiter | None = None
        self._level = 0
        self.in_flight = 0
        self.refused: list[RefusedMessage] = []
        self.error: Error | None = None

    def __len__(self) -> int:
        return self.in_flight

    def weight(self, rows: Rows) -> int:
        """Return how much rows count in `in_flight`."""
        return len(rows)

    def sent(self, rows: Rows, id: str) -> None:
        """Note rows that are sent together. `id` identifies a record batch."""
        self._chunks.append((self._tag, rows))
        self._tag += len(rows)
        self.in_flight += len(rows)

    def waiter(self, level: int) -> Waiter:
        """Return a waiter that is done when at most `level` publishes are in flight, or no more confirms will arrive."""
        waiter = self._waiter
        self._level = level
        if waiter is None or waiter.done():
            waiter = self._waiter = self._host.new_waiter()
            if self.error is not None:
                waiter.set_result(None)
        return waiter

    def confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        """Handle `basic.ack` or `basic.nack`. Repeated confirms of a tag are ignored."""
        if not multiple:
            if tag < self._first or tag in self._single or tag >= self._tag:
                return
            self._single.add(tag)
            self.in_flight -= 1
            if not ack:
                self._refuse(tag)
            while self._first in self._single:
                self._single.remove(self._first)
                self._first += 1
        else:
            stop = min(tag + 1, self._tag) if tag else self._tag
            if stop <= self._first:
                return
            singles = {single for single in self._single if single < stop}
            self._single -= singles
            self.in_flight -= stop - self._first - len(singles)
            if not ack:
                for number in range(self._first, stop):
                    if number not in singles:
                        self._refuse(number)
            self._first = stop
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= self._first:
            self._chunks.popleft()
        if self.in_flight <= self._level:
            self._wake()

    def _refuse(self, tag: int) -> None:
        for first, rows in self._chunks:
            if first <= tag < first + len(rows):
                self.refused.append(self._nacked(rows.at(tag - first)))
                return

    @staticmethod
    def _nacked(rows: Rows) -> RefusedMessage:
        return RefusedMessage(
            rows, "the broker refused the message (basic.nack): a queue is full, or it could not be stored", False
        )

    def returned(self, address: bytes, header: bytes, body: bytes, error: Returned) -> bool:
        """Handle a returned message; its confirm follows."""
        from leveret.spark.sink.rows import Rows

        at = 1 + address[0]
        self.refused.append(
            RefusedMessage(
                Rows(
                    [address[1:at].decode("utf-8", "surrogateescape")],
                    [address[at + 1 :].decode("utf-8", "surrogateescape")],
                    header[12:],
                    [body],
                ),
                str(error),
                error.reply_code == 312,
            )
        )
        return True

    def fail_at_most_once(self, error: Error) -> None:
        pass

    def take(self) -> list[Publish]:
        """Handle the end of the channel."""
        if self.error is None:
            self.error = ConnectionLost("the channel was closed while messages were in flight")
        self._wake()
        return []

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
