"""Ids, names and sizes of commands, for close methods, log messages and backlog limits."""

from __future__ import annotations

from leveret.wire.amqp0.commands import Ack, Command, ContentPart, ContentStart, Error, Method, Nack, Publish


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
