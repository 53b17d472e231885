"""Client requests to the broker over the exchange `leveret.control` (docs/control-exchange.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from leveret.broker.errors import (
    INTERNAL_ERROR,
    BrokerError,
    CommandInvalid,
    ContentTooLarge,
    NotImplementedByBroker,
    ResourceError,
)
from leveret.broker.log import CommitWaiter
from leveret.broker.message import CONNECTION, Message
from leveret.broker.queues.requests import RequestHandler
from leveret.management.json_values import encode_json, fields_of, plain
from leveret.management.operations.operation import NO_AUDITOR, Auditor, Later, User, VhostContext, perform, read
from leveret.management.operations.table import VHOST_OPERATIONS
from leveret.management.structs import Reply

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost
    from leveret.management.ready_ages import ReadyAges
    from leveret.security.accounts import Account

VERSION: Final = 1
MAX_REQUEST_SIZE: Final = 1 << 20
# Pending requests per connection.
MAX_PENDING: Final = 100
DIRECT_REPLY: Final = "amq.rabbitmq.reply-to."

logger = logging.getLogger("leveret.control")


class RequestingSession(Protocol):
    """The part of a connection that requests use."""

    number: int
    user: str
    account: Account


class Envelopes(Protocol):
    """Reader of requests and builder of replies, in the protocol of the request."""

    def reply_to(self, vhost: Vhost, message: Message) -> str:
        """Return the name of the reply queue, or ""."""

    def content(self, message: Message) -> bytes:
        """Return the body of the request."""

    def reply(self, vhost: Vhost, message: Message, queue: str, body: bytes) -> Message:
        """Return the reply message, with the correlation id of the request."""


class Requests(RequestHandler):
    """Executor of requests. `session` returns a connection by its number, or None if it is closed."""

    def __init__(
        self,
        broker: Broker,
        session: Callable[[int], RequestingSession | None],
        envelopes: Envelopes,
        auditor: Auditor = NO_AUDITOR,
        ready_ages: ReadyAges | None = None,
    ) -> None:
        self._broker = broker
        self._session = session
        self._envelopes = envelopes
        self._auditor = auditor
        self._ready_ages = ready_ages
        # Number of pending requests by connection number.
        self._pending: dict[int, int] = {}

    def handle(self, vhost: Vhost, message: Message) -> None:
        session = self._session(message.publisher & CONNECTION)
        if session is None:
            return  # the connection is closed
        try:
            queue = self._reply_queue(vhost, message, session)
            if queue is None:
                logger.debug("ignored a request of '%s' without a reply queue", session.user)
                return
            self._execute(vhost, message, session, _Reply(self, message, queue))
        except Exception:
            fields = _log_fields(session, vhost)
            logger.exception("a request of '%s' in vhost '%s' failed", session.user, vhost.name, extra=fields)

    def _reply_queue(self, vhost: Vhost, message: Message, session: RequestingSession) -> Queue | None:
        """Return the reply queue, or None if the user may not use it.

        A queue with a broker-generated name, a queue that is exclusive to this connection, and a queue that the user may
        publish to are permitted.
        """
        name = self._envelopes.reply_to(vhost, message)
        queue = vhost.find_queue(name) if name else None
        if queue is None:
            return None
        owner = queue.lifetime.exclusive_owner
        if (
            owner is session
            or name.startswith(DIRECT_REPLY)
            or (owner is None and queue.lifetime.temporary and not queue.lifetime.auto_delete)
        ):
            return queue
        return queue if session.account.may(vhost.name, "write", "") else None

    def _execute(self, vhost: Vhost, message: Message, session: RequestingSession, reply: _Reply) -> None:
        pending = self._pending.get(session.number, 0)
        self._pending[session.number] = pending + 1
        if pending >= MAX_PENDING:
            reply.resolve(ResourceError(f"this connection has {pending} pending requests; expected at most {MAX_PENDING}"))
            return
        indexing = self._broker.indexing
        if indexing.is_active():
            indexing.after(partial(self._execute_indexed, vhost, message, session, reply))
        else:
            self._answer(vhost, message, session, reply)

    def _execute_indexed(self, vhost: Vhost, message: Message, session: RequestingSession, reply: _Reply) -> None:
        """Execute a request that has waited until all messages are indexed."""
        if self._session(session.number) is session:
            self._answer(vhost, message, session, reply)
        else:
            self._end_pending(session.number)  # the connection is closed

    def _answer(self, vhost: Vhost, message: Message, session: RequestingSession, reply: _Reply) -> None:
        try:
            principal = User(session.account, source=f"connection {session.number}, leveret.control")
            context = VhostContext(vhost, principal, session, self._auditor, self._ready_ages)
            answer = _perform(message, self._envelopes, context)
        except BrokerError as error:
            reply.resolve(error)
        except Exception:
            logger.exception(
                "request '%s' of '%s' in vhost '%s' failed",
                message.routing_key,
                session.user,
                vhost.name,
                extra=_log_fields(session, vhost),
            )
            reply.resolve(BrokerError(INTERNAL_ERROR))
        else:
            if isinstance(answer, Later):
                answer.when_resolved(reply.resolve)
            else:
                reply.resolve(answer)

    def _end_pending(self, number: int) -> None:
        """Note that a request of a connection is not pending any more."""
        pending = self._pending.pop(number) - 1
        if pending:
            self._pending[number] = pending

    def wait(self, reply: _Reply) -> None:
        """Send the reply when all earlier writes are on disk."""
        self._broker.log.wait(reply)

    def send(self, message: Message, queue: Queue, body: bytes) -> None:
        self._end_pending(message.publisher & CONNECTION)
        if not queue.deleted:
            queue.push(self._envelopes.reply(queue.vhost, message, queue.name, body))
            self._broker.end_turn()


class _Reply(CommitWaiter):
    """The reply to a request."""

    def __init__(self, requests: Requests, message: Message, queue: Queue) -> None:
        self._requests = requests
        self._message = message
        self._queue = queue
        self._body = b""

    def resolve(self, outcome: Reply | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            self._body = encode_json(
                {"version": VERSION, "ok": False, "error": {"condition": outcome.condition, "message": plain(str(outcome))}}
            )
        else:
            self._body = encode_json({"version": VERSION, "ok": True, **fields_of(outcome)})
        self._requests.wait(self)

    def committed(self, batch: int) -> None:
        self._requests.send(self._message, self._queue, self._body)


def _log_fields(session: RequestingSession, vhost: Vhost) -> dict[str, str | int]:
    return {"connection": session.number, "user": session.user, "vhost": vhost.name}


def _perform(message: Message, envelopes: Envelopes, context: VhostContext) -> Reply | Later[Reply]:
    """Execute the request in a message. Raises `BrokerError`."""
    if message.size > MAX_REQUEST_SIZE:
        raise ContentTooLarge(f"the request has {message.size} bytes; expected at most {MAX_REQUEST_SIZE}")
    name = message.routing_key
    operation = VHOST_OPERATIONS.get(name)
    if operation is None:
        raise NotImplementedByBroker(
            f"unknown operation '{plain(name)}'; expected one of {', '.join(sorted(VHOST_OPERATIONS))}"
        )
    try:
        given = msgspec.json.decode(envelopes.content(message), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandInvalid(f"the body of the request is not a JSON object: {error}") from None
    version = given.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise NotImplementedByBroker(f"unknown version {version!r} of requests; expected {VERSION}")
    try:
        request = read(name, operation.request, given)
    except ValueError as error:
        raise CommandInvalid(str(error)) from None
    return perform(operation, context, request)
