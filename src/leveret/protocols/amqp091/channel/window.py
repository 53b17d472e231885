"""Prefetch windows that the consumers of a channel or a connection share (0-9-1 basic.qos)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel


class ChannelWindow:
    """The window of a channel, the windows of its new consumers, and its share of the connection's window.

    Attributes:
        prefetch: messages in the window; 0 means no limit.
        prefetch_size: bytes in the window; 0 means no limit.
        default_prefetch: messages in the window of each new consumer; 0 means no limit.
        default_prefetch_size: bytes in that window; 0 means no limit.
    """

    def __init__(self) -> None:
        self.prefetch = 0
        self.prefetch_size = 0
        self.default_prefetch = 0
        self.default_prefetch_size = 0
        self._reported_count = 0
        self._reported_size = 0

    def set(self, prefetch: int, prefetch_size: int) -> None:
        self.prefetch = prefetch
        self.prefetch_size = prefetch_size

    def set_default(self, prefetch: int, prefetch_size: int) -> None:
        self.default_prefetch = prefetch
        self.default_prefetch_size = prefetch_size

    def report(self, whole: ConnectionWindow, count: int, size: int) -> None:
        """Report the channel's unacknowledged deliveries and their bytes to the connection's window."""
        whole.add(count - self._reported_count, size - self._reported_size)
        self._reported_count = count
        self._reported_size = size

    def move(self) -> None:
        """Start over with another connection, which counts none of the channel's deliveries yet."""
        self._reported_count = 0
        self._reported_size = 0


class ConnectionWindow:
    """The window of a connection (`global` in the meaning of the specification).

    Channels report their unacknowledged deliveries when these may have changed, so no sum over all channels is needed.

    Attributes:
        prefetch: messages in the window; 0 means no limit.
        prefetch_size: bytes in the window; 0 means no limit.
    """

    def __init__(self) -> None:
        self.prefetch = 0
        self.prefetch_size = 0
        self._count = 0
        self._size = 0
        # Whether room was freed in this turn.
        self._freed = False
        # The channel that last asked for credit.
        self._granted: Channel | None = None

    def set(self, prefetch: int, prefetch_size: int) -> None:
        self.prefetch = prefetch
        self.prefetch_size = prefetch_size

    def is_limited(self) -> bool:
        return self.prefetch > 0 or self.prefetch_size > 0

    def add(self, count: int, size: int) -> None:
        """Add to the deliveries and bytes in the window."""
        self._count += count
        self._size += size

    def has_credit(self, channel: Channel, size: int) -> bool:
        """Return whether the window allows a delivery of `size` bytes to a channel."""
        granted = self._granted
        if granted is not None and granted is not channel:
            granted.update_window()  # it got its delivery
        self._granted = channel
        channel.update_window()
        if 0 < self.prefetch <= self._count:
            return False
        return not (self.prefetch_size and self._count and self._size + size > self.prefetch_size)

    def forget(self, channel: Channel) -> None:
        """Forget a channel that closes."""
        if self._granted is channel:
            self._granted = None

    def forget_all(self) -> None:
        """Forget all channels, because the connection closes."""
        self._granted = None

    def free(self) -> None:
        """Note that room was freed."""
        self._freed = True

    def take_freed(self) -> bool:
        """Return whether room was freed since the last call."""
        freed = self._freed
        self._freed = False
        return freed
