"""Alarms: while memory or disk space is low, connections that publish are blocked.

As in RabbitMQ, a connection is blocked by its first publish during the alarm, which is accepted. Until then the broker
reads it: its acknowledgements may end the alarm. Clients without the capability `connection.blocked` get `channel.flow`
when the alarm begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.ingress_throttle import ALARM

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel import Channel
    from leveret.protocols.amqp091.connection import Connection


def first_publish(connection: Connection, channel: Channel) -> None:
    """Handle the first publish of a connection, or the first since an alarm began.

    For clients without `connection.blocked`, called for each channel. Requests to the broker do not count.
    """
    if channel.requested:
        channel.requested = False
        return
    if connection.services.alarm and not connection.notify_blocked:
        channel.ask_to_pause()
        connection.mark()
        return
    connection.published_any = True
    if connection.services.alarm:
        block(connection, connection.services.alarm)


def block(connection: Connection, reason: str) -> None:
    """Stop reading a publisher and send it `connection.blocked` with the reason."""
    if connection.notify_blocked and not connection.blocked:
        connection.blocked = True
        connection.engine.send(0, "connection.blocked", {"reason": reason})
        connection.mark()
    connection.ingress.pause(ALARM)


def changed(connection: Connection, reason: str) -> None:
    """Handle the start of an alarm, or its end if `reason` is empty."""
    if not connection.opened or connection.closing:
        return
    if reason:
        connection.published_any = False
        if not connection.notify_blocked:
            # Clients without connection.blocked get channel.flow. One that keeps publishing is not read any more.
            for channel in connection.channels.values():
                channel.ask_to_pause()
    else:
        if connection.blocked:
            connection.blocked = False
            connection.engine.send(0, "connection.unblocked", {})
        for channel in connection.channels.values():
            channel.ask_to_resume()
        connection.ingress.release(ALARM)
    connection.mark()
