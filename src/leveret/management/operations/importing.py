"""Publish messages that `messages.export` has returned, or that were written in the same format.

A message that is refused does not prevent the others. A batch that ends early reports how many messages it has processed.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Literal

from msgspec import field

from leveret.broker.errors import INTERNAL_ERROR, AccessRefused, BrokerError, PreconditionFailed, ResourceError
from leveret.broker.log import OK
from leveret.management.descriptions import EncodedMessage
from leveret.management.json_values import exact_text
from leveret.management.operations.browsing import Turns
from leveret.management.operations.messages import (
    Publish,
    address_to,
    check_alarm,
    keys_of,
    payload_of,
    push,
    route_to,
)
from leveret.management.operations.operation import EACH, Context, Operation, Operations, check, check_topics, read
from leveret.management.structs import Reply, Request

logger = logging.getLogger("leveret.control")

MAX_MESSAGES: Final = 1000


class Import(Request, kw_only=True):
    """Request to publish messages.

    Attributes:
        messages: The messages, each with the keys of `ImportedMessage`.
        exchange: The exchange for all messages; None for that of each message.
        routing_key: The routing key for all messages; None for that of each message.
        queue: The queue that gets all messages, which keep their exchanges and routing keys; None to route them.
    """

    vhost: str = "/"
    messages: list[dict[str, Any]]
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None


class ImportedMessage(Request, kw_only=True):
    """A message to publish. Its place, its deliveries and its size are ignored.

    Attributes:
        exchange: The exchange; an object with the key `$string` if the name is not UTF-8, as in `routing_key`.
        properties: The properties of AMQP 0-9-1, with typed headers.
        amqp10: The sections of a message of AMQP 1.0, in place of `properties`.
        masked: Whether parts of the message were hidden in the export.
        malformed: Why the export could not decode the message.
    """

    exchange: Any = ""
    routing_key: Any = ""
    payload: str = ""
    payload_encoding: Literal["string", "base64"] = "string"
    properties: dict[str, Any] = field(default_factory=dict)
    amqp10: dict[str, Any] | None = None
    masked: bool = False
    malformed: str = ""
    id: int = 0
    redelivered: bool = False
    deliveries: int = 0
    failures: int = 0
    time: int = 0
    protocol: str = ""
    payload_bytes: int = 0


class Refused(Reply, kw_only=True):
    """A message that was not published: its index in the request, and the reason."""

    index: int
    reason: str


class Imported(Reply, kw_only=True):
    """The result of an import.

    Attributes:
        processed: Number of messages that were published or refused: the first ones of the request.
        imported: Number of messages that a queue got.
        unroutable: The indexes of messages that no queue got.
        refused: The messages that were refused.
        stopped: Why the others were not published; "" if all were processed.
    """

    processed: int = 0
    imported: int = 0
    unroutable: list[int] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    stopped: str = ""


class _Prepared:
    """A message whose properties and payload are encoded."""

    def __init__(self, context: Context, request: Import, number: int) -> None:
        """Encode a message, in any thread. Raises `BrokerError` or `ValueError`."""
        given = read("invalid message", ImportedMessage, request.messages[number])
        if given.masked:
            raise ValueError("parts of the message are hidden; export it as a user who may read them (management.mask)")
        if given.malformed:
            raise ValueError("the export could not decode the message; move or copy it instead")
        exchange = given.exchange if request.exchange is None else request.exchange
        routing_key = given.routing_key if request.routing_key is None else request.routing_key
        self.target = Publish(
            vhost=request.vhost,
            exchange=exact_text("exchange", exchange),
            routing_key=exact_text("routing_key", routing_key),
        )
        fields = {"properties": given.properties, "amqp10": given.amqp10}
        payload = payload_of(given.payload, given.payload_encoding)
        self.encoded: EncodedMessage = context.managed.codec.encode_typed(fields, payload, context.principal.user)


def _prepare(context: Context, request: Import) -> list[_Prepared | str]:
    """Encode the messages, in any thread. A text is the reason why one is refused."""
    return [_prepared(context, request, number) for number in range(len(request.messages))]


def _prepared(context: Context, request: Import, number: int) -> _Prepared | str:
    try:
        return _Prepared(context, request, number)
    except (BrokerError, ValueError) as error:
        return str(error)
    except RecursionError:
        return "values of the message are nested too deep"
    except Exception:  # the other messages must still be published
        logger.exception("internal error in message %d of an import", number + 1)
        return INTERNAL_ERROR


class _Publisher:
    """Publishes the messages of one request."""

    def __init__(self, context: Context, request: Import) -> None:
        """Check the target. Raises `BrokerError`."""
        self._context = context
        self._vhost = context.vhost(request.vhost)
        self._queue = None
        if request.queue is not None:
            if request.exchange is not None or request.routing_key is not None:
                raise PreconditionFailed("a queue and an exchange or routing_key; expected one of them")
            check(context, request.vhost, "write", request.queue)
            self._queue = self._vhost.queue(request.queue, None)
        elif request.exchange is not None:
            check(context, request.vhost, "write", request.exchange)
            self._vhost.exchange(request.exchange)

    def publish(self, message: _Prepared) -> bool:
        """Publish a message. Return whether a queue gets it. Raises `BrokerError`."""
        context, target = self._context, message.target
        address = address_to(target)
        made = context.managed.codec.make(address, message.encoded)
        if self._queue is None:
            route = route_to(context, target, address)
            return push(context, self._vhost, route, made, keys_of(context, target, route, made))
        self._check_origin(target)
        if self._queue.deleted:
            raise PreconditionFailed(f"{self._queue} was deleted")
        if not self._queue.push(made):
            raise ResourceError(f"{self._queue} is full (x-overflow)")
        return True

    def _check_origin(self, target: Publish) -> None:
        """Raise `AccessRefused` unless the principal may publish what consumers take for a message of an exchange."""
        check(self._context, target.vhost, "write", target.exchange)
        exchange = self._vhost.exchanges.get(target.exchange)
        if exchange is None:
            return
        if exchange.internal:
            raise AccessRefused(f"cannot publish to exchange '{target.exchange}' in vhost '{target.vhost}'")
        if exchange.has_topics:
            check_topics(self._context, target.vhost, target.exchange, [target.routing_key])


def _check_storage(context: Context) -> None:
    """Raise `ResourceError` if the broker takes no messages now."""
    check_alarm(context)
    log = context.broker.log
    if log.state != OK:
        raise ResourceError(f"no messages are stored: {log.reason}")


async def import_messages(context: Context, request: Import) -> Imported:
    """Publish messages."""
    if len(request.messages) > MAX_MESSAGES:
        raise PreconditionFailed(f"{len(request.messages)} messages; expected at most {MAX_MESSAGES}")
    publisher = _Publisher(context, request)
    turns = Turns(context)
    result = Imported()
    for index, message in enumerate(await context.managed.in_thread(lambda: _prepare(context, request))):
        try:
            _check_storage(context)
        except ResourceError as error:
            result.stopped = str(error)
            break
        try:
            if isinstance(message, str):
                result.refused.append(Refused(index=index, reason=message))
            elif publisher.publish(message):
                result.imported += 1
            else:
                result.unroutable.append(index)
        except BrokerError as error:
            result.refused.append(Refused(index=index, reason=str(error)))
        result.processed += 1
        await turns.pause()
    return result


OPERATIONS: Final[Operations] = {"messages.import": Operation(import_messages, Import, Imported, EACH, changes=True)}
