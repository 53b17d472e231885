"""Consumer timeout: a delivery that is not acknowledged in time closes its channel (as in RabbitMQ; off by default)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.queues.queue import Queue
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel


class ConsumerTimeout(Timed):
    """Timer for the oldest unacknowledged delivery of a channel. `limit` is in milliseconds."""

    def __init__(self, channel: Channel, limit: int) -> None:
        super().__init__()
        self.channel: Channel | None = channel
        self.limit = limit

    def fire(self, now: int) -> None:
        channel = self.channel
        if channel is None or channel.closing or channel.times is None:
            return
        oldest = min(channel.times.values(), default=now)
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


def watch_timeout(channel: Channel, consumer: int | None, queue: Queue) -> None:
    """Start the timer if the consumer, its queue or the vhost sets a limit. The shortest limit of the channel applies."""
    limit = consumer
    if limit is None:
        limit = queue.settings.consumer_timeout
    if limit is None:
        limit = channel.connection.consumer_timeout
    if not limit:
        return
    if channel.times is None:
        channel.times = {}
    watch = channel.timeout
    if watch is None or watch.limit > limit:
        channel.timeout = watch = ConsumerTimeout(channel, limit)
        timers = channel.broker.timers
        timers.at(timers.now() + limit, watch)
