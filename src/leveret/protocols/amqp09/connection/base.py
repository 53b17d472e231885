"""Connections of 0-9: additions to those of 0-9-1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.connection.handshake import Handshake
from leveret.protocols.amqp09.contents.streams import Pace
from leveret.protocols.amqp09.realms import Realms, Tickets
from leveret.protocols.amqp09.shared_state import Amqp09State
from leveret.protocols.amqp091.channel.channel import Channel as Channel091
from leveret.protocols.amqp091.connection.base import BaseConnection as BaseConnection091
from leveret.protocols.peer import Peer
from leveret.wire.amqp0.commands import Command, ContentPart
from leveret.wire.amqp0.specs import V0_9

if TYPE_CHECKING:
    from leveret.protocols.adoption import Adoption

# Class and method id of file.stage.
STAGE: Final = (70, 50)


# Channels searched for a consumer tag per unit of work, as a power of two.
CHANNELS_SHIFT: Final = 3


class BaseConnection(BaseConnection091):
    """Base class of connections. A subclass dispatches the methods of 0-9.

    Attributes:
        shared: state of all 0-9 connections.
        realms: realms of the vhost.
        tickets: tickets of each channel.
        pace: limits set by stream.qos for all channels together.
    """

    def __init__(self, peer: Peer, shared: Amqp09State, adoption: Adoption | None = None) -> None:
        super().__init__(peer, shared.services, V0_9, "AMQP 0-9", Handshake(shared), adoption)
        self.shared = shared
        self.qos_spec = True
        self.engine.max_upload_size = self.broker.uploads.settings.max_bytes
        self.realms = Realms({})
        self.tickets: list[Tickets] = []
        self.pace: Pace | None = None

    def apply_vhost_settings(self) -> None:
        BaseConnection091.apply_vhost_settings(self)
        self.qos_spec = True
        realms = self.shared.realms.get(self.vhost_name)
        if realms is not None:
            self.realms = realms

    def is_qpid_client(self) -> bool:
        """Return whether the client is a Qpid client, whose behaviour differs (docs/amqp-0-9-dialects.md)."""
        return self.handshake.client.is_qpid_client

    def ids_of(self, channel: Channel091, command: Command) -> tuple[int, int]:
        if isinstance(command, ContentPart) and isinstance(channel, Channel) and channel.files.receiving is not None:
            return STAGE
        return BaseConnection091.ids_of(self, channel, command)

    def published(self, channel: Channel091) -> None:
        """Apply alarms to the publisher of a content of a class other than basic."""
        if not self.published_any:
            self.first_publish(channel)

    def own_pace(self) -> Pace:
        """Return the limits set by stream.qos for all channels together."""
        if self.pace is None:
            self.pace = Pace(self.channels)
        return self.pace

    def channels_of_0_9(self) -> dict[int, Channel]:
        """Return the channels, typed as channels of 0-9."""
        return {number: channel for number, channel in self.channels.items() if isinstance(channel, Channel)}

    def connection_lost(self) -> None:
        if self.opened and not self.closing:
            self.shared.interrupted.interrupt(self)
        BaseConnection091.connection_lost(self)

    def _release(self) -> None:
        BaseConnection091._release(self)
        if self.pace is not None:
            self.pace.close(self.broker.timers)

    def tag_owner(self, tag: str) -> Channel091 | None:
        """Return the channel of the consumer with this tag.

        Tags are unique in the connection, except those of Qpid clients, which number them per channel.
        """
        if not self.is_qpid_client():
            self.broker.work += len(self.channels) >> CHANNELS_SHIFT
            for channel in self.channels.values():
                if tag in channel.consumers.by_tag:
                    return channel
        return None
