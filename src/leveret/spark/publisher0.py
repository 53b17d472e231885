"""Publishing rows over AMQP 0-9-1: whole batches of frames at a time, and confirms that are only counted.

The rows on their way are kept until they are confirmed, so that one that the broker refuses or returns can still be given
to a dead letter exchange.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.client.core.channel import ChannelCore
from leveret.client.core.pending_confirms import Outgoing, PendingConfirms
from leveret.client.errors import ConnectionLost, Error, Returned, copy_error
from leveret.client.timeouts import DEFAULT
from leveret.spark.frames0 import Framer

if TYPE_CHECKING:
    from leveret.client.blocking.channel import Channel
    from leveret.client.core.frontend import FrontEnd, Waiter
    from leveret.spark.sink_rows import Rows

# Octets that are framed at once, about.
CHUNK: Final = 128 << 10


class Refused(NamedTuple):
    """A message that the broker did not take.

    rows        it alone
    unroutable  no queue takes it; otherwise the broker refused it
    """

    rows: Rows
    reason: str
    unroutable: bool


class Window(PendingConfirms):
    """What is on its way, as ranges of delivery tags."""

    __slots__ = ("_chunks", "_host", "_level", "_single", "_tag", "_waiter", "error", "in_flight", "refused")

    def __init__(self, host: FrontEnd) -> None:
        super().__init__()
        self._host = host
        # First tag and rows of each piece that was sent.
        self._chunks: deque[tuple[int, Rows]] = deque()
        # The next tag, and those behind `_first` that were confirmed one by one.
        self._tag = 1
        self._single: set[int] = set()
        self._waiter: Waiter | None = None
        self._level = 0
        self.in_flight = 0
        self.refused: list[Refused] = []
        self.error: Error | None = None

    def __len__(self) -> int:
        return self.in_flight

    def sent(self, rows: Rows) -> None:
        self._chunks.append((self._tag, rows))
        self._tag += len(rows)
        self.in_flight += len(rows)

    def waiter(self, level: int) -> Waiter:
        """Until so many are on their way and no more, or nothing will be confirmed any more."""
        waiter = self._waiter
        self._level = level
        if waiter is None or waiter.done():
            waiter = self._waiter = self._host.new_waiter()
            if self.error is not None:
                waiter.set_result(None)
        return waiter

    def confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        """`basic.ack` and `basic.nack`. A tag counts once."""
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
                self.refused.append(Refused(rows.at(tag - first), "the broker refused the message (basic.nack): a queue is"
                                            " full, or it could not be kept", False))
                return

    def returned(self, address: bytes, header: bytes, body: bytes, error: Returned) -> bool:
        """A message came back whole; its confirm comes, too."""
        from leveret.spark.sink_rows import Rows

        at = 1 + address[0]
        self.refused.append(Refused(
            Rows([address[1:at].decode("utf-8", "surrogateescape")], [address[at + 1 :].decode("utf-8", "surrogateescape")],
                 header[12:], [body]), str(error), error.reply_code == 312))
        return True

    def fail_at_most_once(self, error: Error) -> None:
        pass

    def take(self) -> list[Outgoing]:
        """The channel has ended."""
        if self.error is None:
            self.error = ConnectionLost("the channel was closed while messages were on their way")
        self._wake()
        return []

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Publisher0:
    """Publishes to exchanges, or to a stage of theirs where there is a `prefix`.

    refused  what the broker did not take so far; whoever takes it empties it
    """

    def __init__(self, channel: Channel, most: int, prefix: str = "", mandatory: bool = False) -> None:
        core = channel.core
        assert isinstance(core, ChannelCore)
        self._channel = channel
        self._core = core
        self._driver = channel.connection.driver
        self._engine = core.connection.engine
        self._most = most
        with self._driver.lock:
            core.pending_confirms = self._window = Window(core.connection.frontend)
        self._framer = Framer(core.number, self._engine.payload_max, prefix, mandatory)

    @property
    def header_max(self) -> int:
        """Octets of properties that a header frame holds."""
        return int(self._engine.payload_max) - 12

    @property
    def refused(self) -> list[Refused]:
        found, self._window.refused = self._window.refused, []
        return found

    def publish(self, rows: Rows) -> None:
        """Send them, waiting while `most` are on their way. Raises the client's errors: what was sent may be lost then."""
        total = len(rows)
        start = 0
        step = max(1, min(self._most, CHUNK * total // (rows.size + 200 * total + 1) or 1))
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
                    if not window.in_flight or window.in_flight + len(rows) <= self._most:
                        window.sent(rows)
                        self._engine.send_encoded(frames)
                        core.connection.frontend.flush_soon()
                        return
                    waiter = window.waiter(min(self._most - len(rows), self._most >> 1))
            if waiter is None:
                self._channel.wait_flowing()
            else:
                driver.wait(waiter, DEFAULT, "confirms")

    def flush(self) -> None:
        """Until everything has been confirmed or refused. The client's errors where that does not come."""
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
    """Lets no more than so many messages pass in a second, evenly."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def most(self) -> int:
        """How many messages may be sent in one piece: what a tenth of a second allows."""
        return max(1, int(self._rate / 10)) if self._rate is not None else 1 << 30

    def wait(self, messages: int) -> None:
        """Until these may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
            now = self._due
        self._due = max(self._due, now) + messages / self._rate
