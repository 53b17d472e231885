"""Publisher confirms of a channel (RabbitMQ's class confirm). On the hot path."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.log import CommitWaiter
from leveret.broker.message import Message

if TYPE_CHECKING:
    from leveret.broker.statistics import VhostStatistics
    from leveret.protocols.amqp091.connection.base import BaseConnection


class PublisherConfirms(CommitWaiter):
    """The pending confirms of one channel. Confirms of one turn are coalesced.

    Attributes:
        published: number of publishes since confirm.select.
        confirmed: number of these that have been acked or nacked, in order.
    """

    def __init__(self, connection: BaseConnection, number: int) -> None:
        self._connection = connection
        self._log = connection.broker.log
        self._statistics: VhostStatistics = connection.vhost.statistics
        self._number = number
        self.published = 0
        self.confirmed = 0
        # Whether the connection resolves it at the end of the input.
        self._listed = False
        self._closed = False
        self._marked_batch = 0
        # Pairs of a log batch and the first publish in it, in order.
        self._marks: deque[tuple[int, int]] = deque()
        # Sequence numbers of publishes to nack.
        self._nacks: deque[int] = deque()

    def add(self, message: Message, accepted: bool) -> None:
        """Add a publish. It is acked or, unless a queue refused it, nacked when its message is on disk."""
        sequence = self.published + 1
        self.published = sequence
        if message.row is not None:
            filling = self._log.filling
            if self._marked_batch != filling:
                self._marked_batch = filling
                self._marks.append((filling, sequence))
                self._log.wait(self)
        if not accepted:
            self._nacks.append(sequence)
        if not self._listed:
            self._listed = True
            self._connection.confirming.append(self)

    def committed(self, batch: int) -> None:
        marks = self._marks
        while marks and marks[0][0] <= batch:
            marks.popleft()
        if not self._closed:
            self.resolve()
            self._connection.mark()

    def resolve_listed(self) -> None:
        """Resolve the confirms of the input that the connection has performed."""
        self._listed = False
        if not self._closed:
            self.resolve()

    def resolve(self) -> None:
        """Ack or nack publishes in order, up to the first one whose batch is not committed."""
        marks = self._marks
        upto = marks[0][1] - 1 if marks else self.published
        confirmed = self.confirmed
        if upto <= confirmed:
            return
        engine = self._connection.engine
        number = self._number
        nacks = self._nacks
        while nacks and nacks[0] <= upto:
            nacked = nacks.popleft()
            if nacked - 1 > confirmed:
                engine.send_ack(number, nacked - 1, nacked - 2 > confirmed)
            engine.send_nack(number, nacked, False, False)
            confirmed = nacked
        if upto > confirmed:
            engine.send_ack(number, upto, upto - 1 > confirmed)
        self._statistics.count_confirms(upto - self.confirmed)
        self.confirmed = upto

    def close(self) -> None:
        """Send nothing more: the channel is closed."""
        self._closed = True
