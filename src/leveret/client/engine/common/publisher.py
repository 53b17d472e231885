"""A publisher with a window of pending confirms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import Error, InvalidMessage, Nacked, PublishFailed, Returned
from leveret.client.properties import Properties

if TYPE_CHECKING:
    from leveret.client.engine.common.channel import BaseChannelCore


class PublisherCore:
    """Publisher with at most `window` pending confirms.

    A caller that finds the window full waits until half of it is free, so that one wake-up serves many publishes.
    """

    __slots__ = ("_failed", "_idle", "_room", "channel", "error", "in_flight", "window")

    def __init__(self, channel: BaseChannelCore, window: int) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self.channel = channel
        self.window = window
        self.in_flight = 0
        # The first failure, and all failed messages, since the last report.
        self.error: Error | None = None
        self._failed: list[tuple[str, str, Properties | None, bytes]] = []
        self._room = Waiters(channel.connection.frontend)
        self._idle = Waiters(channel.connection.frontend)

    def publish(self, outgoing: Outgoing) -> None:
        """Send a publish. The window must have room."""
        outgoing.publisher = self
        self.in_flight += 1
        try:
            self.channel.publish(outgoing)
        except InvalidMessage:
            self.in_flight -= 1
            raise

    def settled(self, outgoing: Outgoing, error: Error | None) -> None:
        """Handle a confirm or a failure."""
        in_flight = self.in_flight = self.in_flight - 1
        if error is not None:
            self.note_failure(outgoing, error)
        if self._room.waiting and in_flight <= self.window >> 1:
            self._room.wake()
        if self._idle.waiting and in_flight == 0:
            self._idle.wake()

    def note_failure(self, outgoing: Outgoing, error: Error) -> None:
        """Note a publish that failed."""
        if self.error is None:
            self.error = error
        self._failed.append(outgoing.describe())

    def window_waiter(self) -> Waiter:
        """Return a waiter for half of the window to be free."""
        return self._room.new()

    def idle_waiter(self) -> Waiter:
        """Return a waiter for all confirms."""
        return self._idle.new()

    def take_error(self) -> Error:
        """Return and clear the error to raise, with all failed messages. `error` must be set."""
        error, messages = self.error, self._failed
        assert error is not None
        self.error, self._failed = None, []
        if isinstance(error, (Nacked, Returned)):
            text = str(error) if len(messages) == 1 else f"{len(messages)} messages failed, the first one: {error}"
            kind: type[PublishFailed] = type(error)
            return kind(text, messages=messages, reply_code=error.reply_code, reply_text=error.reply_text)
        return error
