"""Dispatch of 0-9 methods to the functions that perform them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.errors import NotImplementedByBroker
from leveret.protocols.amqp09.methods import basic, dtx, exchange, file, message, qpid, queue, reference, stream, tunnel
from leveret.protocols.amqp09.methods import channel as channel_methods
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.wire.amqp0.commands import ContentMethod, Method

HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **channel_methods.HANDLERS,
    **exchange.HANDLERS,
    **queue.HANDLERS,
    **basic.HANDLERS,
    **dtx.HANDLERS,
    **file.HANDLERS,
    **qpid.HANDLERS,
    **stream.HANDLERS,
    **message.HANDLERS,
    **reference.HANDLERS,
}
# Handlers of methods with content, which get the whole command.
CONTENT_HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **file.CONTENT_HANDLERS,
    **stream.CONTENT_HANDLERS,
    **tunnel.CONTENT_HANDLERS,
}


def perform(channel: Channel, command: Method) -> None:
    """Perform a method other than publish, ack and nack of class basic.

    Raises:
        BrokerError: the method is refused.
    """
    if isinstance(command, ContentMethod):
        content_handler = CONTENT_HANDLERS.get(command.name)
        if content_handler is None:
            raise NotImplementedByBroker(f"{command.name} is not implemented")
        content_handler(channel, command)
        return
    handler = HANDLERS.get(command.name)
    if handler is None:
        raise NotImplementedByBroker(f"{command.name} is not implemented")
    handler(channel, **command.arguments)
