"""The connection of 0-9-1 (class connection)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.connection.base import BaseConnection
from leveret.protocols.amqp091.connection.handshake import Handshake
from leveret.protocols.amqp091.methods import channel as channel_methods
from leveret.protocols.amqp091.methods import dispatch
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.specs import V0_9_1

if TYPE_CHECKING:
    from leveret.protocols.adoption import Adoption


class Connection(BaseConnection):
    """One 0-9-1 connection."""

    def __init__(self, peer: Peer, services: Services, adoption: Adoption | None = None) -> None:
        super().__init__(peer, services, V0_9_1, "AMQP 0-9-1", Handshake(), adoption)

    def open_channel(self, command: Method) -> None:
        channel_methods.open_channel(self, command.channel)

    def perform_method(self, channel: Channel, command: Method) -> None:
        dispatch.perform(channel, command)
