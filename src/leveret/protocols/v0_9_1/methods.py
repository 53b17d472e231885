"""Which function carries out which method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotImplementedByBroker
from leveret.protocols.v0_9_1 import basic_methods, channel_methods, exchange_methods, queue_methods, tx_methods
from leveret.wire.amqp0.commands import Ack, Command, ContentPart, ContentStart, Error, Method, Nack, Publish

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.channel import Channel
    from leveret.protocols.v0_9_1.connection import Connection

HANDLERS: Final[dict[str, Callable[..., None]]] = {
    **channel_methods.HANDLERS, **exchange_methods.HANDLERS, **queue_methods.HANDLERS, **basic_methods.HANDLERS,
    **tx_methods.HANDLERS,
}


def perform(channel: Channel, command: Method) -> None:
    """Carry out a method that is not hot. Raises BrokerError where it is refused."""
    handler = HANDLERS.get(command.name)
    if handler is None:
        raise NotImplementedByBroker(f"{command.name} is not for a server")
    handler(channel, **command.arguments)


def open_channel(connection: Connection, number: int) -> None:
    channel_methods.open_channel(connection, number)


def ids_of(command: Command) -> tuple[int, int]:
    """Class and method id, for a close method. Of a part of a content those of `basic.publish`."""
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
    """For the log."""
    if isinstance(command, Method):
        return command.name
    class_id, method_id = ids_of(command)
    return f"method {class_id}.{method_id}"


def size_of(command: Method) -> int:
    """Those of a body in the arguments of a method (0-9 class message)."""
    if command.name == "message.append":
        return len(command.arguments["bytes"])
    if command.name == "message.transfer":
        return len(command.arguments["body"][1])
    return 0
