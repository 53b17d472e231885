"""Requests with replies over a dynamic source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.link.receiver import ReceiverCore
from leveret.client.engine.common.channel import RepliesCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import ChannelClosed, Error, InvalidMessage
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.engine.amqp10.session.session import SessionCore

# RabbitMQ 4 sends these replies directly to the requesting session, without a queue.
_VOLATILE: Final = "rabbitmq:volatile-queue"
_TEMPORARY: Final = "temporary-queue"
_EXPIRY: Final = "link-detach"


class Replies(ReceiverCore, RepliesCore):
    """Receiver of replies. It passes each reply to the request with its correlation id, and drops others."""

    def __init__(self, session: SessionCore, name: str) -> None:
        volatile = session.connection.addresses.form == "v2"
        source = Source(dynamic=True, expiry_policy=_EXPIRY, capabilities=(_VOLATILE if volatile else _TEMPORARY,))
        super().__init__(session, "", source, 0, settled=True, name=name)
        self._requests: dict[str, Waiter] = {}

    @property
    def address(self) -> str:
        """The address for replies; "" before it is known."""
        source: Checked = self.remote.source if self.remote is not None else None
        return "" if source is None or source.address is None else str(source.address)

    @property
    def expecting(self) -> bool:
        """Whether a request is pending."""
        return bool(self._requests)

    def await_answer(self, correlation_id: str) -> Waiter:
        """Return a waiter for the reply with that correlation id."""
        waiter: Waiter = self.session.connection.frontend.new_waiter()
        self._requests[correlation_id] = waiter
        self.session.connection.ensure_reading()
        return waiter

    def forget_request(self, correlation_id: str) -> None:
        """Forget a request, whose reply will be dropped."""
        self._requests.pop(correlation_id, None)

    def delivered(self, delivery: Delivery) -> None:
        try:
            correlation_id = delivery.properties.correlation_id or ""
        except InvalidMessage:
            correlation_id = ""
        waiter = self._requests.pop(correlation_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(delivery)
        self._top_up()

    def fail(self, error: Error) -> None:
        """Fail all requests: their reply address no longer exists."""
        requests, self._requests = self._requests, {}
        for waiter in requests.values():
            if not waiter.done():
                waiter.set_exception(error)

    def lost(self) -> None:
        super().lost()
        self.finish(None)

    def on_finished(self, error: Error | None) -> None:
        super().on_finished(error)
        self.fail(error or ChannelClosed("the channel was closed by the application"))
