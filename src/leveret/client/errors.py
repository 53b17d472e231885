"""The exceptions of the client: one tree, whose root is `Error`.

All of them can be pickled and copied: every attribute but the message has a default, so that they are built again from
the message alone and given their attributes afterwards.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from leveret.wire.amqp0 import constants
from leveret.wire.amqp0.table_0_9 import V0_9
from leveret.wire.amqp0.table_0_9_1 import V0_9_1

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.client.properties import Properties


class Unpublished(NamedTuple):
    """A message that the server did not take."""

    exchange: str
    routing_key: str
    properties: Properties | None
    body: bytes


class Error(Exception):
    """Whatever the client raises.

    reply_code  of the server (0-9-1 section 1.1, "404"), 0 where it gave none
    reply_text  of the server, ""
    class_id    class and method that the server complained about, 0
    method_id
    condition   of AMQP 1.0, such as "amqp:not-found", "" where there is none; its description is `reply_text`
    info        what came with the condition, a map
    """

    def __init__(self, message: str = "", *, reply_code: int = 0, reply_text: str = "", class_id: int = 0,
                 method_id: int = 0) -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id
        self.condition = ""
        self.info: Any = None

    @property
    def method(self) -> str:
        """The method that the server complained about, such as "queue.declare"; "" where it named none."""
        return method_name(self.class_id, self.method_id)


_AnyError = TypeVar("_AnyError", bound=Error)


class ConnectionFailed(Error):
    """No connection could be opened to `host` and `port`."""

    def __init__(self, message: str = "", *, host: str = "", port: int = 0, reply_code: int = 0, reply_text: str = "",
                 class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(message, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)
        self.host = host
        self.port = port


class ProtocolMismatch(ConnectionFailed):
    """The server speaks another protocol, or another version of this one: `speaks`, such as "1.0", where it said so."""

    speaks = ""


class Redirected(ConnectionFailed):
    """The server sends us to another one, at `host` and `port` (AMQP 0-9), or to one of its `known_hosts` where that one is
    not there; the client goes there by itself."""

    known_hosts: tuple[tuple[str, int], ...] = ()


class TlsFailed(ConnectionFailed):
    """TLS could not be set up: files that cannot be used, or a certificate that is not trusted."""


class AuthenticationFailed(ConnectionFailed):
    """The server refused the user, the password or the mechanism."""


class VhostRefused(ConnectionFailed):
    """The vhost does not exist or the user may not use it."""


class ConnectionClosed(Error):
    """The connection was closed, by the server (with a reply code) or by us (with 0)."""


class ConnectionLost(ConnectionClosed):
    """The socket broke, or the server fell silent."""


class ChannelClosed(Error):
    """The channel was closed, by the server (with a reply code) or by us (with 0)."""


class AccessRefused(ChannelClosed):
    """403: the user lacks a permission."""


class NotFound(ChannelClosed):
    """404: there is no such queue or exchange."""


class ResourceLocked(ChannelClosed):
    """405: the queue is exclusive to somebody else."""


class PreconditionFailed(ChannelClosed):
    """406: it exists with other arguments, is in use, or a delivery tag is unknown."""


class LinkClosed(ChannelClosed):
    """The peer has ended a link of AMQP 1.0; its channel goes on."""


class NotSupported(Error):
    """The protocol of the connection, or the peer, does not know it."""


class PublishFailed(Error):
    """Messages that the server did not take: `messages`, each (exchange, routing key, properties, body)."""

    def __init__(self, message: str = "", *,
                 messages: Iterable[tuple[str, str, Properties | None, bytes]] = (), reply_code: int = 0,
                 reply_text: str = "", class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(message, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)
        self.messages = [Unpublished(*message) for message in messages]


class Nacked(PublishFailed):
    """The server refused to take responsibility: a full queue with `reject-publish`, or an internal error. Over AMQP 1.0
    the outcomes rejected and modified."""


class Returned(PublishFailed):
    """A mandatory message without a queue (312), or an immediate one without a consumer (313). Over AMQP 1.0 the outcome
    released."""

    @property
    def message(self) -> Unpublished | None:
        """The message as it came back, the first where there are several."""
        return self.messages[0] if self.messages else None


class ConsumerCancelled(Error):
    """The server ended a consumer: its queue is gone."""

    def __init__(self, message: str = "", *, consumer_tag: str = "", reply_code: int = 0, reply_text: str = "",
                 class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(message, reply_code=reply_code, reply_text=reply_text, class_id=class_id, method_id=method_id)
        self.consumer_tag = consumer_tag


class Timeout(Error, TimeoutError):
    """The server did not answer in time, or no connection came back in time."""


class InvalidMessage(Error, ValueError):
    """A message that cannot be encoded; nothing of it was sent. Or properties received that cannot be decoded."""


class InvalidUrl(Error, ValueError):
    """A URL or an option that cannot be used."""


class TransactionLost(Error):
    """The server has rolled a transaction back: the connection was lost within it, or it could not be committed."""


def copy_error(error: _AnyError) -> _AnyError:
    """A copy, to be raised: an exception that is kept must not keep the frames that it was raised through, with all their
    variables, nor may threads raise the same one at a time."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again


