"""Publishes rows over AMQP 0-9-1, a batch of frames at a time, and counts confirms.

Rows stay in memory until they are confirmed, so that rows that the broker nacks or returns can be dead-lettered.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.client.engine.amqp091.pending_confirms import PendingConfirms, Publish
from leveret.client.errors import ConnectionLost, Error, Returned, copy_error
from leveret.client.timeouts import DEFAULT
from leveret.spark.sink.amqp091_frames import Framer

if TYPE_CHECKING:
    from leveret.client._sync.channel import Channel
    from leveret.client.engine.common.frontend import FrontEnd, Waiter
    from leveret.spark.sink.rows import Rows

# Approximate number of bytes that are framed at a time.
CHUNK_BYTES: Final = 128 << 10


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

    def sent(self, rows: Rows) -> None:
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
                self.refused.append(
                    RefusedMessage(
                        rows.at(tag - first),
                        "the broker refused the message (basic.nack): a queue is full, or it could not be stored",
                        False,
                    )
                )
                return

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


class Amqp091Publisher:
    """Publishes to exchanges, or to the sink transaction that `prefix` names.

    Attributes:
        refused: Messages that the broker rejected; reading it clears it.
    """

    def __init__(self, channel: Channel, max_in_flight: int, prefix: str = "", mandatory: bool = False) -> None:
        core = channel.core
        self._channel = channel
        self._core = core
        self._driver = channel.connection.driver
        self._engine = core.connection.engine
        self._max_in_flight = max_in_flight
        with self._driver.lock:
            core.pending_confirms = self._window = Window(core.connection.frontend)
        self._framer = Framer(core.number, self._engine.payload_max, prefix, mandatory)

    @property
    def header_max(self) -> int:
        """Room for properties in a header frame, in bytes."""
        return int(self._engine.payload_max) - 12

    @property
    def refused(self) -> list[RefusedMessage]:
        found, self._window.refused = self._window.refused, []
        return found

    def publish(self, rows: Rows) -> None:
        """Send rows, waiting while too many are in flight. If the client raises an error, rows may be lost."""
        total = len(rows)
        start = 0
        step = max(1, min(self._max_in_flight, CHUNK_BYTES * total // (rows.size + 200 * total + 1) or 1))
        while start < total:
            stop = min(start + step, total)
            chunk = rows.slice(start, stop)
            self._send(chunk)
            start = stop

    def _send(self, rows: Rows) -> None:
        frames = self._framer.frames(rows)
        window, core, driver = self._window, self._core, self._driver
        while True:
            waiter: Waiter | None = None
            with driver.lock:
                self._check()
                if core.flowing:
                    if not window.in_flight or window.in_flight + len(rows) <= self._max_in_flight:
                        window.sent(rows)
                        self._engine.send_encoded(frames)
                        core.connection.frontend.flush_soon()
                        return
                    waiter = window.waiter(min(self._max_in_flight - len(rows), self._max_in_flight >> 1))
            if waiter is None:
                self._channel.wait_flowing()
            else:
                driver.wait(waiter, DEFAULT, "confirms")

    def flush(self) -> None:
        """Wait until everything is confirmed or refused. Raises the client's errors."""
        while True:
            with self._driver.lock:
                if not self._window.in_flight:
                    self._check()
                    return
                self._check()
                waiter = self._window.waiter(0)
            self._driver.wait(waiter, DEFAULT, "confirms")

    def _check(self) -> None:
        if self._core.error is not None:
            raise copy_error(self._core.error)
        if self._window.error is not None:
            raise copy_error(self._window.error)


class Rate:
    """Limits the message rate evenly."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def max_chunk(self) -> int:
        """Return how many messages may be sent at once: a tenth of a second's worth."""
        return max(1, int(self._rate / 10)) if self._rate is not None else 1 << 30

    def wait(self, messages: int) -> None:
        """Wait until these messages may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
            now = self._due
        self._due = max(self._due, now) + messages / self._rate
