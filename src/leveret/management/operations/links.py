"""Attached and suspended AMQP 1.0 links: list, release, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.management.descriptions import LinkInfo
from leveret.management.json_values import plain
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import InVhost, Messages, NamedInVhost

# Links to examine in one turn.
STEP: Final = 1000


class One(NamedInVhost, kw_only=True):
    """Request about a link, with as many of its identifying fields as necessary."""

    user: str | None = None
    container: str | None = None
    role: str | None = None


def list_links(context: Context, request: InVhost) -> Iterator[LinkInfo | None]:
    """List links."""
    names = {vhost.name for vhost in context.vhosts(request.vhost)}
    return (item if item.vhost in names else None for item in context.managed.links.describe())


async def release(context: Context, request: One) -> Messages:
    """Requeue the unsettled messages of a suspended link and return their number."""
    link = await _find(context, request)
    return Messages(messages=context.managed.links.release(link.vhost, link.user, link.container, link.name, link.role))


async def delete(context: Context, request: One) -> None:
    """Delete a link and its subscription queue. Detaches an attached link with an error."""
    link = await _find(context, request)
    context.managed.links.delete(link.vhost, link.user, link.container, link.name, link.role)


async def _find(context: Context, request: One) -> LinkInfo:
    """Return the link that matches the request. Takes several turns if there are many links."""
    context.vhost(request.vhost)
    found = []
    for count, item in enumerate(context.managed.links.describe(), 1):
        if (
            _matches(request.vhost, item.vhost)
            and _matches(request.name, item.name)
            and _matches(request.user, item.user)
            and _matches(request.container, item.container)
            and _matches(request.role, item.role)
        ):
            found.append(item)
        if not count % STEP:
            await asyncio.sleep(0)
    if not found:
        raise NotFound(f"link '{request.name}' does not exist in vhost '{request.vhost}', or does not match the arguments")
    if len(found) > 1:
        candidates = ", ".join(
            sorted(f"container '{item.container}' of user '{item.user}' ({item.role})" for item in found)[:5]
        )
        raise PreconditionFailed(
            f"{len(found)} links have the name '{request.name}': {candidates}; expected the"
            " container, user and role of only one of them"
        )
    return found[0]


def _matches(wanted: str | None, value: str) -> bool:
    """Return whether a value equals the wanted one, as received or as listed."""
    return wanted is None or wanted in (value, plain(value))


OPERATIONS: Operations = {
    "links.list": Operation(list_links, InVhost, LinkInfo),
    "links.release": Operation(release, One, Messages, changes=True),
    "links.delete": Operation(delete, One, changes=True),
}
