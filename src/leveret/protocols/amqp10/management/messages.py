"""Requests and responses of the management node as messages.

A request has `to` = path and query, `subject` = method, `message-id`, `reply-to` = `$me`, and one value as its body. A
response has `subject` = status, `correlation-id` = the request's message-id with its type, the application property
`http:response`, and one value as its body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, get_origin
from urllib.parse import parse_qsl, unquote

import msgspec

from leveret.broker import values
from leveret.broker.values import FieldTable, FieldValue
from leveret.management import structs
from leveret.management.operations import operation
from leveret.protocols.convert.values import MAX_DEPTH, name_of, plain, text_of, typed
from leveret.wire.amqp0.values import Arguments
from leveret.wire.amqp10 import descriptors, message
from leveret.wire.amqp10.composites import decode_value
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.values import (
    Byte,
    Checked,
    Described,
    Float,
    Int,
    Map,
    Short,
    Table,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession

REPLY_TO: Final = "$me"
# Descriptors of the body, by number and by name, and those of the other kinds of body.
BODY: Final = (descriptors.AMQP_VALUE, "amqp:amqp-value:*")
OTHER_BODIES: Final = (descriptors.DATA, "amqp:data:binary", descriptors.AMQP_SEQUENCE, "amqp:amqp-sequence:list")
# Maximum number of values in all sections of a request.
MAX_VALUES: Final = 8192
# The status of refusals for lack of a right.
FORBIDDEN: Final = 403
# Maximum length of an error text, which may quote the client.
MAX_TEXT_LENGTH: Final = 1000


class RequestRefused(Exception):
    """A refused request: the HTTP status and the text of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Request:
    """One request.

    Attributes:
        id: its message-id; None if it has none.
        method: "GET", "PUT", "POST" or "DELETE".
        target: path and query as received.
        segments: segments of the path, percent-encoded.
        query: decoded parameters of the query.
        body: the value; None if there is none.
    """

    def __init__(self) -> None:
        self.id: Checked = None
        self.method = ""
        self.target = ""
        self.segments: list[str] = []
        self.query: dict[str, str] = {}
        self.body: Checked = None


# A map in a response.
Answered: TypeAlias = dict[str, Value]


