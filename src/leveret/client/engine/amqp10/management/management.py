"""Client of RabbitMQ 4's and Leveret's management node, which exchanges messages over a link pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.amqp10 import Message, Value
from leveret.client.engine.amqp10.addresses import MANAGEMENT
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.amqp10.link.receiver import ReceiverCore
from leveret.client.engine.amqp10.link.sender import SenderCore
from leveret.client.engine.amqp10.management.requests import PENDING, OnAnswer, Request
from leveret.client.engine.amqp10.messages import encode_message
from leveret.client.engine.amqp10.session.session import SessionCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import (
    AccessRefused,
    ConnectionClosed,
    Error,
    InvalidMessage,
    NotFound,
    NotSupported,
    PreconditionFailed,
    ResourceLocked,
    copy_error,
)
from leveret.wire.amqp10.messaging import Source, Target
from leveret.wire.amqp10.values import Checked, Symbol
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore

_LINK: Final = "management-link-pair"
_CREDIT: Final = 100
_PAIRED: Final[dict[Symbol, WireValue]] = {Symbol("paired"): True}
_ERRORS: Final[dict[int, type[Error]]] = {
    401: AccessRefused,
    403: AccessRefused,
    404: NotFound,
    409: PreconditionFailed,
    423: ResourceLocked,
}


class _Answers(ReceiverCore):
    """The receiving link of the pair."""

    def __init__(self, session: SessionCore, management: Management) -> None:
        super().__init__(session, "", Source(MANAGEMENT), _CREDIT, settled=True, properties=_PAIRED, name=_LINK)
        self._management = management

    def delivered(self, delivery: Delivery) -> None:
        self._management.answer(delivery)
        self._top_up()

    def on_finished(self, error: Error | None) -> None:
        super().on_finished(error)
        self._management.failed(error)


class _Requests(SenderCore):
    """The sending link of the pair."""

    def __init__(self, session: SessionCore, management: Management) -> None:
        super().__init__(session, _LINK, Target(MANAGEMENT), settled=True, properties=_PAIRED)
        self._management = management

    def on_finished(self, error: Error | None) -> None:
        super().on_finished(error)
        self._management.failed(error)


class Management:
    """The management node of a connection, on its own session, because some servers end the session of a refused link."""

    def __init__(self, connection: Amqp10ConnectionCore) -> None:
        self._connection = connection
        self._session: SessionCore | None = None
        self._sender: _Requests | None = None
        self._asked: dict[str, Request] = {}
        self._numbers = 0

    @property
    def expecting(self) -> bool:
        """Whether a request is pending."""
        return bool(self._asked)

    def request(
        self, method: str, path: str, body: Checked, answered: OnAnswer, name: str, waiter: Waiter | None = None
    ) -> Waiter:
        """Send a request and return a waiter for its result.

        Args:
            method: Method, such as "PUT".
            path: Path of the resource.
            body: Body of the request.
            answered: Converts the answer to a result.
            name: Operation for error messages, such as "queue.declare".
            waiter: Waiter to use instead of a new one.

        Raises:
            NotSupported: The server has no management node.
            InvalidMessage: The body cannot be encoded.
        """
        connection = self._connection
        connection.addresses.check_managed()
        if connection.is_lost or connection.is_closed:
            raise copy_error(connection.last_error)
        self._numbers += 1
        number = f"{self._numbers}"
        encoded = encode_message(Message(body=Value(body), message_id=number, to=path, subject=method, reply_to="$me"))
        transfer = Transfer("", MANAGEMENT, MANAGEMENT, 0, [encoded], len(encoded), b"")
        transfer.settled = True
        if waiter is None:
            waiter = connection.frontend.new_waiter()
        self._asked[number] = Request(name, waiter, answered)
        self._link().publish(transfer)
        connection.ensure_reading()
        connection.frontend.flush_soon()
        return waiter

    def _link(self) -> _Requests:
        sender = self._sender
        if sender is None or sender.finished:
            connection = self._connection
            session = self._session
            if session is None or not session.opened:
                session = self._session = connection.new_channel(False, False, internal=True)
                session.begin_unawaited()
            answers = _Answers(session, self)
            session.consumers[answers.key] = answers
            sender = self._sender = _Requests(session, self)
            answers.attach()
            sender.attach()
        return sender

    def answer(self, delivery: Delivery) -> None:
        """Resolve the request that a message answers."""
        message = delivery.message
        request = self._asked.pop(str(message.correlation_id), None)
        if request is None:
            return
        body = message.body.value if isinstance(message.body, Value) else None
        try:
            status = int(message.subject or "")
        except ValueError:
            status = 0
        abandoned = request.waiter.done()
        if 200 <= status < 300:
            result = request.answered(status, body, abandoned)
            if result is not PENDING and not request.waiter.done():
                request.waiter.set_result(result)
        elif not abandoned:
            request.waiter.set_exception(_refused(request.name, status, body))

    def failed(self, error: Error | None) -> None:
        """Fail all pending requests: a link of the pair has ended."""
        self._sender = None
        asked, self._asked = self._asked, {}
        for request in asked.values():
            if not request.waiter.done():
                request.waiter.set_exception(self._error_for(error))

    def _error_for(self, error: Error | None) -> Error:
        if error is None:
            return copy_error(self._connection.last_error)
        if isinstance(error, (AccessRefused, ConnectionClosed)):
            return copy_error(error)
        missing = NotSupported(
            f"this server has no management node, which declaring and binding over AMQP 1.0 require:"
            f" {error}; expected existing queues, or a server with {MANAGEMENT}",
            reply_text=error.reply_text,
        )
        missing.condition, missing.info = error.condition, error.info
        return missing


def _refused(name: str, status: int, body: Checked) -> Error:
    text = str(body) if body is not None else "no reason given"
    kind = _ERRORS.get(status, InvalidMessage if status == 400 else Error)
    return kind(f"{name}: refused by the server: {status} {text}", reply_code=status, reply_text=text)
