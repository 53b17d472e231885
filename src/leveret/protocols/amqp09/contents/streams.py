"""Delivery of class stream: unreliable, at the rate that the client requests.

Messages of a stream are not acknowledged, so a client is assumed to consume them at the consume-rate of `stream.qos`; the
prefetch windows limit how far ahead of that they may be sent. Without a rate, they are sent as fast as possible, and
windows have no effect.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.dead_letter import split_address
from leveret.broker.message import Entry, Message
from leveret.broker.queues.queue import Queue
from leveret.broker.timers import Timed, Timers
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.consumers import ClassConsumer
from leveret.protocols.amqp09.contents.content import address_of, fitting
from leveret.wire.amqp0.classes import STREAM

if TYPE_CHECKING:
    from leveret.protocols.amqp09.channel.channel import Channel
    from leveret.protocols.amqp091.channel.channel import Channel as Channel091

# Milliseconds that deliveries may be ahead of the rate without prefetch windows: the resolution of the timers.
AHEAD: Final = 100
# Maximum milliseconds until a delivery that exceeded the rate is retried.
MAX_RETRY_INTERVAL: Final = 60_000


class Pace(Timed):
    """The rate and windows that a stream.qos sets for its channels.

    Attributes:
        rate: bytes of bodies per second; 0 means no limit.
        size: prefetch window in bytes; 0 means no limit.
        count: prefetch window in messages; 0 means no limit.
    """

    def __init__(self, channels: dict[int, Channel091]) -> None:
        super().__init__()
        self.channels = channels
        self.rate = 0
        self.size = 0
        self.count = 0
        # Bytes sent that the client has not consumed by the time `at`, and the sizes of their messages.
        self.ahead = 0.0
        self.at = 0
        self.sizes: deque[int] = deque()
        self.total = 0

    def set(self, rate: int, size: int, count: int) -> None:
        """Set the rate and the windows."""
        self.rate = rate
        self.size = size
        self.count = count
        if not rate:
            self.ahead = 0.0
            self.sizes.clear()
            self.total = 0

    def wait(self, size: int, now: int) -> int:
        """Return the milliseconds until a message of `size` bytes may be sent; 0 means now.

        If the client has consumed everything, a message of any size may be sent.
        """
        rate = self.rate
        if not rate:
            return 0
        self._advance(now)
        ahead = self.ahead
        if ahead <= 0.0:
            return 0
        excess = 0.0
        if self.size:
            excess = min(ahead + size - self.size, ahead)
        elif not self.count:
            excess = ahead - rate * AHEAD / 1000
        if self.count and len(self.sizes) >= self.count:
            excess = max(excess, ahead - (self.total - self.sizes[0]))
        if excess <= 0.0:
            return 0
        return min(int(excess * 1000 / rate) + 1, MAX_RETRY_INTERVAL)

    def sent(self, size: int, now: int) -> None:
        """Count a message that was sent."""
        if not self.rate:
            return
        self._advance(now)
        self.ahead += size
        self.sizes.append(size)
        self.total += size

    def _advance(self, now: int) -> None:
        """Subtract the bytes that the client has consumed by now."""
        if self.ahead > 0.0:
            self.ahead = max(0.0, self.ahead - self.rate * max(0, now - self.at) / 1000)
            sizes = self.sizes
            while sizes and self.total - sizes[0] >= self.ahead:
                self.total -= sizes.popleft()
        self.at = now

    def fire(self, now: int) -> None:
        for channel in list(self.channels.values()):
            channel.wake_own()

    def close(self, timers: Timers) -> None:
        """Stop, because the channels are closed."""
        timers.cancel(self)
        self.channels = {}


class StreamConsumer(ClassConsumer):
    """A consumer of class stream. Its deliveries are settled at once."""

    kind = STREAM

    def __init__(
        self,
        channel: Channel091,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        no_local: bool,
        priority: int,
        arguments: FieldTable,
    ) -> None:
        super().__init__(channel, queue, tag, True, exclusive, no_local, priority, arguments)
        self.streaming: Channel = channel  # type: ignore[assignment]  # one of 0-9

    def has_credit_for(self, size: int) -> bool:
        if not super().has_credit_for(size):
            return False
        channel = self.streaming
        pace = channel.pace
        other = channel.opened_on.pace
        if pace is None and other is None:
            return True
        timers = channel.broker.timers
        now = timers.now()
        for limit in (pace, other):
            if limit is None:
                continue
            wait = limit.wait(size, now)
            if wait:
                if not limit.due or now + wait < limit.due:
                    timers.at(now + wait, limit)
                return False
        return True

    def deliver(self, entry: Entry) -> None:
        channel = self.streaming
        message = fitting(entry, STREAM, channel.connection.engine.payload_max)
        tag = channel.unacked.new_tag()
        exchange, _ = split_address(address_of(entry))
        channel.send_content(
            "stream.deliver",
            {"consumer_tag": self.tag, "delivery_tag": tag, "exchange": exchange, "queue": self.queue.name},
            message.header,
            message,
        )
        self._count(message)

    def _count(self, message: Message) -> None:
        channel = self.streaming
        pace = channel.pace
        other = channel.opened_on.pace
        if pace is None and other is None:
            return
        now = channel.broker.timers.now()
        if pace is not None:
            pace.sent(message.size, now)
        if other is not None:
            other.sent(message.size, now)
