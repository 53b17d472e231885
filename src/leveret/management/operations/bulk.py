"""Changes of all objects whose names match a pattern, with a dry run: deletion; purge, pause and resume of queues."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Literal

from leveret.broker.errors import AccessRefused, BrokerError, PreconditionFailed
from leveret.broker.queues.queue import Queue
from leveret.management.operations import policies, queues, users, vhosts
from leveret.management.operations.browsing import Turns
from leveret.management.operations.definitions import (
    EXCHANGE_DELETE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    DeleteExchange,
    DeleteQueue,
    OneQueue,
)
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


class Refusal(Reply, kw_only=True):
    """An object that was not changed, and why."""

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
    refused: list[Refusal]
    more: bool


class ChangeQueues(Request, kw_only=True):
    """Request to purge, pause or resume queues.

    Attributes:
        action: The change. Queues that it would not change do not match.
        pattern: The RE2 expression that a name must match.
        dry_run: Whether the queues are only listed.
        after: Where an earlier request ended, to continue there.
    """

    action: Literal["purge", "pause", "resume"]
    pattern: str
    vhost: str = "/"
    dry_run: bool = True
    after: int = 0


class ChangedQueue(Reply, kw_only=True):
    """A queue, and the number of its ready messages before the change."""

    name: str
    messages: int


class ChangedQueues(Reply, kw_only=True):
    """The queues that match.

    Attributes:
        queues: The queues that were changed; in a dry run those that match.
        refused: Those that were not changed.
        after: Where the next request continues; None if there are no more.
    """

    queues: list[ChangedQueue]
    refused: list[Refusal]
    after: int | None


class ObjectKind:
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


def _in_vhost(context: Context, request: DeleteMatching | ChangeQueues) -> VhostContext:
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


_KINDS: Final[dict[str, ObjectKind]] = {
    "queues": ObjectKind(_queue_names, _delete_queue, True),
    "exchanges": ObjectKind(_exchange_names, _delete_exchange, True),
    "policies": ObjectKind(
        lambda context, request: iter(sorted(context.vhost(request.vhost).policies.user.by_name)),
        _deletion_in_vhost(policies.OPERATIONS["policies.delete"]),
    ),
    "operator_policies": ObjectKind(
        lambda context, request: iter(sorted(context.vhost(request.vhost).policies.operator.by_name)),
        _deletion_in_vhost(policies.OPERATIONS["operator_policies.delete"]),
    ),
    "users": ObjectKind(
        lambda context, request: iter([user.name for user in context.users.users()]),
        _deletion(users.OPERATIONS["users.delete"]),
    ),
    "vhosts": ObjectKind(
        lambda context, request: iter(sorted(context.broker.vhosts)),
        _deletion(vhosts.OPERATIONS["vhosts.delete"]),
    ),
}


async def delete_matching(context: Context, request: DeleteMatching) -> DeletedObjects:
    """Delete objects whose names match."""
    return await delete_objects(context, request, _KINDS[request.kind])


async def delete_objects(context: Context, request: DeleteMatching, kind: ObjectKind) -> DeletedObjects:
    """Delete objects of a kind whose names match."""
    if not (kind.by_permission or context.principal.is_operator()):
        raise AccessRefused(f"deleting {request.kind} refused for user '{context.principal.user}': expected an operator")
    pattern = _pattern(request.pattern)
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
            result.refused.append(Refusal(name=name, reason=reason))
        else:
            result.names.append(name)
        await turns.pause()
    return result


def _pattern(text: str) -> Pattern:
    try:
        return Pattern(text)
    except ValueError as error:
        raise PreconditionFailed(f"pattern '{text}' {error}") from None


def _is_deletable(context: Context, request: DeleteMatching, kind: ObjectKind, name: str) -> bool:
    """Return whether the principal may delete an object; others are not shown."""
    return not kind.by_permission or context.principal.may(request.vhost, "configure", name)


async def _delete(context: Context, request: DeleteMatching, kind: ObjectKind, name: str) -> str:
    """Delete an object. Return why it was not deleted, or ""."""
    try:
        await kind.delete(context, request, name)
    except BrokerError as error:
        return str(error)
    return ""


class _Action:
    """A change of queues.

    Attributes:
        permission: The permission that the change needs.
        changes: Returns whether it would change a queue.
        execute: Changes the queue with a name.
    """

    def __init__(
        self,
        permission: str,
        changes: Callable[[Queue], bool],
        execute: Callable[[Context, ChangeQueues, str], Awaitable[object]],
    ) -> None:
        self.permission = permission
        self.changes = changes
        self.execute = execute


def _ready(queue: Queue) -> int:
    return queue.ready_count + queue.delayed_count


async def _purge(context: Context, request: ChangeQueues, name: str) -> object:
    return perform(QUEUE_PURGE, _in_vhost(context, request), OneQueue(name=name))


def _switch(operation: Operation[Any, Any]) -> Callable[[Context, ChangeQueues, str], Awaitable[object]]:
    return lambda context, request, name: execute(operation, context, NamedInVhost(vhost=request.vhost, name=name))


_ACTIONS: Final[dict[str, _Action]] = {
    "purge": _Action("read", lambda queue: _ready(queue) > 0 and not queue.replayable, _purge),
    "pause": _Action("configure", lambda queue: not queue.paused, _switch(queues.OPERATIONS["queues.pause"])),
    "resume": _Action("configure", lambda queue: queue.paused, _switch(queues.OPERATIONS["queues.resume"])),
}


async def change_queues(context: Context, request: ChangeQueues) -> ChangedQueues:
    """Purge, pause or resume the queues whose names match, in the order of their declaration."""
    action = _ACTIONS[request.action]
    pattern = _pattern(request.pattern)
    turns = Turns(context)
    # Ids, negated so that the heap drops the largest one, and names. Exclusive queues belong to their connections.
    found: list[tuple[int, str]] = []
    for queue in context.vhost(request.vhost).queue_list.walk():
        if (
            queue.id > request.after
            and queue.lifetime.exclusive_owner is None
            and action.changes(queue)
            and pattern.matches(queue.name)
            and context.principal.may(request.vhost, action.permission, queue.name)
        ):
            heapq.heappush(found, (-queue.id, queue.name))
            if len(found) > MAX_OBJECTS + 1:
                heapq.heappop(found)
        await turns.pause()
    chosen = sorted(found, reverse=True)[:MAX_OBJECTS]
    result = ChangedQueues(queues=[], refused=[], after=-chosen[-1][0] if len(found) > MAX_OBJECTS else None)
    for number, name in chosen:
        known = context.vhost(request.vhost).find_queue(name)
        if known is None or known.id != -number:
            continue  # deleted meanwhile
        messages = _ready(known)
        try:
            if not request.dry_run:
                await action.execute(context, request, name)
            result.queues.append(ChangedQueue(name=name, messages=messages))
        except BrokerError as error:
            result.refused.append(Refusal(name=name, reason=str(error)))
        await turns.pause()
    return result


OPERATIONS: Operations = {
    "queues.change_matching": Operation(change_queues, ChangeQueues, ChangedQueues, EACH, changes=True, removes=True),
    "objects.delete": Operation(delete_matching, DeleteMatching, DeletedObjects, EACH, changes=True, removes=True),
}
