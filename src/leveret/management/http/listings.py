"""Lists of objects that RabbitMQ's API lacks: links, transactions, branches, leases, sinks and positions in streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from leveret.management.http.connections import channel_name, peer_of
from leveret.management.http.control import Row, renamed
from leveret.management.http.identity import Identity
from leveret.management.http.lists import Source, select_from, value_at
from leveret.management.http.request import Answer, Request


class Listing:
    """The handlers of the lists of one kind of object.

    Args:
        call: The operation that lists the objects.
        name: The key by which `name` filters, and by which lists are ordered within a vhost.
        own: Whether users without the tag monitoring see their own objects only, instead of those of their vhosts.
        show: Returns the row of an object, with what this process knows about it.

    Attributes:
        call: As above.
    """

    def __init__(
        self, call: str, name: str, *, own: bool = False, show: Callable[[Request, Row], Row] = lambda _, item: item
    ) -> None:
        self.call = call
        self._name = name
        self._own = own
        self._show = show

    async def list_all(self, request: Request) -> Answer:
        return await self._list(request, lambda vhost: True)

    async def list_in_vhost(self, request: Request) -> Answer:
        return await self._list(request, lambda vhost: vhost == request.vhost)

    async def _list(self, request: Request, wanted: Callable[[str], bool]) -> Answer:
        rows = await request.snapshot.shown(self.call, renamed)
        await request.cache.refresh()
        found = [row for row in rows if wanted(row["vhost"]) and self._sees(request.identity, row)]
        if {row.get("connection") for row in found} - {None, *request.cache.connections}:
            await request.cache.refresh_now()  # a connection is newer than the copies
        if "connection" in request.query:
            found = [row for row in found if _connection_of(request, row) == request.query["connection"]]
        source = Source(found, lambda row: self._show(request, row), self._name_of, value_at, self._order)
        return Answer(body=select_from(source, request.query))

    def _sees(self, identity: Identity, row: Row) -> bool:
        if self._own and not identity.is_monitor():
            return bool(row["user"] == identity.name)
        return identity.sees(row["vhost"])

    def _name_of(self, row: Row) -> str:
        return str(row[self._name])

    def _order(self, row: Row) -> tuple[str, str]:
        return row["vhost"], self._name_of(row)


def _connection(request: Request, item: Row) -> Row | None:
    """Return the connection of an object, which may have none."""
    number = item.get("connection")
    cached = None if number is None else request.cache.connections.get(number)
    return None if cached is None else cached.item


def _connection_of(request: Request, item: Row) -> str:
    connection = _connection(request, item)
    return "" if connection is None else str(connection["name"])


def _with_connection(request: Request, item: Row) -> Row:
    """Return an object with its connection by name in place of its number."""
    row = {**item, "connection_details": peer_of(_connection(request, item))}
    del row["connection"]
    return row


def _transaction_row(request: Request, item: Row) -> Row:
    row = _with_connection(request, item)
    connection = _connection(request, item)
    row["protocol"] = "" if connection is None else connection["protocol"]
    row["channel_name"] = channel_name(connection, item["channel"])
    return row


def _lease_row(request: Request, item: Row) -> Row:
    """Return a lease with its lag: messages of the queue that are ready or in an uncommitted batch."""
    queue = request.cache.queue(item["vhost"], item["queue"])
    ready, ready_bytes, age = 0, 0, 0
    if queue is not None:
        ready, ready_bytes = queue.item["ready"], queue.item["ready_bytes"]
        age = queue.oldest_ready_age(time.time()) or 0
    return {
        **item,
        "ready": ready,
        "lag": ready + item["messages"],
        "lag_bytes": ready_bytes + item["bytes"],
        "lag_seconds": max([age, *(batch["age"] for batch in item["batches"])]),
    }


LINKS: Final = Listing("links.list", "name", own=True, show=_with_connection)
TRANSACTIONS: Final = Listing("transactions.list", "user", own=True, show=_transaction_row)
BRANCHES: Final = Listing("dtx.list", "branch", own=True)
LEASES: Final = Listing("leases.list", "lease", show=_lease_row)
SINKS: Final = Listing("stages.apps", "app", own=True)
SINK_TRANSACTIONS: Final = Listing("stages.list", "app", own=True)
STREAM_CONSUMERS: Final = Listing("streams.list_consumers", "consumer")
