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
    """The number of changes of exchanges, queues and bindings since the process started."""

    changes: int


def changes(context: Context, request: Changes) -> Iterator[Change | None]:
    """Return what has changed since the last request of the reader."""
    return context.managed.feeds.feed(request.reader).changes(context.managed)


def topology(context: Context, request: Request) -> Iterator[Topology]:
    """Return how often exchanges, queues and bindings have changed, of each process that has some."""
    return iter((Topology(changes=context.broker.topology_changes),))


OPERATIONS: Operations = {
    "statistics.changes": Operation(changes, Changes, Change),
    "statistics.topology": Operation(topology, Request, Topology),
}