class Answer:
    """The response to a request.

    Attributes:
        kept: whether it waits until the change is on disk.
        removed: whether it first waits until the removal of the deleted object is complete.
        renewal: the verification of a token that it first waits for; None for none.
    """

    def __init__(
        self,
        status: int,
        body: Checked = None,
        kept: bool = False,
        removed: bool = False,
        renewal: Renewal | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.kept = kept
        self.removed = removed
        self.renewal = renewal


class Renewal:
    """The renewal of the client's token, which ends with the reason of a refusal or an empty string.

    Attributes:
        reason: the reason; None before the end.
    """

    def __init__(self, request: Request) -> None:
        self.reason: str | None = None
        self._request = request
        self._callback: Callable[[bytes], None] | None = None

    def resolve(self, reason: str) -> None:
        self.reason = reason
        if self._callback is not None:
            self._callback(encode(self._request, refusal(FORBIDDEN, reason)) if reason else b"")

    def when_resolved(self, callback: Callable[[bytes], None]) -> None:
        """Call `callback` at the end, with the response of a refusal or without a byte. It has not been reached yet."""
        self._callback = callback


def read(request: Request, payload: bytes) -> None:
    """Fill in a request, starting with the message-id, so that an error reply can refer to it."""
    try:
        properties = _sections(request, payload)
    except DecodeError as malformed:
        raise RequestRefused(400, f"the request cannot be read: {malformed}") from None
    if properties is None:
        raise RequestRefused(400, "the request has no properties: expected to, subject, message-id and reply-to")
    if not isinstance(properties.subject, str) or not isinstance(properties.to, str):
        raise RequestRefused(400, "the request requires a path in 'to' and a method in 'subject'")
    if properties.reply_to != REPLY_TO:
        raise RequestRefused(
            400, f"reply-to is {properties.reply_to!r}, expected '{REPLY_TO}': responses use the other link of the pair"
        )
    request.method = str(properties.subject)
    request.target = str(properties.to)
    path, _, query = request.target.partition("?")
    if not path.startswith("/"):
        raise RequestRefused(400, f"the path '{path}' does not begin with '/'")
    request.segments = path[1:].split("/")
    try:
        request.query = dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError:
        raise RequestRefused(400, f"the query '{query}' is not UTF-8 after percent-decoding") from None


def _sections(request: Request, payload: bytes) -> Properties | None:
    """Read the sections of a request into `id` and `body`, and return its properties.

    The order of the sections does not matter: RabbitMQ's Python client puts an empty body first.
    """
    found: Properties | None = None
    at = 0
    while at < len(payload):
        section, at = decode_value(payload, at, len(payload), MAX_VALUES)
        if isinstance(section, Properties):
            found = section
            request.id = section.message_id
        elif isinstance(section, Described):
            if section.descriptor in BODY:
                request.body = section.value
            elif section.descriptor in OTHER_BODIES:
                raise RequestRefused(400, "expected an amqp-value as body")
    return found


def encode(request: Request, answer: Answer) -> bytes:
    """Encode a response as a message."""
    properties = Properties(subject=str(answer.status), correlation_id=request.id)
    return (
        message.encode_properties(properties)
        + message.encode_application_properties({"http:response": "1.1"})
        + message.encode_body_value(answer.body)
    )


def refusal(status: int, text: str) -> Answer:
    body = text_of(text)
    return Answer(status, body if len(body) <= MAX_TEXT_LENGTH else body[: MAX_TEXT_LENGTH - 3] + "...")


def decoded(part: str) -> str:
    """Return a part of a path without percent-encoding."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise RequestRefused(400, f"'{part}' is not UTF-8 after percent-decoding") from None


def name_in(part: str, what: str) -> str:
    """Return a name in a path."""
    name = decoded(part)
    if "\n" in name or "\r" in name:
        raise RequestRefused(400, f"the name of {what} {name!r} contains a line feed or carriage return")
    return name


def context_of(connection: VhostSession) -> operation.VhostContext:
    """Return the context of an operation that a connection requests."""
    source = f"connection {connection.number}, /management"
    principal = operation.User(connection.account, connection.client_id(), source)
    return operation.VhostContext(connection.vhost, principal, connection, connection.services.auditor)


def kinds_of(struct: type[structs.Request]) -> dict[str, type]:
    """Return the field types of an operation's request, except that of the name, which is in the path."""
    return {
        field.encode_name: get_origin(field.type) or field.type
        for field in msgspec.structs.fields(struct)
        if field.name != "name"
    }


def fields_of(request: Request, what: str, kinds: dict[str, type]) -> Arguments:
    """Return the fields of the body, each of the type in `kinds`; absent and null fields are omitted.

    `arguments` are converted to 0-9-1 arguments.
    """
    body = request.body
    if not isinstance(body, dict):
        raise RequestRefused(400, f"expected a map with the fields of {what} as body: {', '.join(kinds)}")
    fields: Arguments = {}
    for key, value in body.items():
        kind = kinds.get(key) if isinstance(key, str) else None
        if kind is None:
            raise RequestRefused(400, f"bad {what} field {key!r}: expected {', '.join(kinds)}")
        if kind is dict and isinstance(value, (dict, Map)):
            fields[key] = _arguments(value)
        elif isinstance(value, kind):
            fields[key] = str(value) if kind is str else value
        elif value is not None:
            raise RequestRefused(400, f"bad {what} field '{key}': received {value!r}, expected {_NAMES[kind]}")
    return fields


_NAMES: Final[dict[type, str]] = {bool: "true or false", str: "a string", dict: "a map"}


# The stored types of numbers by those of 1.0.
_SIZED: Final[dict[type, type]] = {
    Byte: values.Int8,
    UByte: values.UInt8,
    Short: values.Int16,
    UShort: values.UInt16,
    Int: values.Int32,
    UInt: values.UInt32,
    int: values.Int64,
    ULong: values.UInt64,
    Float: values.Float32,
}
_SHOWN: Final[dict[type, type]] = {stored: kind for kind, stored in _SIZED.items()}


def shown(arguments: FieldTable) -> Answered:
    """Convert arguments for a response. Numbers have the type with which they were declared.

    Numbers without a type (`values.SIZED`) become `int` if they fit, which most clients send: RabbitMQ's Java client finds
    a binding by comparing its arguments and their types.
    """
    return {text_of(name): _typed(value) for name, value in arguments.items()}


def _typed(value: FieldValue) -> Value:
    try:
        return _shown(value, 1)
    except EncodeError as error:
        return f"({error})"


def _shown(value: FieldValue, depth: int) -> Value:
    if isinstance(value, dict) and depth <= MAX_DEPTH:
        return {text_of(key): _shown(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list) and depth <= MAX_DEPTH:
        return [_shown(item, depth + 1) for item in value]
    kind = _SHOWN.get(type(value))
    if kind is not None:
        number: Value = kind(value)
        return number
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return Int(value)
    return typed(value, depth)


def _stored(value: Value) -> FieldValue:
    """Convert an argument to one that a field table can contain, and keep the types of numbers."""
    if isinstance(value, dict):
        return {name_of(key): _stored(item) for key, item in value.items()}
    if isinstance(value, Map):
        return {name_of(key): _stored(item) for key, item in value.pairs}
    if isinstance(value, list):
        return [_stored(item) for item in value]
    kind = _SIZED.get(type(value))
    found = plain(value)
    if kind is None or isinstance(found, str):  # a ulong that fits no other protocol
        return found
    number: FieldValue = kind(found)
    return number


def _arguments(value: Table) -> FieldTable:
    arguments: FieldTable = {}
    for key, item in value.pairs if isinstance(value, Map) else value.items():
        if not isinstance(key, str):
            raise RequestRefused(400, f"bad argument {key!r}: expected a string as its name")
        arguments[str(key)] = _stored(item)
    return arguments
