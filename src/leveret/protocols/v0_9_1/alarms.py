"""Alarms: while the broker is short of something, a connection that publishes is blocked.

Until then it is read as ever, whatever it published before the alarm, as RabbitMQ does: what it consumes, gets and
acknowledges may be what ends the alarm. The publish that blocks it is still taken. Clients without the capability
`connection.blocked` are asked to stop by `channel.flow` when the alarm begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.channel import Channel
    from leveret.protocols.v0_9_1.connection import Connection


def first_publish(connection: Connection, channel: Channel) -> None:
    """The first publish of the connection, or the first since the alarm began; without `connection.blocked`, of each
    channel. Requests to the broker make no publisher."""
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
    """Stop reading a publisher, and send it `connection.blocked` with the reason."""
    if connection.notify_blocked and not connection.blocked:
        connection.blocked = True
        connection.engine.send(0, "connection.blocked", {"reason": reason})
        connection.mark()
    connection.pause_input("alarm")


def changed(connection: Connection, reason: str) -> None:
    """There is an alarm, for this reason, or "": there is none any more."""
    if not connection.opened or connection.closing:
        return
    if reason:
        connection.published_any = False
        if not connection.notify_blocked:
            # Clients that do not know connection.blocked know channel.flow; one that goes on is not read any more.
            for channel in connection.channels.values():
                channel.ask_to_pause()
    else:
        if connection.blocked:
            connection.blocked = False
            connection.engine.send(0, "connection.unblocked", {})
        for channel in connection.channels.values():
            channel.ask_to_resume()
        connection.release_input("alarm")
    connection.mark()
