"""The recent-history exchange, `x-recent-history` of RabbitMQ's plugin: a fanout that keeps the latest messages.

A destination gets them when it is bound.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker.arguments import DEFAULT_HISTORY_LENGTH, HISTORY_LENGTH
from leveret.broker.dead_letter import split_address
from leveret.broker.destination import Destination
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.fanout import FanoutExchange
from leveret.broker.message import address_of
from leveret.broker.queues.history import HistoryQueue, copy_overlay
from leveret.broker.routing import resolve_bound

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Effort
    from leveret.broker.values import FieldTable
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

# Units of work to give a message to a queue.
_COPY_WORK: Final = 10


class RecentHistoryExchange(FanoutExchange):
    type: ClassVar[str] = "x-recent-history"

    def set_up(self) -> None:
        super().set_up()
        self._history: HistoryQueue | None = None

    def attach(self, vhost: Vhost) -> None:
        super().attach(vhost)
        length = self.arguments.get(HISTORY_LENGTH)
        self._history = HistoryQueue(vhost, length if isinstance(length, int) else DEFAULT_HISTORY_LENGTH)

    def detach(self) -> None:
        super().detach()
        if self._history is not None:
            self._history.delete()

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        found = super().match(routing_key, headers, hashed, effort)
        if self._history is not None:
            found.append(self._history)
        return found

    def welcome(self, destination: Destination) -> None:
        history = self._history
        if history is None:
            return
        broker = history.broker
        giving = self._giving(history, destination)
        if destination.kind == "exchange":
            broker.jobs.run_steps(giving)
            return
        # At once: the messages come before later ones.
        for work in giving:
            broker.work += work

    def _giving(self, history: HistoryQueue, destination: Destination) -> Iterator[int]:
        """Give the history to the queue, or to the queues behind the exchange."""
        vhost = history.vhost
        routes = destination.kind == "exchange"
        for entry in history.copies():
            if destination.deleted:
                return
            message = entry.message
            headers = vhost.dead_letters.headers_of(entry) if routes else {}
            key = split_address(address_of(entry))[1]
            try:
                queues = resolve_bound(vhost, self, destination, key, headers, message)
            except PreconditionFailed as error:
                logger.warning(
                    "exchange '%s' in vhost '%s' cannot give its history to exchange '%s': %s",
                    self.name,
                    vhost.name,
                    destination.name,
                    error,
                )
                return
            for queue in queues:
                if entry.overlay is None:
                    queue.push(message)
                elif not queue.limits.would_reject(message):
                    queue.insert_new(queue.prepare(message, copy_overlay(entry.overlay)))
            yield 1 + _COPY_WORK * len(queues)
