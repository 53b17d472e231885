"""Deletion of all objects of a kind whose names match a pattern, with a dry run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Literal

from leveret.broker.errors import AccessRefused, BrokerError, PreconditionFailed
from leveret.management.operations import policies, users, vhosts
from leveret.management.operations.browsing import Turns
from leveret.management.operations.definitions import EXCHANGE_DELETE, QUEUE_DELETE, DeleteExchange, DeleteQueue
from leveret.management.operations.operation import EACH, Context, Operation, Operations, VhostContext, execute, perform
from leveret.management.structs import Named, NamedInVhost, Reply, Request
from leveret.security.patterns import Pattern

# Maximum number of objects of one request.
MAX_OBJECTS: Final = 1000

Kind = Literal["queues", "exchanges", "policies", "operator_policies", "users", "vhosts"]


class DeleteMatching(Request, kw_only=True):
    """Request to delete objects.

    Attributes:
        kind: The kind of the objects.
        pattern: The RE2 expression that a name must match.
        vhost: The vhost of the objects; users and vhosts are in none.
        dry_run: Whether the objects are only listed.
        if_unused: Deletes only queues without consumers, and exchanges without bindings.
        if_empty: Deletes only queues without messages.
    """

    kind: Kind
    pattern: str
    vhost: str = "/"
    dry_run: bool = True
    if_unused: bool = False
    if_empty: bool = False


class NotDeleted(Reply, kw_only=True):
    """An object that was not deleted, and why."""

    name: str
    reason: str


class DeletedObjects(Reply, kw_only=True):
    """The objects that match.

    Attributes:
        names: The names of the deleted objects; in a dry run of those that match.
        refused: Those that were not deleted.
        more: Whether there are more: repeat the request.
    """

    names: list[str]
    refused: list[NotDeleted]
    more: bool


class _Kind:
    """The names of the objects of a kind, and their deletion.

    Attributes:
        names: Returns all names.
        delete: Deletes an object by its name.
        by_permission: Whether the permission `configure` decides who may do that.
    """

    def __init__(
        self,
        names: Callable[[Context, DeleteMatching], Iterator[str]],
        delete: Callable[[Context, DeleteMatching, str], Awaitable[object]],
        by_permission: bool = False,
    ) -> None:
        self.names = names
        self.delete = delete
        self.by_permission = by_permission


def _queue_names(context: Context, request: DeleteMatching) -> Iterator[str]:
    return (queue.name for queue in context.vhost(request.vhost).queue_list.walk())


async def _delete_queue(context: Context, request: DeleteMatching, name: str) -> object:
    wanted = DeleteQueue(name=name, if_unused=request.if_unused, if_empty=request.if_empty)
    return perform(QUEUE_DELETE, _in_vhost(context, request), wanted)


def _in_vhost(context: Context, request: DeleteMatching) -> VhostContext:
    return VhostContext(context.vhost(request.vhost), context.principal, None, context.auditor)


def _exchange_names(context: Context, request: DeleteMatching) -> Iterator[str]:
    # The predeclared ones cannot be deleted.
    return (name for name in list(context.vhost(request.vhost).exchanges) if name and not name.startswith("amq."))


async def _delete_exchange(context: Context, request: DeleteMatching, name: str) -> object:
    return perform(EXCHANGE_DELETE, _in_vhost(context, request), DeleteExchange(name=name, if_unused=request.if_unused))


def _deletion(operation: Operation[Any, Any]) -> Callable[[Context, DeleteMatching, str], Awaitable[object]]:
    """Return the deletion by an operation on an object outside of vhosts."""
    return lambda context, request, name: execute(operation, context, Named(name=name))


def _deletion_in_vhost(operation: Operation[Any, Any]) -> Callable[[Context, DeleteMatching, str], Awaitable[object]]:
    """Return the deletion by an operation on an object in a vhost."""
    return lambda context, request, name: execute(operation, context, NamedInVhost(vhost=request.vhost, name=name))


_KINDS: Final[dict[str, _Kind]] = {
    "queues": _Kind(_queue_names, _delete_queue, True),
    "exchanges": _Kind(_exchange_names, _delete_exchange, True),
    "policies": _Kind(
        lambda context, request: iter(sorted(context.vhost(request.vhost).policies.user.by_name)),
        _deletion_in_vhost(policies.OPERATIONS["policies.delete"]),
    ),
    "operator_policies": _Kind(
        lambda context, request: iter(sorted(context.vhost(request.vhost).policies.operator.by_name)),
        _deletion_in_vhost(policies.OPERATIONS["operator_policies.delete"]),
    ),
    "users": _Kind(
        lambda context, request: iter([user.name for user in context.users.users()]),
        _deletion(users.OPERATIONS["users.delete"]),
    ),
    "vhosts": _Kind(
        lambda context, request: iter(sorted(context.broker.vhosts)),
        _deletion(vhosts.OPERATIONS["vhosts.delete"]),
    ),
}


async def delete_matching(context: Context, request: DeleteMatching) -> DeletedObjects:
    """Delete objects whose names match."""
    kind = _KINDS[request.kind]
    if not (kind.by_permission or context.principal.is_operator()):
        raise AccessRefused(f"deleting {request.kind} refused for user '{context.principal.user}': expected an operator")
    try:
        pattern = Pattern(request.pattern)
    except ValueError as error:
        raise PreconditionFailed(f"pattern '{request.pattern}' {error}") from None
    turns = Turns(context)
    found: list[str] = []
    names = kind.names(context, request)
    for name in names:
        if pattern.matches(name) and _is_deletable(context, request, kind, name):
            found.append(name)
            if len(found) > MAX_OBJECTS:
                break
        await turns.pause()
    result = DeletedObjects(names=[], refused=[], more=len(found) > MAX_OBJECTS)
    for name in sorted(found[:MAX_OBJECTS]):
        reason = "" if request.dry_run else await _delete(context, request, kind, name)
        if reason:
            result.refused.append(NotDeleted(name=name, reason=reason))
        else:
            result.names.append(name)
        await turns.pause()
    return result


def _is_deletable(context: Context, request: DeleteMatching, kind: _Kind, name: str) -> bool:
    """Return whether the principal may delete an object; others are not shown."""
    return not kind.by_permission or context.principal.may(request.vhost, "configure", name)


async def _delete(context: Context, request: DeleteMatching, kind: _Kind, name: str) -> str:
    """Delete an object. Return why it was not deleted, or ""."""
    try:
        await kind.delete(context, request, name)
    except BrokerError as error:
        return str(error)
    return ""


OPERATIONS: Operations = {
    "objects.delete": Operation(delete_matching, DeleteMatching, DeletedObjects, EACH, changes=True, removes=True),
}
