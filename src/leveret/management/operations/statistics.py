"""Statistics of all objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from leveret.management.feed import Change
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Reply, Request


class Changes(Request, kw_only=True):
    """Request for changes. `reader` is a name that the reader has chosen; a new one gets everything."""

    reader: Annotated[str, Meta(min_length=1, max_length=64)]


class Topology(Reply, kw_only=True):
    """The numbers of changes since the process started: of exchanges, queues and bindings, and of clients.

    Attributes:
        clients: How many connections and channels have come or gone.
    """

    changes: int
    clients: int


def changes(context: Context, request: Changes) -> Iterator[Change | None]:
    """Return what has changed since the last request of the reader."""
    return context.managed.feeds.feed(request.reader).changes(context.managed)


def topology(context: Context, request: Request) -> Iterator[Topology]:
    """Return how often objects have come, changed or gone, of each process that has some."""
    broker = context.broker
    return iter((Topology(changes=broker.topology_changes, clients=broker.churn.client_changes()),))


OPERATIONS: Operations = {
    "statistics.changes": Operation(changes, Changes, Change),
    "statistics.topology": Operation(topology, Request, Topology),
}
