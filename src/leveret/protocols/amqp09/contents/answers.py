"""Replies to methods of class message, sent in the order of the methods.

`message.ok` has no fields, so on plain frames only the order identifies the method that it answers. A reply that waits for
the disk delays the replies after it, but nothing else on its channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.broker.log import CommitWaiter
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.protocols.amqp09.channel.channel import Channel


class Answer:
    """One reply.

    Attributes:
        request: id of the request that it answers; 0 if methods have no ids.
        batch: batch of the log that must be on disk first; 0 for none.
        deferred: whether the reply waits for something other than a batch.
    """

    __slots__ = ("arguments", "batch", "deferred", "name", "request")

    def __init__(self, name: str, arguments: Arguments, request: int, batch: int = 0, deferred: bool = False) -> None:
        self.name = name
        self.arguments = arguments
        self.request = request
        self.batch = batch
        self.deferred = deferred


class Answers(CommitWaiter):
    """The pending replies of one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.waiting: deque[Answer] = deque()
        self._awaited = 0
        self._then: Callable[[], None] | None = None

    def ok(self) -> None:
        """Send message.ok for the current method."""
        self.add(Answer("message.ok", {}, self.channel.request))

    def add(self, answer: Answer) -> None:
        batch = answer.batch
        if batch and self._awaited != batch:
            self._awaited = batch
            self.channel.log.wait(self)
        self.waiting.append(answer)
        self.send()

    def release(self, answer: Answer) -> None:
        """Send a deferred reply in its turn."""
        answer.deferred = False
        self.send()

    def committed(self, batch: int) -> None:
        for answer in self.waiting:
            if answer.batch <= batch:
                answer.batch = 0
        self.send()

    def send(self) -> None:
        """Send replies up to the first one that waits."""
        channel = self.channel
        waiting = self.waiting
        while waiting and not waiting[0].batch and not waiting[0].deferred and not channel.closing:
            answer = waiting.popleft()
            channel.connection.engine.send(channel.number, answer.name, answer.arguments, answer.request)
        channel.connection.mark()
        then = self._then
        if then is not None and not waiting:
            self._then = None
            then()

    def when_empty(self, then: Callable[[], None]) -> None:
        """Call `then` once, when all pending replies are sent. The channel must be stalled until then."""
        self._then = then

    def interrupt(self) -> None:
        """Drop the pending replies of a lost connection, and the command waiting for them."""
        if self._then is not None:
            self.channel.cancel_stall()
        self.close()

    def close(self) -> None:
        self.waiting.clear()
        self._then = None
