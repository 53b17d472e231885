"""Bindings, including those of the default exchange to every queue."""

from __future__ import annotations

import base64
from typing import Final
from urllib.parse import quote

from leveret.management.http.binding_keys import matches, properties_key
from leveret.management.http.control import Row
from leveret.management.http.errors import not_found
from leveret.management.http.lists import select
from leveret.management.http.request import NO_CONTENT, Answer, Request, exchange_of

# The kind of a destination by its letter in paths.
_KINDS: Final = {"q": "queue", "e": "exchange"}


def binding_row(item: Row) -> Row:
    """Return a binding."""
    return {
        "arguments": item["arguments"],
        "destination": item["destination"],
        "destination_type": item["kind"],
        "properties_key": properties_key(item["routing_key"], item["arguments"], base64.b64decode(item.get("encoded", ""))),
        "routing_key": item["routing_key"],
        "source": item["source"],
        "vhost": item["vhost"],
    }


def _implicit(vhost: str, queue: str) -> Row:
    """Return the binding of the default exchange to a queue."""
    item = {"vhost": vhost, "source": "", "destination": queue, "kind": "queue", "routing_key": queue, "arguments": {}}
    return binding_row(item)


async def rows(request: Request, vhost: str | None = None) -> list[Row]:
    """Return the bindings that the user sees, of one vhost or of all."""

    def wanted(name: str) -> bool:
        return vhost in (None, name) and request.identity.sees(name)

    await request.cache.refresh()
    queues = [queue.item for queue in request.cache.queues.values()]
    found = await request.snapshot.shown("bindings.list", binding_row)
    implicit = [_implicit(item["vhost"], item["name"]) for item in queues if wanted(item["vhost"])]
    return implicit + [row for row in found if wanted(row["vhost"])]


async def list_all(request: Request) -> Answer:
    return Answer(body=select(await rows(request), request.query))


async def list_in_vhost(request: Request) -> Answer:
    return Answer(body=select(await rows(request, request.vhost), request.query))


async def list_of_queue(request: Request) -> Answer:
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    found = await _list(request, destination=request.name, kind="queue")
    return Answer(body=select([_implicit(request.vhost, request.name), *found], request.query))


async def list_by_source(request: Request) -> Answer:
    name = exchange_of(request.name)
    if name:
        return Answer(body=select(await _list(request, source=name), request.query))
    queues = await request.control.call("queues.list", {"vhost": request.vhost})
    return Answer(body=select([_implicit(request.vhost, item["name"]) for item in queues], request.query))


async def list_by_destination(request: Request) -> Answer:
    found = await _list(request, destination=exchange_of(request.name), kind="exchange")
    return Answer(body=select(found, request.query))


async def _list(request: Request, **filters: str) -> list[Row]:
    found = await request.control.call("bindings.list", {"vhost": request.vhost, **filters})
    return [binding_row(item) for item in found]


def _ends(request: Request) -> tuple[str, str, str]:
    """Return source, kind and destination in the path."""
    if request.path["kind"] not in _KINDS:
        raise not_found()
    kind = _KINDS[request.path["kind"]]
    destination = request.path["destination"]
    return exchange_of(request.path["source"]), kind, destination if kind == "queue" else exchange_of(destination)


async def _between(request: Request) -> list[Row]:
    """Return the bindings between the objects in the path, none if one of them does not exist."""
    source, kind, destination = _ends(request)
    if not source:
        if kind == "exchange" or await request.find("queues.show", {"vhost": request.vhost, "name": destination}) is None:
            return []
        return [_implicit(request.vhost, destination)]
    return await _list(request, source=source, destination=destination, kind=kind)


async def list_between(request: Request) -> Answer:
    return Answer(body=select(await _between(request), request.query))


async def add(request: Request) -> Answer:
    """Add a binding. The header `Location` has its `properties_key`."""
    source, kind, destination = _ends(request)
    key = request.text("routing_key")
    arguments = request.arguments()
    await request.change_in_vhost(
        "binding.add",
        {"source": source, "destination": destination, "kind": kind, "routing_key": key, "arguments": arguments},
    )
    shown = quote(properties_key(key, arguments), safe="~")
    return Answer(201, headers=(("location", f"{quote(destination, safe='')}/{shown}"),))


async def _find(request: Request) -> Row:
    key = request.path["key"]
    found = await _between(request)
    exact = [row for row in found if row["properties_key"] == key]
    for row in exact or found:
        if exact or matches(key, row["properties_key"]):
            return row
    raise not_found()


async def show(request: Request) -> Answer:
    return Answer(body=await _find(request))


async def delete(request: Request) -> Answer:
    row = await _find(request)
    await request.change_in_vhost(
        "binding.delete",
        {
            "source": row["source"],
            "destination": row["destination"],
            "kind": row["destination_type"],
            "routing_key": row["routing_key"],
            "arguments": row["arguments"],
        },
    )
    return NO_CONTENT
