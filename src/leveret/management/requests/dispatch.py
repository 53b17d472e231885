"""From a message that was published to `leveret.control` to its reply."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from leveret.broker.errors import (
    MISTAKE,
    BrokerError,
    CommandInvalid,
    ContentTooLarge,
    NotImplementedByBroker,
    ResourceError,
)
from leveret.broker.log import CommitWaiter
from leveret.broker.message import CONNECTION, Message
from leveret.broker.queues.requests import RequestHandler
from leveret.management.calls import encode_json, plain
from leveret.management.requests import leases, queues, stages, streams
from leveret.management.requests.operation import Asked, AskingSession, Fields, Later, Operation

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.base import Queue
    from leveret.broker.vhost import Vhost
    from leveret.security.users import UserStore

VERSION: Final = 1
LARGEST: Final = 1 << 20
# Requests of one connection that may wait for their answers.
MOST_WAITING: Final = 100
DIRECT_REPLY: Final = "amq.rabbitmq.reply-to."

OPERATIONS: dict[str, Operation] = {
    **queues.OPERATIONS,
    **leases.OPERATIONS,
    **streams.OPERATIONS,
    **stages.OPERATIONS,
}

log = logging.getLogger("leveret.control")


class Envelopes(Protocol):
    """What is read of a request, and written around a reply, in the format of the protocol that the request came in."""

    def reply_to(self, vhost: Vhost, message: Message) -> str:
        """The name of the queue that the reply goes to, "" where there is none."""

    def content(self, message: Message) -> bytes:
        """The request itself."""

    def reply(self, vhost: Vhost, message: Message, queue: str, body: bytes) -> Message:
        """The reply to a request, with its correlation id."""


class Requests(RequestHandler):
    """Carries requests out. `session` finds a connection by its number, None for one that is gone."""

    def __init__(self, broker: Broker, users: UserStore, session: Callable[[int], AskingSession | None],
                 envelopes: Envelopes) -> None:
        self._broker = broker
        self._users = users
        self._session = session
        self._envelopes = envelopes
        # Requests that are not answered yet, by the number of their connection.
        self._waiting: dict[int, int] = {}

    def handle(self, vhost: Vhost, message: Message) -> None:
        session = self._session(message.publisher & CONNECTION)
        if session is None:
            return  # nobody knows any more who asked
        try:
            queue = self._reply_queue(vhost, message, session)
            if queue is None:
                log.debug("a request of '%s' without a queue for the reply is not carried out", session.user)
                return
            self._carry_out(vhost, message, session, _Reply(self, message, queue))
        except Exception:
            log.exception("a request of '%s' in vhost '%s' failed", session.user, vhost.name)

    def _reply_queue(self, vhost: Vhost, message: Message, session: AskingSession) -> Queue | None:
        """The queue for the reply: one whose name the broker has made, one of this connection, or one that the user may
        publish to by its name."""
        name = self._envelopes.reply_to(vhost, message)
        queue = vhost.find_queue(name) if name else None
        if queue is None:
            return None
        owner = queue.exclusive_owner
        if owner is session or name.startswith(DIRECT_REPLY) or (owner is None and queue.temporary
                                                                 and not queue.auto_delete):
            return queue
        return queue if self._users.may(session.user, vhost.name, "write", "") else None

    def _carry_out(self, vhost: Vhost, message: Message, session: AskingSession, reply: _Reply) -> None:
        waiting = self._waiting.get(session.number, 0)
        self._waiting[session.number] = waiting + 1
        try:
            if waiting >= MOST_WAITING:
                raise ResourceError(f"{waiting} requests of this connection wait for their answers; at most"
                                    f" {MOST_WAITING} may")
            operation, arguments = _read(message, self._envelopes)
            answer = operation.function(Asked(vhost, session, self._users), arguments)
        except BrokerError as error:
            reply.know(error)
        except Exception:
            log.exception("request '%s' of '%s' in vhost '%s' failed", message.routing_key, session.user, vhost.name)
            reply.know(BrokerError(MISTAKE))
        else:
            if isinstance(answer, Later):
                answer.when_known(reply.know)
            else:
                reply.know(answer)

    def wait(self, reply: _Reply) -> None:
        """Send the reply once all that was written before it is on disk."""
        self._broker.log.wait(reply)

    def send(self, message: Message, queue: Queue, body: bytes) -> None:
        number = message.publisher & CONNECTION
        waiting = self._waiting.pop(number) - 1
        if waiting:
            self._waiting[number] = waiting
        if not queue.deleted:
            queue.push(self._envelopes.reply(queue.vhost, message, queue.name, body))
            self._broker.end_turn()


class _Reply(CommitWaiter):
    """The reply to one request."""

    def __init__(self, requests: Requests, message: Message, queue: Queue) -> None:
        self._requests = requests
        self._message = message
        self._queue = queue
        self._body = b""

    def know(self, outcome: Fields | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            self._body = encode_json({"version": VERSION, "ok": False, "error": {
                "condition": outcome.condition, "message": plain(str(outcome))}})
        else:
            self._body = encode_json({"version": VERSION, "ok": True, **outcome})
        self._requests.wait(self)

    def committed(self, batch: int) -> None:
        self._requests.send(self._message, self._queue, self._body)


def _read(message: Message, envelopes: Envelopes) -> tuple[Operation, Any]:
    """The operation and its arguments."""
    if message.size > LARGEST:
        raise ContentTooLarge(f"the request has {message.size} octets; at most {LARGEST} are allowed")
    name = message.routing_key
    operation = OPERATIONS.get(name)
    if operation is None:
        raise NotImplementedByBroker(f"operation '{plain(name)}' is not known; known are {', '.join(sorted(OPERATIONS))}")
    try:
        given = msgspec.json.decode(envelopes.content(message), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandInvalid(f"the body of the request is no JSON object: {error}") from None
    version = given.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise NotImplementedByBroker(f"version {version!r} of the requests is not known; expected {VERSION}")
    try:
        return operation, msgspec.convert(given, operation.arguments)
    except msgspec.ValidationError as error:
        raise CommandInvalid(f"{name}: {error}") from None
