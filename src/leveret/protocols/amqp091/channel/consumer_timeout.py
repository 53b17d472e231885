"""Consumer timeout: a delivery that is not acknowledged in time closes its channel (as in RabbitMQ; off by default)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel


class ConsumerTimeout(Timed):
    """Timer for the oldest unacknowledged delivery of a channel. `limit` is in milliseconds."""

    def __init__(self, channel: Channel, limit: int) -> None:
        super().__init__()
        self.channel: Channel | None = channel
        self.limit = limit

    def detach(self) -> None:
        """Drop the channel, because it closes. The timers may keep a reference to the timeout for a while."""
        self.channel = None

    def fire(self, now: int) -> None:
        channel = self.channel
        if channel is None or channel.closing:
            return
        oldest = channel.unacked.oldest_time(now)
        if now - oldest >= self.limit:
            channel.connection.refuse(
                channel,
                406,
                f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used:"
                f" {self.limit} ms; the limit is set by vhosts.{channel.connection.vhost_name}.consumer_timeout",
                0,
                0,
            )
            channel.broker.end_turn()
            return
        channel.broker.timers.at(oldest + self.limit, self)
