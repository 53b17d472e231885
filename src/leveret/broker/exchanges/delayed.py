"""The delayed exchange, `x-delayed-message` of RabbitMQ's plugin: destinations get a message after the time in a header.

Another exchange type, named by the argument `x-delayed-type`, chooses the destinations when the message is published. The
queues keep the message until it is due.
"""

from __future__ import annotations

from typing import ClassVar, Final

from leveret.broker.destination import Destination
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Binding, Effort, Exchange, text_argument
from leveret.broker.exchanges.routing_types import ROUTING_TYPES
from leveret.broker.values import FieldTable

DELAYED_TYPE: Final = "x-delayed-type"


def _make_router(name: str, arguments: FieldTable) -> Exchange:
    """Create the exchange that chooses the destinations. Raises PreconditionFailed if its type is not given or unknown."""
    type_name = text_argument(arguments, DELAYED_TYPE)
    router = ROUTING_TYPES.get(type_name or "")
    if router is None:
        received = "none" if type_name is None else f"'{type_name}'"
        raise PreconditionFailed(
            f"invalid arg '{DELAYED_TYPE}' for exchange '{name}': received {received}, expected the exchange type that"
            f" routes the messages, one of {', '.join(ROUTING_TYPES)}"
        )
    return router(name, arguments=arguments)


class DelayedExchange(Exchange):
    type: ClassVar[str] = "x-delayed-message"
    delays: ClassVar[bool] = True

    def set_up(self) -> None:
        router = self.router = _make_router(self.name, self.arguments)
        # Some types have no index of their own.
        self.by_destination = router.by_destination
        self.needs_key = router.needs_key
        self.needs_headers = router.needs_headers
        self.needs_property = router.needs_property
        self.has_topics = router.has_topics
        self.match_all_key = router.match_all_key

    def varies(self) -> bool:
        return True  # by the header

    def check_binding(self, routing_key: str, arguments: FieldTable) -> None:
        self.router.check_binding(routing_key, arguments)

    def added(self, binding: Binding) -> None:
        self.router.added(binding)

    def removed(self, binding: Binding) -> None:
        self.router.removed(binding)

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        return self.router.match(routing_key, headers, hashed, effort)
