"""The destination of a binding: a queue or an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.queues.queue import Queue


class Destination(ABC):
    """A destination of bindings. Each kind has its own namespace.

    id        identifies it in stored bindings; unlike the name, it is never reused; 0 for an exchange that is not stored
    stored    the log has its definition, and its bindings to stored exchanges
    deleted   its bindings are still being removed
    revision  number of changes of the definition
    observes  it gets messages for the broker's own use: one that reaches no other destination is unroutable
    """

    kind: ClassVar[Literal["queue", "exchange"]]
    observes: ClassVar[bool] = False

    def __init__(self, name: str, id: int, stored: bool) -> None:
        self.name = name
        self.id = id
        self.stored = stored
        self.deleted = False
        self.revision = 0

    def redefined(self) -> None:
        """Note a change of the definition: readers of statistics get it again."""
        self.revision += 1

    @abstractmethod
    def reach(self, queues: dict[Queue, None], exchanges: list[Exchange]) -> None:
        """Add a queue to the queues of a message, or an exchange to the exchanges that route it further."""

    @abstractmethod
    def bound_to(self, source: Exchange) -> None:
        """Note the first binding from an exchange."""

    @abstractmethod
    def unbound_from(self, source: Exchange) -> None:
        """Note that the last binding from an exchange was removed."""
