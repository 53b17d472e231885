"""The broker's answers to methods of class message, in the order of what they answer.

`message.ok` has no fields: on plain frames a client knows by the order alone what is answered. An answer that waits for
the disk holds up those behind it, and nothing else of its channel.
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
    """One answer. batch: of the log, which must be on disk before; 0 for none. request: the id of what it answers, 0 where
    methods have none. held: something else is waited for."""

    __slots__ = ("arguments", "batch", "deferred", "name", "request")

    def __init__(self, name: str, arguments: Arguments, request: int, batch: int = 0, deferred: bool = False) -> None:
        self.name = name
        self.arguments = arguments
        self.request = request
        self.batch = batch
        self.deferred = deferred


class Answers(CommitWaiter):
    """The answers of one channel that have not gone out."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.waiting: deque[Answer] = deque()
        self._awaited = 0
        self._then: Callable[[], None] | None = None

    def ok(self) -> None:
        """The method that is being carried out has done what it should."""
        self.add(Answer("message.ok", {}, self.channel.request))

    def add(self, answer: Answer) -> None:
        batch = answer.batch
        if batch and self._awaited != batch:
            self._awaited = batch
            self.channel.log.wait(self)
        self.waiting.append(answer)
        self.send()

    def release(self, answer: Answer) -> None:
        """What an answer was held for has happened."""
        answer.deferred = False
        self.send()

    def committed(self, batch: int) -> None:
        for answer in self.waiting:
            if answer.batch <= batch:
                answer.batch = 0
        self.send()

    def send(self) -> None:
        """Send those that nothing holds up."""
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
        """Call `then` once, when everything that waits has gone out. The channel does nothing else meanwhile."""
        self._then = then

    def interrupt(self) -> None:
        """The connection is lost, and with it who waits for answers: what waits to be carried out behind them is not."""
        if self._then is not None:
            self.channel.stalled = False
        self.close()

    def close(self) -> None:
        self.waiting.clear()
        self._then = None
