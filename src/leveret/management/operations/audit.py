"""The audit log: search."""

from __future__ import annotations

from leveret.broker.errors import PreconditionFailed
from leveret.management.audit.records import AuditRecord
from leveret.management.audit.store import Filter
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.operations.times import milliseconds_of
from leveret.management.structs import Reply, Request

MAX_PAGE_SIZE = 500


class Search(Request, kw_only=True):
    """Request for the changes that meet all conditions, newest first.

    Attributes:
        user: The user.
        action: A part of the name of the operation.
        kind: The kind of the object.
        vhost: The vhost of the object.
        object: A part of the name of the object.
        since: The beginning, as ISO 8601 or milliseconds of Unix time; without a time zone it is UTC.
        until: The end, exclusive.
    """

    user: str = ""
    action: str = ""
    kind: str = ""
    vhost: str = ""
    object: str = ""
    since: str = ""
    until: str = ""
    page: int = 1
    page_size: int = 100


class FoundChanges(Reply, kw_only=True):
    """A page of changes."""

    items: list[AuditRecord]
    page: int
    page_size: int
    page_count: int
    total_count: int


async def search(context: Context, request: Search) -> FoundChanges:
    """Search the audit log."""
    if request.page < 1 or not 1 <= request.page_size <= MAX_PAGE_SIZE:
        raise PreconditionFailed(f"invalid page or page_size; expected at least 1, and at most {MAX_PAGE_SIZE} per page")
    wanted = Filter(
        user=request.user,
        action=request.action,
        kind=request.kind,
        vhost=request.vhost,
        name=request.object,
        since=milliseconds_of("since", request.since),
        until=milliseconds_of("until", request.until),
    )
    offset = (request.page - 1) * request.page_size
    if offset > 1 << 40:
        raise PreconditionFailed("page out of range")
    items, total = await context.managed.audit.search(wanted, offset, request.page_size)
    return FoundChanges(
        items=items,
        page=request.page,
        page_size=request.page_size,
        page_count=max(1, -(-total // request.page_size)),
        total_count=total,
    )


OPERATIONS: Operations = {"audit.search": Operation(search, Search, FoundChanges)}
