"""Dispatch of methods to the functions that perform them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotImplementedByBroker
from leveret.protocols.amqp091.methods import basic, exchange, queue, tx
from leveret.protocols.amqp091.methods import channel as channel_methods
from leveret.wire.amqp0.commands import Method

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel

HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **channel_methods.HANDLERS,
    **exchange.HANDLERS,
    **queue.HANDLERS,
    **basic.HANDLERS,
    **tx.HANDLERS,
}


def perform(channel: Channel, command: Method) -> None:
    """Perform a method other than publish, ack and nack.

    Raises:
        BrokerError: the method is refused.
    """
    handler = HANDLERS.get(command.name)
    if handler is None:
        raise NotImplementedByBroker(f"{command.name} is not implemented by the broker")
    handler(channel, **command.arguments)
