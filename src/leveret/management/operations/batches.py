"""Batches of changes to definitions: apply, and check without applying.

A batch takes turns of a few milliseconds and waits for one commit. A refused change does not prevent the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from leveret.broker.arguments import parse_exchange_arguments
from leveret.broker.errors import INTERNAL_ERROR, BrokerError, PreconditionFailed
from leveret.broker.exchanges.registry import exchange_class
from leveret.broker.parameters import prepare
from leveret.broker.queues.registry import DEFAULT_TYPES, parse_queue_arguments
from leveret.broker.vhost import Vhost
from leveret.management.operations import (
    bindings,
    exchanges,
    limits,
    parameters,
    permissions,
    policies,
    queues,
    users,
    vhosts,
)
from leveret.management.operations.operation import Context, Operation, Operations, execute, read
from leveret.management.operations.typed_arguments import typed_arguments
from leveret.management.structs import Reply, Request
from leveret.security.permissions import (
    Permission,
    TopicPermission,
    check_permission,
    check_topic_permission,
)
from leveret.security.users import imported_secret

logger = logging.getLogger("leveret.control")

MAX_CHANGES: Final = 1000
# Seconds of a turn after which the rest of a batch waits for the next one.
TURN: Final = 0.002


class Change(Request, kw_only=True):
    """A call of an operation of `CHANGES`."""

    call: str
    arguments: dict[str, Any]


class Batch(Request, kw_only=True):
    """Request to apply or to check changes in this order."""

    changes: list[Change]


class Refusal(Reply, kw_only=True):
    """A refused change: its index in the batch, and the error."""

    index: int
    condition: str
    text: str


class Refusals(Reply, kw_only=True):
    """The refused changes of a batch."""

    refused: list[Refusal]


def _check_vhost(context: Context, request: vhosts.Change) -> None:
    if request.default_queue_type not in (None, *DEFAULT_TYPES):
        expected = ", ".join(DEFAULT_TYPES)
        raise PreconditionFailed(f"unknown queue type '{request.default_queue_type}'; expected one of {expected}")


def _check_user(context: Context, request: users.Set) -> None:
    if request.password_hash is not None:
        imported_secret(request.password_hash, request.hashing_algorithm, request.scram_keys)


def _check_permission(context: Context, request: permissions.Set) -> None:
    check_permission(Permission(request.configure, request.write, request.read))


def _check_topic_permission(context: Context, request: permissions.TopicSet) -> None:
    check_topic_permission(TopicPermission(request.write, request.read))


def _check_exchange(context: Context, request: exchanges.Add) -> None:
    context.broker.check_name("exchange", request.name)
    exchange_class(request.type)
    arguments, _ = typed_arguments(context, request.arguments, request.encoded)
    parse_exchange_arguments(arguments, strict=_any_vhost(context, request.vhost).strict)


def _check_queue(context: Context, request: queues.Add) -> None:
    context.broker.check_name("queue", request.name)
    arguments, _ = typed_arguments(context, request.arguments, request.encoded)
    parse_queue_arguments(
        arguments,
        durable=request.durable,
        exclusive=False,
        auto_delete=request.auto_delete,
        strict=_any_vhost(context, request.vhost).strict,
    )


def _check_policy(context: Context, request: policies.SetPolicy) -> None:
    table = _any_vhost(context, request.vhost).policies.user
    table.make(context.broker, request.name, request.pattern, request.definition, request.apply_to, request.priority)


async def _check_parameter(context: Context, request: parameters.SetParameter) -> None:
    await prepare(context.broker, request.component)
    _any_vhost(context, request.vhost or vhosts.DEFAULT_VHOST).parameters.check(
        request.component, request.name, request.value, parameters.setter_of(context, request)
    )


def _check_binding(context: Context, request: bindings.Add) -> None:
    typed_arguments(context, request.arguments, request.encoded)


def _check_nothing(context: Context, request: Request) -> None:
    """Accept a request whose fields have the right types."""


def _any_vhost(context: Context, name: str) -> Vhost:
    """Return the vhost with this name. A vhost that the import would add has the rules of the default vhost."""
    return context.broker.vhosts.get(name) or context.vhost(vhosts.DEFAULT_VHOST)


# Raises `BrokerError` if a request is invalid.
Check: TypeAlias = Callable[[Context, Any], Awaitable[None] | None]
# The operations of batches, each with its check.
CHANGES: Final[dict[str, tuple[Operation[Any, Any], Check]]] = {
    "users.set": (users.OPERATIONS["users.set"], _check_user),
    "users.change": (users.OPERATIONS["users.change"], _check_nothing),
    "user_limits.set": (limits.OPERATIONS["user_limits.set"], _check_nothing),
    "vhosts.add": (vhosts.OPERATIONS["vhosts.add"], _check_vhost),
    "vhosts.change": (vhosts.OPERATIONS["vhosts.change"], _check_vhost),
    "vhosts.trace": (vhosts.OPERATIONS["vhosts.trace"], _check_nothing),
    "permissions.set": (permissions.OPERATIONS["permissions.set"], _check_permission),
    "topic_permissions.set": (permissions.OPERATIONS["topic_permissions.set"], _check_topic_permission),
    "exchanges.add": (exchanges.OPERATIONS["exchanges.add"], _check_exchange),
    "global_parameters.set": (parameters.OPERATIONS["global_parameters.set"], _check_nothing),
    "policies.set": (policies.OPERATIONS["policies.set"], _check_policy),
    "parameters.set": (parameters.OPERATIONS["parameters.set"], _check_parameter),
    "queues.add": (queues.OPERATIONS["queues.add"], _check_queue),
    "bindings.add": (bindings.OPERATIONS["bindings.add"], _check_binding),
}


def check_number(changes: int) -> None:
    """Raise `PreconditionFailed` if a batch has too many changes."""
    if changes > MAX_CHANGES:
        raise PreconditionFailed(f"the batch has {changes} changes; expected at most {MAX_CHANGES}")


async def apply(context: Context, request: Batch) -> Refusals:
    """Apply changes in their order."""
    return await _run(context, request, _apply)


async def check(context: Context, request: Batch) -> Refusals:
    """Check the changes by themselves, without applying them: names, arguments, patterns, definitions and hashes."""
    return await _run(context, request, _check)


async def _apply(context: Context, change: Change) -> None:
    operation, _ = _find(change)
    await execute(operation, context, read(change.call, operation.request, change.arguments))


async def _check(context: Context, change: Change) -> None:
    operation, check_request = _find(change)
    checking = check_request(context, read(change.call, operation.request, change.arguments))
    if checking is not None:
        await checking


def _find(change: Change) -> tuple[Operation[Any, Any], Check]:
    found = CHANGES.get(change.call)
    if found is None:
        raise ValueError(f"unknown change '{change.call}'; expected one of {', '.join(CHANGES)}")
    return found


async def _run(context: Context, request: Batch, step: Callable[[Context, Change], Awaitable[None]]) -> Refusals:
    check_number(len(request.changes))
    refused: list[Refusal] = []
    deadline = time.monotonic() + TURN
    for index, change in enumerate(request.changes):
        try:
            await step(context, change)
        except BrokerError as error:
            refused.append(Refusal(index=index, condition=error.condition, text=str(error)))
        except ValueError as error:
            refused.append(Refusal(index=index, condition="bad-call", text=str(error)))
        except Exception:  # the other changes must still be made
            logger.exception("internal error in call '%s'", change.call)
            refused.append(Refusal(index=index, condition="internal-error", text=INTERNAL_ERROR))
        if time.monotonic() > deadline:
            context.broker.end_turn()
            await asyncio.sleep(0)
            deadline = time.monotonic() + TURN
    return Refusals(refused=refused)


OPERATIONS: Operations = {
    "definitions.apply": Operation(apply, Batch, Refusals, changes=True),
    "definitions.check": Operation(check, Batch, Refusals),
}
