"""Exceptions of the client; `Error` is their base class.

All exceptions can be pickled and copied: every constructor argument except the message has a default, so that an exception
is rebuilt from its message and its attributes are restored afterwards.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from leveret.wire.amqp0 import constants
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.table_amqp091 import V0_9_1

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.client.properties import Properties


class Unpublished(NamedTuple):
    """A message that the server did not accept."""

    exchange: str
    routing_key: str
    properties: Properties | None
    body: bytes


class Error(Exception):
    """Base class of the client's exceptions.

    Attributes:
        reply_code: Reply code of the server (0-9-1 section 1.1, such as 404), 0 if there is none.
        reply_text: Reply text of the server, or the description of `condition`.
        class_id: Class of the method that the server rejected, 0 if there is none.
        method_id: Method that the server rejected, 0 if there is none.
        condition: AMQP 1.0 error condition, such as "amqp:not-found"; "" if there is none.
        info: Map that accompanies the condition.
    """

    def __init__(
        self, message: str = "", *, reply_code: int = 0, reply_text: str = "", class_id: int = 0, method_id: int = 0
    ) -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id
        self.condition = ""
        self.info: Any = None

    @property
    def method(self) -> str:
        """The method that the server rejected, such as "queue.declare"; "" if there is none."""
        return method_name(self.class_id, self.method_id)


_AnyError = TypeVar("_AnyError", bound=Error)


class ConnectionFailed(Error):
    """The client could not connect to `host` and `port`."""

    def __init__(
        self,
        message: str = "",
        *,
        host: str = "",
        port: int = 0,
        reply_code: int = 0,
        reply_text: str = "",
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        super().__init__(message, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)
        self.host = host
        self.port = port


class ProtocolMismatch(ConnectionFailed):
    """The server speaks another protocol or version. `speaks` is its version, such as "1.0", if it sent one."""

    speaks = ""


def no_amqp_server(first: bytes, host: str, port: int) -> ProtocolMismatch:
    """Return the error about a server whose first bytes are not of AMQP. It names HTTP and TLS, but does not quote them."""
    spoken, expected = "", "expected one, or amqps:// if the port uses TLS"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):  # an alert or a handshake of TLS
        spoken, expected = ": the port uses TLS", "expected amqps://"
    elif first.startswith(b"HTTP/"):
        spoken, expected = ": the port speaks HTTP", "expected the port of an AMQP server"
    return ProtocolMismatch(f"no AMQP server at {host}:{port}{spoken}; {expected}", host=host, port=port)


class Redirected(ConnectionFailed):
    """The server redirects the client to `host` and `port` (AMQP 0-9); `known_hosts` are alternatives.

    The client follows redirects automatically.
    """

    known_hosts: tuple[tuple[str, int], ...] = ()


class TlsFailed(ConnectionFailed):
    """TLS could not be set up: a file cannot be used, or a certificate is not trusted."""


class AuthenticationFailed(ConnectionFailed):
    """The server refused the user, the password or the mechanism."""


class VhostRefused(ConnectionFailed):
    """The vhost does not exist, or the user may not access it."""


class ConnectionClosed(Error):
    """The connection was closed, by the server (with a reply code) or by the client (0)."""


class ConnectionLost(ConnectionClosed):
    """The socket broke, or the server sent no data for two heartbeat intervals."""


class ChannelClosed(Error):
    """The channel was closed, by the server (with a reply code) or by the client (0)."""


class AccessRefused(ChannelClosed):
    """403: a permission is missing."""


class NotFound(ChannelClosed):
    """404: the queue or exchange does not exist."""


class ResourceLocked(ChannelClosed):
    """405: the queue is exclusive to another connection."""


class PreconditionFailed(ChannelClosed):
    """406: declared with other arguments, in use, not empty, or unknown delivery tag."""


class LinkClosed(ChannelClosed):
    """The server ended or refused an AMQP 1.0 link; its channel stays open."""


class NotSupported(Error):
    """The protocol of the connection, or the server, does not support the operation."""


class PublishFailed(Error):
    """The server did not accept messages.

    Attributes:
        messages: The messages, each (exchange, routing key, properties, body).
    """

    def __init__(
        self,
        message: str = "",
        *,
        messages: Iterable[tuple[str, str, Properties | None, bytes]] = (),
        reply_code: int = 0,
        reply_text: str = "",
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        super().__init__(message, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)
        self.messages = [Unpublished(*message) for message in messages]


class Nacked(PublishFailed):
    """The server refused a message: a queue with `reject-publish` is full, or an internal error occurred.

    Over AMQP 1.0, the outcomes rejected and modified.
    """


class Returned(PublishFailed):
    """A mandatory message had no queue (312), or an immediate one no consumer (313).

    Over AMQP 1.0, the outcome released.
    """

    @property
    def message(self) -> Unpublished | None:
        """The first returned message."""
        return self.messages[0] if self.messages else None


class BatchFailed(PublishFailed):
    """Messages of a batch were not published; the others were.

    Attributes:
        unroutable: Numbers of the messages without a queue, in the order of the batch from 0.
        refused: Numbers of the messages that a queue refused.
        messages: All these messages, in the same order.
    """

    def __init__(
        self,
        message: str = "",
        *,
        messages: Iterable[tuple[str, str, Properties | None, bytes]] = (),
        unroutable: Iterable[int] = (),
        refused: Iterable[int] = (),
        reply_code: int = 0,
        reply_text: str = "",
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        super().__init__(
            message,
            messages=messages,
            reply_code=reply_code,
            reply_text=reply_text,
            class_id=class_id,
            method_id=method_id,
        )
        self.unroutable = list(unroutable)
        self.refused = list(refused)


class ConsumerCancelled(Error):
    """The server cancelled a consumer because its queue was deleted or became unavailable."""

    def __init__(
        self,
        message: str = "",
        *,
        consumer_tag: str = "",
        reply_code: int = 0,
        reply_text: str = "",
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        super().__init__(message, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)
        self.consumer_tag = consumer_tag


class Timeout(Error, TimeoutError):
    """The server did not reply in time, or no connection was available in time."""


class InvalidMessage(Error, ValueError):
    """A message cannot be encoded and was not sent, or received properties cannot be decoded."""


class InvalidUrl(Error, ValueError):
    """A URL or an option is invalid."""


class TransactionLost(Error):
    """The server rolled back a transaction: the connection was lost during it, or the commit failed."""


def copy_error(error: _AnyError) -> _AnyError:
    """Return a copy of an error to raise.

    A stored exception must not keep the frames that it passes through alive, and threads must not raise the same object
    concurrently.
    """
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again


_CHANNEL_ERRORS: Final[dict[int, type[ChannelClosed]]] = {
    constants.ACCESS_REFUSED: AccessRefused,
    constants.NOT_FOUND: NotFound,
    constants.RESOURCE_LOCKED: ResourceLocked,
    constants.PRECONDITION_FAILED: PreconditionFailed,
}

# Hints by reply code and a phrase of the reply text. RabbitMQ and Leveret use the same phrases.
_HINTS: Final = (
    (constants.ACCESS_REFUSED, "refused for user", "expected a user with that permission (option user)"),
    (constants.ACCESS_REFUSED, "in exclusive use", "expected a queue without an exclusive consumer"),
    (constants.NOT_FOUND, "no exchange", "expected an exchange that exists: declare it first"),
    (constants.NOT_FOUND, "no queue", "expected a queue that exists: declare it first"),
    (constants.RESOURCE_LOCKED, "exclusive", "expected the connection that declared it with exclusive=True"),
    (constants.PRECONDITION_FAILED, "inequivalent", "expected the arguments of the first declaration, or passive=True"),
    (
        constants.PRECONDITION_FAILED,
        "unknown delivery tag",
        "expected each message to be settled once, on the channel that received it",
    ),
    (constants.PRECONDITION_FAILED, "timed out", "expected messages to be settled within the server's consumer timeout"),
    (constants.PRECONDITION_FAILED, "in use", "expected no consumers, or no if_unused"),
    (constants.PRECONDITION_FAILED, "not empty", "expected an empty queue, or no if_empty"),
    (constants.FRAME_ERROR, "large", "expected frames of at most frame_max bytes (option frame_max)"),
)


def method_name(class_id: int, method_id: int) -> str:
    """Return the name of a 0-9-1 or 0-9 method, such as "queue.declare"; "" if it does not exist."""
    key = class_id << 16 | method_id
    spec = V0_9_1.methods.get(key) or V0_9.methods.get(key)
    return "" if spec is None else spec.name


def closed_error(reply_code: int, reply_text: str, class_id: int, method_id: int, *, channel: bool) -> Error:
    """Return the exception for a close by the server: a `ChannelClosed` for a channel, otherwise a `ConnectionClosed`."""
    kind: type[ChannelClosed | ConnectionClosed] = ConnectionClosed
    if channel:
        kind = _CHANNEL_ERRORS.get(reply_code, ChannelClosed)
    name = method_name(class_id, method_id)
    text = f"the server closed the {'channel' if channel else 'connection'}: {_reply(reply_code, reply_text)}"
    if name:
        text += f" ({name})"
    for code, phrase, help in _HINTS:
        if code == reply_code and phrase in reply_text:
            text += f"; {help}"
            break
    return kind(text, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)


BROKEN: Final = "the server broke the protocol"


def protocol_error(reply_code: int, text: str, class_id: int = 0, method_id: int = 0) -> ConnectionClosed:
    """Return the exception for a server that broke the protocol, which makes the client close the connection."""
    return ConnectionClosed(
        f"{BROKEN}: {_reply(reply_code, text)}",
        reply_code=reply_code,
        reply_text=f"{BROKEN}: {text}",
        class_id=class_id,
        method_id=method_id,
    )


def _reply(code: int, text: str) -> str:
    """Return code and text. Some servers omit the text; others prefix it with the code's name."""
    return f"{code} {text or constants.REPLY_NAMES.get(code, '')}".strip()
