"""Dispatch of methods to the functions that perform them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotImplementedByBroker
from leveret.protocols.amqp091 import basic_methods, channel_methods, exchange_methods, queue_methods, tx_methods
from leveret.wire.amqp0.commands import Ack, Command, ContentPart, ContentStart, Error, Method, Nack, Publish

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel import Channel
    from leveret.protocols.amqp091.connection import Connection

HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **channel_methods.HANDLERS,
    **exchange_methods.HANDLERS,
    **queue_methods.HANDLERS,
    **basic_methods.HANDLERS,
    **tx_methods.HANDLERS,
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


def open_channel(connection: Connection, number: int) -> None:
    channel_methods.open_channel(connection, number)


def ids_of(command: Command) -> tuple[int, int]:
    """Return the class and method id for a close method. Parts of a content have those of `basic.publish`."""
    if isinstance(command, ContentStart) and command.method is not None:
        return command.method.class_id, command.method.method_id
    if isinstance(command, (Publish, ContentStart, ContentPart)):
        return 60, 40
    if isinstance(command, Ack):
        return 60, 80
    if isinstance(command, Nack):
        return (60, 90) if command.is_reject else (60, 120)
    if isinstance(command, (Method, Error)):
        return command.class_id, command.method_id
    return 0, 0


def name_of(command: Command) -> str:
    """Return the name of a command for the log."""
    if isinstance(command, Method):
        return command.name
    class_id, method_id = ids_of(command)
    return f"method {class_id}.{method_id}"


def size_of(command: Method) -> int:
    """Return the size in bytes of the body in the arguments of a method (0-9 class message)."""
    if command.name == "message.append":
        return len(command.arguments["bytes"])
    if command.name == "message.transfer":
        return len(command.arguments["body"][1])
    return 0
