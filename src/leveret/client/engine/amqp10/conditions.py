"""Exceptions for error conditions and outcomes of AMQP 1.0."""

from __future__ import annotations

from typing import Final

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
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Modified, Rejected
from leveret.wire.amqp10.transport import Error as Condition
from leveret.wire.amqp10.values import Checked

_KINDS: Final[dict[str, type[Error]]] = {
    constants.NOT_FOUND: NotFound,
    constants.RESOURCE_DELETED: NotFound,
    constants.UNAUTHORIZED_ACCESS: AccessRefused,
    constants.RESOURCE_LOCKED: ResourceLocked,
    constants.PRECONDITION_FAILED: PreconditionFailed,
    constants.NOT_IMPLEMENTED: NotSupported,
}
# Conditions of a server that shuts down or has failed, after which a reconnect may succeed.
RETRYABLE_CONDITIONS: Final = (constants.CONNECTION_FORCED, constants.INTERNAL_ERROR, "")


def _with(error: Checked, condition: Condition | None) -> Checked:
    if condition is not None:
        error.condition = condition.condition
        error.reply_text = condition.description or ""
        error.info = condition.info
    return error


def text_of(condition: Condition | None) -> str:
    """Return condition and description as text."""
    if condition is None:
        return "no reason given"
    return f"{condition.condition}: {condition.description}" if condition.description else condition.condition


def link_error(what: str, condition: Condition | None) -> Error:
    """Return the exception for a detach with an error or a refused terminus.

    Args:
        what: What happened, such as "the server refused the source 'x'".
        condition: The server's error.
    """
    kind = _KINDS.get(condition.condition, LinkClosed) if condition is not None else LinkClosed
    error: Error = _with(kind(f"{what}: {text_of(condition)}"), condition)
    return error


def session_error(condition: Condition | None) -> Error:
    """Return the exception for an end sent by the server; always a `ChannelClosed`."""
    kind = _KINDS.get(condition.condition, ChannelClosed) if condition is not None else ChannelClosed
    if not issubclass(kind, ChannelClosed):
        kind = ChannelClosed
    error: Error = _with(kind(f"the server ended the session: {text_of(condition)}"), condition)
    return error


def connection_error(condition: Condition | None) -> ConnectionClosed:
    """Return the exception for a close sent by the server."""
    error: ConnectionClosed = _with(ConnectionClosed(f"the server closed the connection: {text_of(condition)}"), condition)
    return error


def protocol_error(condition: str, text: str) -> ConnectionClosed:
    """Return the exception for a server that broke the protocol, which makes the client close the connection."""
    error: ConnectionClosed = _with(
        ConnectionClosed(f"the server broke the protocol: {condition}: {text}"), Condition(condition, text)
    )
    return error


def publish_error(state: Composite | None, described: Checked) -> PublishFailed | None:
    """Return the exception for the outcome of the message `described`; None for accepted."""
    kind = state.kind if state is not None else descriptors.ACCEPTED
    if kind == descriptors.ACCEPTED:
        return None
    if kind == descriptors.RELEASED:
        return Returned("the message was returned: no queue accepted it (released)", messages=[described])
    if isinstance(state, Rejected):
        failed: PublishFailed = _with(
            Nacked(f"the server refused the message (rejected): {text_of(state.error)}", messages=[described]), state.error
        )
        return failed
    if isinstance(state, Modified):
        return Nacked(
            "the server refused the message (modified"
            f"{', delivery failed' if state.delivery_failed else ''}"
            f"{', undeliverable here' if state.undeliverable_here else ''})",
            messages=[described],
        )
    return Nacked(f"the server sent an unknown outcome (0x{kind:02x})", messages=[described])
