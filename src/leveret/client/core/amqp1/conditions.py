"""Error conditions of AMQP 1.0 as exceptions."""

from __future__ import annotations

from typing import Any, Final

from leveret.client.errors import (
    AccessRefused,
    ChannelClosed,
    ConnectionClosed,
    Error,
    LinkClosed,
    Nacked,
    NotFound,
    NotSupported,
    PreconditionFailed,
    PublishFailed,
    ResourceLocked,
    Returned,
)
from leveret.wire.amqp1 import constants, descriptors
from leveret.wire.amqp1.composite import Composite
from leveret.wire.amqp1.messaging import Modified, Rejected
from leveret.wire.amqp1.transport import Error as Condition

_KINDS: Final[dict[str, type[Error]]] = {
    constants.NOT_FOUND: NotFound,
    constants.RESOURCE_DELETED: NotFound,
    constants.UNAUTHORIZED_ACCESS: AccessRefused,
    constants.RESOURCE_LOCKED: ResourceLocked,
    constants.PRECONDITION_FAILED: PreconditionFailed,
    constants.NOT_IMPLEMENTED: NotSupported,
}
# What a server says when it stops or has failed: worth to connect again.
RETRYABLE_CONDITIONS: Final = (constants.CONNECTION_FORCED, constants.INTERNAL_ERROR, "")


def _with(error: Any, condition: Condition | None) -> Any:
    if condition is not None:
        error.condition = condition.condition
        error.reply_text = condition.description or ""
        error.info = condition.info
    return error


def text_of(condition: Condition | None) -> str:
    """Condition and description."""
    if condition is None:
        return "no reason given"
    return f"{condition.condition}: {condition.description}" if condition.description else condition.condition


def link_error(what: str, condition: Condition | None) -> Error:
    """A detach with an error, or a terminus that was refused. `what`: such as "the server refused the source 'x'"."""
    kind = _KINDS.get(condition.condition, LinkClosed) if condition is not None else LinkClosed
    error: Error = _with(kind(f"{what}: {text_of(condition)}"), condition)
    return error


def session_error(condition: Condition | None) -> Error:
    """An end that the server sent. The channel is closed, whatever the condition."""
    kind = _KINDS.get(condition.condition, ChannelClosed) if condition is not None else ChannelClosed
    if not issubclass(kind, ChannelClosed):
        kind = ChannelClosed
    error: Error = _with(kind(f"the server ended the session: {text_of(condition)}"), condition)
    return error


def connection_error(condition: Condition | None) -> ConnectionClosed:
    """A close that the server sent."""
    error: ConnectionClosed = _with(ConnectionClosed(f"the server closed the connection: {text_of(condition)}"), condition)
    return error


def breach(condition: str, text: str) -> ConnectionClosed:
    """A server that breaks the protocol: it is us who close the connection."""
    error: ConnectionClosed = _with(ConnectionClosed(f"the server broke the protocol: {condition}: {text}"),
                                    Condition(condition, text))
    return error


def publish_error(state: Composite | None, described: Any) -> PublishFailed | None:
    """What an outcome means for who has sent the message `described`; None for accepted."""
    kind = state.kind if state is not None else descriptors.ACCEPTED
    if kind == descriptors.ACCEPTED:
        return None
    if kind == descriptors.RELEASED:
        return Returned("the message came back: no queue took it (released)", messages=[described])
    if isinstance(state, Rejected):
        failed: PublishFailed = _with(Nacked(f"the server refused the message (rejected): {text_of(state.error)}",
                                             messages=[described]), state.error)
        return failed
    if isinstance(state, Modified):
        return Nacked("the server refused the message (modified"
                      f"{', delivery failed' if state.delivery_failed else ''}"
                      f"{', undeliverable here' if state.undeliverable_here else ''})", messages=[described])
    return Nacked(f"the server gave no outcome that is known (0x{kind:02x})", messages=[described])
