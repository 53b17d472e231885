"""Publishes rows over AMQP 0-9-1: in record batches if the broker supports them, otherwise as many frames at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from leveret.client.errors import copy_error
from leveret.client.timeouts import DEFAULT
from leveret.spark.sink.amqp091_batches import BatchFramer, BatchWindow
from leveret.spark.sink.amqp091_frames import Framer
from leveret.spark.sink.amqp091_window import RefusedMessage, Window
from leveret.spark.sink.batches import MAX_BATCHES

if TYPE_CHECKING:
    from leveret.client._sync.channel import Channel
    from leveret.client.engine.common.frontend import Waiter
    from leveret.spark.sink.rows import Rows


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
        self._framer: Framer | BatchFramer
        if core.batches:
            self._max_in_flight = min(max_in_flight, MAX_BATCHES)
            self._window: Window = BatchWindow(core.connection.frontend)
            self._framer = BatchFramer(core.number, self._engine.payload_max, prefix, mandatory)
        else:
            self._window = Window(core.connection.frontend)
            self._framer = Framer(core.number, self._engine.payload_max, prefix, mandatory)
        with self._driver.lock:
            core.pending_confirms = self._window

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
        for chunk in self._framer.chunks(rows, self._max_in_flight):
            self._send(chunk)

    def _send(self, rows: Rows) -> None:
        frames = self._framer.frames(rows)
        window, core, driver = self._window, self._core, self._driver
        weight = window.weight(rows)
        while True:
            waiter: Waiter | None = None
            with driver.lock:
                self._check()
                if core.flowing:
                    if not window.in_flight or window.in_flight + weight <= self._max_in_flight:
                        window.sent(rows, self._framer.id)
                        self._engine.send_encoded(frames)
                        core.connection.frontend.flush_soon()
                        return
                    waiter = window.waiter(min(self._max_in_flight - weight, self._max_in_flight >> 1))
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
