"""Requests over direct reply-to, a pseudo-queue that returns replies to the requesting channel."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.common.channel import RepliesCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import Error, InvalidMessage
from leveret.client.message import Message
from leveret.wire.amqp0.commands import Deliver

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.channel import ChannelCore

REPLY_TO: Final = "amq.rabbitmq.reply-to"


class Replies(ConsumerCore, RepliesCore):
    """Consumer of a channel's replies. It passes each reply to the request with its correlation id, and drops others."""

    __slots__ = ("_prefix", "_requests", "_sent", "generation")

    def __init__(self, channel: ChannelCore, message_class: type[Message]) -> None:
        super().__init__(channel, REPLY_TO, 0, {"no_ack": True}, message_class)
        # Generation of the channel when the consumer started.
        self.generation = channel.generation
        self._requests: dict[str, Waiter] = {}
        self._prefix = uuid.uuid4().hex[:12]
        self._sent = 0

    @property
    def expecting(self) -> bool:
        """Whether a request is pending."""
        return bool(self._requests)

    def expect(self) -> tuple[str, Waiter]:
        """Return a new correlation id and a waiter for its reply."""
        self._sent += 1
        correlation_id = f"{self._prefix}.{self._sent}"
        return correlation_id, self.await_answer(correlation_id)

    def await_answer(self, correlation_id: str) -> Waiter:
        """Return a waiter for the reply with that correlation id."""
        waiter: Waiter = self.channel.connection.frontend.new_waiter()
        self._requests[correlation_id] = waiter
        return waiter

    def forget_request(self, correlation_id: str) -> None:
        """Forget a request, whose reply will be dropped."""
        self._requests.pop(correlation_id, None)

    def delivered(self, command: Deliver) -> None:
        message = self._message_class(self.channel, command, True)
        try:
            correlation_id = message.properties.correlation_id or ""
        except InvalidMessage:
            return
        waiter = self._requests.pop(correlation_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(message)

    def refused(self, correlation_id: str, error: Error) -> None:
        """Fail a request whose message was returned."""
        waiter = self._requests.pop(correlation_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def fail(self, error: Error) -> None:
        """Fail all requests: their reply address no longer exists."""
        requests, self._requests = self._requests, {}
        for waiter in requests.values():
            if not waiter.done():
                waiter.set_exception(error)

    def end(self, error: Error | None) -> None:
        super().end(error)
        if error is not None:
            self.fail(error)
