"""Which function carries out which method of 0-9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.errors import NotImplementedByBroker
from leveret.protocols.amqp09 import (
    basic_methods,
    channel_methods,
    dtx_methods,
    exchange_methods,
    file_methods,
    message_methods,
    qpid_methods,
    queue_methods,
    reference_methods,
    stream_methods,
    tunnel_methods,
)
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.wire.amqp0.commands import ContentMethod, Method

HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **channel_methods.HANDLERS,
    **exchange_methods.HANDLERS,
    **queue_methods.HANDLERS,
    **basic_methods.HANDLERS,
    **dtx_methods.HANDLERS,
    **file_methods.HANDLERS,
    **qpid_methods.HANDLERS,
    **stream_methods.HANDLERS,
    **message_methods.HANDLERS,
    **reference_methods.HANDLERS,
}
# Those with a content get the whole command.
CONTENT_HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **file_methods.CONTENT_HANDLERS,
    **stream_methods.CONTENT_HANDLERS,
    **tunnel_methods.CONTENT_HANDLERS,
}


def perform(channel: Channel, command: Method) -> None:
    """Carry out a method that is not hot. Raises BrokerError where it is refused."""
    if isinstance(command, ContentMethod):
        taker = CONTENT_HANDLERS.get(command.name)
        if taker is None:
            raise NotImplementedByBroker(f"{command.name} is not implemented")
        taker(channel, command)
        return
    handler = HANDLERS.get(command.name)
    if handler is None:
        raise NotImplementedByBroker(f"{command.name} is not implemented")
    handler(channel, **command.arguments)
