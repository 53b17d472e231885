"""Vhosts."""

from __future__ import annotations

from contextlib import suppress

from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, not_found
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request
from leveret.management.http.statistics import message_stats, queue_totals, with_rates

DEFAULT_QUEUE_TYPE = "classic"


def vhost_row(item: Row, node: str) -> Row:
    """Return a vhost."""
    return {
        "cluster_state": {node: "running"},
        "default_queue_type": item.get("default_queue_type") or DEFAULT_QUEUE_TYPE,
        "description": item.get("description", ""),
        "message_stats": message_stats(),
        **queue_totals(item["ready"], item["unacked"]),
        "metadata": {
            "default_queue_type": item.get("default_queue_type") or DEFAULT_QUEUE_TYPE,
            "description": item.get("description", ""),
            "tags": item.get("tags", []),
        },
        "name": item["name"],
        "protected_from_deletion": item.get("protected_from_deletion", False),
        **with_rates({"recv_oct": 0, "send_oct": 0}),
        "tags": item.get("tags", []),
        "tracing": False,
    }


async def _vhosts(request: Request) -> list[Row]:
    found = await request.control.call("vhosts.list")
    return [item for item in found if request.identity.sees(item["name"])]


async def list_all(request: Request) -> Answer:
    found = [vhost_row(item, request.settings.node) for item in await _vhosts(request)]
    return Answer(body=select(found, request.query))


async def show(request: Request) -> Answer:
    for item in await _vhosts(request):
        if item["name"] == request.vhost:
            return Answer(body=columns_of(vhost_row(item, request.settings.node), request.query))
    raise not_found()


async def put(request: Request) -> Answer:
    """Add a vhost, in which the user gets all permissions. An existing vhost stays unchanged."""
    request.body()
    names = [item["name"] for item in await request.control.call("vhosts.list")]
    if request.vhost in names:
        return NO_CONTENT
    await request.change("vhosts.add", {"name": request.vhost})
    grant = {"user": request.identity.name, "vhost": request.vhost, "configure": ".*", "write": ".*", "read": ".*"}
    with suppress(BrokerRefused):  # the user is declared in the configuration, or is the default user
        await request.change("permissions.set", grant)
    return CREATED


async def delete(request: Request) -> Answer:
    await request.change("vhosts.delete", {"name": request.vhost})
    return NO_CONTENT
