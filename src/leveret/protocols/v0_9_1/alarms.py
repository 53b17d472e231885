"""Alarms: while the broker is short of something publishers are held back, and told why (connection.blocked), or asked to
stop (channel.flow)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.channel import Channel
    from leveret.protocols.v0_9_1.connection import Connection


def first_publish(connection: Connection, channel: Channel) -> None:
    """From now on this is a publisher, whom alarms concern; without `connection.blocked`, each channel of it. Requests
    to the broker make no publisher."""
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
    """Read a publisher no more, and tell it why; who only consumes goes on, for that may be what ends the alarm."""
    if connection.notify_blocked and not connection.blocked:
        connection.blocked = True
        connection.engine.send(0, "connection.blocked", {"reason": reason})
        connection.mark()
    connection.hold_back("alarm")


def changed(connection: Connection, reason: str) -> None:
    """There is an alarm, for this reason, or "": there is none any more."""
    if not connection.opened or connection.closing:
        return
    if reason:
        if connection.notify_blocked:
            if connection.published_any:
                block(connection, reason)
        else:
            # Clients that do not know connection.blocked know channel.flow; one that goes on is not read any more.
            connection.published_any = False
            for channel in connection.channels.values():
                channel.ask_to_pause()
    else:
        if connection.blocked:
            connection.blocked = False
            connection.engine.send(0, "connection.unblocked", {})
        for channel in connection.channels.values():
            channel.ask_to_go_on()
        connection.release_input("alarm")
    connection.mark()
