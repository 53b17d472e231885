"""Class channel: open, flow, close; and confirm.select (0-9-1 section 1.5, RabbitMQ's class 85)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotAllowed
from leveret.protocols.amqp091.channel.channel import Channel

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection


def open_channel(connection: BaseConnection, number: int) -> None:
    """Perform channel.open."""
    if connection.closing or connection.vhost is None:
        return
    limit = connection.engine.channel_max
    if number > limit and connection.vhost.strict:
        # RabbitMQ limits the count of open channels, as the engine does, and accepts any number.
        raise NotAllowed(
            f"channel number {number} exceeds the negotiated channel-max, {limit} (compat.strict is"
            f" set for vhost '{connection.vhost_name}')"
        )
    check_limit(connection)
    add_channel(connection, Channel(connection, number))
    connection.engine.send(number, "channel.open-ok", {})


def check_limit(connection: BaseConnection) -> None:
    """Raise NotAllowed if the user has the maximum number of channels."""
    limit = connection.account.limits.max_channels
    if limit:
        connection.services.check_channel_limit(connection.user, limit)


def add_channel(connection: BaseConnection, channel: Channel) -> None:
    connection.channels[channel.number] = channel
    connection.broker.churn.channel_opened()
    channel.set_counted()
    connection.broker.holders[channel] = None


def flow(channel: Channel, active: bool) -> None:
    """Perform channel.flow: pause or resume deliveries. Gets are not affected."""
    channel.set_active(active)
    channel.connection.engine.send(channel.number, "channel.flow-ok", {"active": active})
    if active:
        channel.wake()


def flow_ok(channel: Channel, active: bool) -> None:
    """Perform channel.flow-ok, the client's reply to the broker's flow. From now on, publishing violates it."""
    channel.pause_replied(active)


def close(channel: Channel, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
    """Perform channel.close."""
    connection = channel.connection
    channel.resolve()
    connection.close_channel(channel, partial(_closed, connection, channel.number))


def _closed(connection: BaseConnection, number: int) -> None:
    """Reply to channel.close, after the channel has been released."""
    if not connection.closing:
        connection.engine.send(number, "channel.close-ok", {})
        connection.mark()


def close_ok(channel: Channel) -> None:
    """Ignore channel.close-ok: the channel was released when its close was sent."""


def confirm_select(channel: Channel, no_wait: bool) -> None:
    """Perform confirm.select."""
    channel.select_confirms()
    if not no_wait:
        channel.connection.engine.send(channel.number, "confirm.select-ok", {})


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "channel.flow": flow,
    "channel.flow-ok": flow_ok,
    "channel.close": close,
    "channel.close-ok": close_ok,
    "confirm.select": confirm_select,
}
