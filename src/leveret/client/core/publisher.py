"""A window of publishes that need not be awaited one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.core.frontend import Waiter
from leveret.client.core.pending_confirms import Outgoing
from leveret.client.core.waiters import Waiters
from leveret.client.errors import Error, InvalidMessage, Nacked, PublishFailed, Returned
from leveret.client.properties import Properties

if TYPE_CHECKING:
    from leveret.client.core.protocols import AnyChannelCore


class PublisherCore:
    """At most `window` publishes are unconfirmed at a time. Who finds it full waits until half of it is free, so that
    waking up is paid for by many."""

    __slots__ = ("_failed", "_idle", "_room", "channel", "error", "in_flight", "window")

    def __init__(self, channel: AnyChannelCore, window: int) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self.channel = channel
        self.window = window
        self.in_flight = 0
        # The first failure, and every message that failed since it was last reported.
        self.error: Error | None = None
        self._failed: list[tuple[str, str, Properties | None, bytes]] = []
        self._room = Waiters(channel.connection.frontend)
        self._idle = Waiters(channel.connection.frontend)

    def publish(self, outgoing: Outgoing) -> None:
        """There must be room."""
        outgoing.publisher = self
        self.in_flight += 1
        try:
            self.channel.publish(outgoing)
        except InvalidMessage:
            self.in_flight -= 1
            raise

    def settled(self, outgoing: Outgoing, error: Error | None) -> None:
        """A publish is confirmed or has failed."""
        in_flight = self.in_flight = self.in_flight - 1
        if error is not None:
            if self.error is None:
                self.error = error
            self._failed.append(outgoing.describe())
        if self._room.waiting and in_flight <= self.window >> 1:
            self._room.wake()
        if self._idle.waiting and in_flight == 0:
            self._idle.wake()

    def window_waiter(self) -> Waiter:
        """Until half of the window is free."""
        return self._room.new()

    def idle_waiter(self) -> Waiter:
        """Until nothing is unconfirmed."""
        return self._idle.new()

    def take_error(self) -> Error:
        """What to raise, once, when `error` is set: with all messages that failed."""
        error, messages = self.error, self._failed
        assert error is not None
        self.error, self._failed = None, []
        if isinstance(error, (Nacked, Returned)):
            text = str(error) if len(messages) == 1 else f"{len(messages)} messages failed, the first because: {error}"
            kind: type[PublishFailed] = type(error)
            return kind(text, messages=messages, reply_code=error.reply_code, reply_text=error.reply_text)
        return error
