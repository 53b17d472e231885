"""Vhosts."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, HttpError, not_found
from leveret.management.http.lists import columns_of, select
from leveret.management.http.measured import MAX_LISTED_SAMPLES, Rates
from leveret.management.http.objects import VHOST_STATISTICS
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request
from leveret.management.http.statistics import message_stats, queue_totals, stats_of, with_rates

# Keys of a vhost that operators set.
_METADATA: Final = ("default_queue_type", "description", "protected_from_deletion", "tags")
# Default queue types that stand for the current one.
_UNDEFINED: Final = (None, "", "undefined")


def vhost_row(item: Row, node: str, totals: dict[str, int], rates: Rates) -> Row:
    """Return a vhost with the totals of its objects."""
    metadata = {name: item[name] for name in _METADATA}
    return {
        "cluster_state": {node: "running"},
        "message_stats": message_stats(stats_of(totals), rates),
        **queue_totals(item["ready"], item["unacked"], rates),
        **metadata,
        "metadata": metadata,
        "name": item["name"],
        **with_rates({"recv_oct": totals["recv_oct"], "send_oct": totals["send_oct"]}, rates),
        "tracing": item["tracing"],
    }


async def _visible(request: Request, found: list[Row]) -> list[Row]:
    await request.cache.refresh()
    return [item for item in found if request.identity.sees(item["name"])]


def _row(request: Request, item: Row) -> Row:
    cache = request.cache
    found = cache.totals(item["name"])
    rates = Rates([found], VHOST_STATISTICS, cache.tick, request.windows)
    return vhost_row(item, request.settings.node, found.totals, rates)


async def list_all(request: Request) -> Answer:
    found = await _visible(request, await request.control.list("vhosts.list"))
    request.check_samples(len(found), MAX_LISTED_SAMPLES)
    return Answer(body=select([_row(request, item) for item in found], request.query))


async def show(request: Request) -> Answer:
    for item in await _visible(request, await request.control.call("vhosts.list")):
        if item["name"] == request.vhost:
            return Answer(body=columns_of(_row(request, item), request.query))
    raise not_found()


async def put(request: Request) -> Answer:
    """Add or change a vhost. The user gets all permissions in a new one. Omitted keys of an existing one stay unchanged."""
    change = _metadata(request)
    tracing = request.flag("tracing") if request.body().get("tracing") is not None else None
    item = await _find(request)
    if item is not None:
        if any(item[name] != value for name, value in change.items()):
            await request.change("vhosts.change", {"name": request.vhost, **change})
        if tracing is not None and tracing != item["tracing"]:
            await request.change("vhosts.trace", {"name": request.vhost, "on": tracing})
        return NO_CONTENT
    await request.change("vhosts.add", {"name": request.vhost, **change})
    grant = {"user": request.identity.name, "vhost": request.vhost, "configure": ".*", "write": ".*", "read": ".*"}
    with suppress(BrokerRefused):  # the user is declared in the configuration
        await request.change_users("permissions.set", grant)
    if tracing:
        await request.change("vhosts.trace", {"name": request.vhost, "on": True})
    return CREATED


def _metadata(request: Request) -> Row:
    body = request.body()
    metadata = body.get("metadata")
    if isinstance(metadata, dict):  # answers have the properties there, too
        for name in _METADATA:
            if body.get(name) is None:
                body[name] = metadata.get(name)
    found: Row = {}
    if body.get("description") is not None:
        found["description"] = request.text("description")
    tags = body.get("tags")
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if tags is not None:
        found["tags"] = tags
    if body.get("default_queue_type") not in _UNDEFINED:
        found["default_queue_type"] = request.text("default_queue_type")
    if body.get("protected_from_deletion") is not None:
        found["protected_from_deletion"] = request.flag("protected_from_deletion")
    return found


async def _find(request: Request) -> Row | None:
    found: list[Row] = await request.control.call("vhosts.list")
    return next((item for item in found if item["name"] == request.vhost), None)


async def delete(request: Request) -> Answer:
    item = await _find(request)
    if item is None:
        raise not_found()
    if item["protected_from_deletion"]:
        reason = f"Refusing to delete virtual host '{request.vhost}' because it is protected from deletion"
        raise HttpError(412, "precondition_failed", reason)
    await request.change("vhosts.delete", {"name": request.vhost})
    return NO_CONTENT


async def protect(request: Request) -> Answer:
    return await _set_protection(request, True)


async def unprotect(request: Request) -> Answer:
    return await _set_protection(request, False)


async def _set_protection(request: Request, protected: bool) -> Answer:
    if await _find(request) is None:
        raise not_found()
    await request.change("vhosts.change", {"name": request.vhost, "protected_from_deletion": protected})
    return NO_CONTENT
