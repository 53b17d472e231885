"""The connection of 0-9 (class connection)."""

from __future__ import annotations

from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.connection.base import BaseConnection
from leveret.protocols.amqp09.methods import channel as channel_methods
from leveret.protocols.amqp09.methods import dispatch
from leveret.protocols.amqp091.channel.channel import Channel as Channel091
from leveret.wire.amqp0.commands import Method


class Connection(BaseConnection):
    """One 0-9 connection."""

    def open_channel(self, command: Method) -> None:
        channel_methods.open_channel(self, command)

    def perform_method(self, channel: Channel091, command: Method) -> None:
        if isinstance(channel, Channel):
            channel.begin_method(command)
            try:
                dispatch.perform(channel, command)
            finally:
                channel.end_method()
        else:
            dispatch.perform(channel, command)