_CHANNEL_ERRORS: Final[dict[int, type[ChannelClosed]]] = {
    constants.ACCESS_REFUSED: AccessRefused,
    constants.NOT_FOUND: NotFound,
    constants.RESOURCE_LOCKED: ResourceLocked,
    constants.PRECONDITION_FAILED: PreconditionFailed,
}

# What may help, by reply code and what the text says. RabbitMQ and Leveret use the same phrases.
_HINTS: Final = (
    (constants.ACCESS_REFUSED, "refused for user", "expected a user with that permission (option user)"),
    (constants.ACCESS_REFUSED, "in exclusive use", "expected a queue that nobody consumes exclusively"),
    (constants.NOT_FOUND, "no exchange", "expected an exchange that exists: declare it first"),
    (constants.NOT_FOUND, "no queue", "expected a queue that exists: declare it first"),
    (constants.RESOURCE_LOCKED, "exclusive", "expected the connection that declared it with exclusive=True"),
    (constants.PRECONDITION_FAILED, "inequivalent", "expected what it was declared with, or passive=True"),
    (constants.PRECONDITION_FAILED, "unknown delivery tag",
     "expected each message settled once, on the channel that it came from"),
    (constants.PRECONDITION_FAILED, "timed out", "expected messages settled in the time that the server gives consumers"),
    (constants.PRECONDITION_FAILED, "in use", "expected it unused, or if_unused left out"),
    (constants.PRECONDITION_FAILED, "not empty", "expected it empty, or if_empty left out"),
    (constants.FRAME_ERROR, "large", "option frame_max says how large frames may be"),
)


def method_name(class_id: int, method_id: int) -> str:
    """The name of a method of 0-9-1 or 0-9, such as "queue.declare"; "" for one that does not exist."""
    key = class_id << 16 | method_id
    spec = V0_9_1.methods.get(key) or V0_9.methods.get(key)
    return "" if spec is None else spec.name


def closed_error(reply_code: int, reply_text: str, class_id: int, method_id: int, *, channel: bool) -> Error:
    """The exception for a close that the server sent: `ChannelClosed` or one below it for a channel, otherwise
    `ConnectionClosed`."""
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


def breach_error(reply_code: int, text: str, class_id: int = 0, method_id: int = 0) -> ConnectionClosed:
    """The exception for a server that breaks the protocol: it is us who close the connection."""
    return ConnectionClosed(f"the server broke the protocol: {_reply(reply_code, text)}", reply_code=reply_code,
                            reply_text=f"the server broke the protocol: {text}", class_id=class_id, method_id=method_id)


def _reply(code: int, text: str) -> str:
    """Code and text; servers repeat the code's name in front of the text, or leave the text out."""
    return f"{code} {text or constants.REPLY_NAMES.get(code, '')}".strip()
