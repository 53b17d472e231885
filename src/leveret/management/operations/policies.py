"""Policies and operator policies: list, show, set, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import field

from leveret.broker.policies import ALL, QUEUES, Definition, Policies, Policy, PolicyTable
from leveret.management.json_values import ClientTable
from leveret.management.operations.operation import Applied, Context, Operation, Operations
from leveret.management.structs import InVhost, NamedInVhost, Reply


class SetPolicy(NamedInVhost, kw_only=True):
    """Request to add or replace a policy."""

    pattern: str
    definition: Definition
    priority: int = 0
    apply_to: str = field(default=ALL, name="apply-to")


class SetOperatorPolicy(SetPolicy, kw_only=True):
    """Request to add or replace an operator policy."""

    apply_to: str = field(default=QUEUES, name="apply-to")


class PolicyInfo(Reply, kw_only=True):
    """A policy or an operator policy."""

    vhost: str
    name: str
    pattern: str
    apply_to: str = field(name="apply-to")
    definition: ClientTable
    priority: int


class Stored(Reply, kw_only=True):
    """Whether an object was created; otherwise it was replaced."""

    created: bool


def name_of(policy: Policy | None) -> str | None:
    """Return the name of the policy that applies to an object."""
    return None if policy is None else policy.name


def _describe(vhost: str, policy: Policy) -> PolicyInfo:
    return PolicyInfo(
        vhost=vhost,
        name=policy.name,
        pattern=policy.pattern,
        apply_to=policy.apply_to,
        definition=ClientTable(policy.definition),
        priority=policy.priority,
    )


def _user(policies: Policies) -> PolicyTable:
    return policies.user


def _operator(policies: Policies) -> PolicyTable:
    return policies.operator


def _list(context: Context, request: InVhost, table: Callable[[Policies], PolicyTable]) -> Iterator[PolicyInfo]:
    found = [
        (vhost.name, policy)
        for vhost in context.vhosts(request.vhost)
        for _, policy in sorted(table(vhost.policies).by_name.items())
    ]
    return (_describe(vhost, policy) for vhost, policy in found)


def _show(context: Context, request: NamedInVhost, table: Callable[[Policies], PolicyTable]) -> PolicyInfo:
    policies = context.vhost(request.vhost).policies
    return _describe(request.vhost, policies.get(table(policies), request.name))


async def _set(context: Context, request: SetPolicy, table: Callable[[Policies], PolicyTable]) -> Stored:
    policies = context.vhost(request.vhost).policies
    applied = Applied()
    created = policies.set(
        table(policies),
        request.name,
        request.pattern,
        request.definition,
        apply_to=request.apply_to,
        priority=request.priority,
        done=applied.done,
    )
    await applied.future
    return Stored(created=created)


async def _delete(context: Context, request: NamedInVhost, table: Callable[[Policies], PolicyTable]) -> None:
    policies = context.vhost(request.vhost).policies
    applied = Applied()
    policies.delete(table(policies), request.name, applied.done)
    await applied.future


def list_policies(context: Context, request: InVhost) -> Iterator[PolicyInfo]:
    """List policies."""
    return _list(context, request, _user)


def show_policy(context: Context, request: NamedInVhost) -> PolicyInfo:
    """Return a policy."""
    return _show(context, request, _user)


async def set_policy(context: Context, request: SetPolicy) -> Stored:
    """Add or replace a policy. Returns when it is applied."""
    return await _set(context, request, _user)


async def delete_policy(context: Context, request: NamedInVhost) -> None:
    """Delete a policy. Returns when that is applied."""
    await _delete(context, request, _user)


def list_operator_policies(context: Context, request: InVhost) -> Iterator[PolicyInfo]:
    """List operator policies."""
    return _list(context, request, _operator)


def show_operator_policy(context: Context, request: NamedInVhost) -> PolicyInfo:
    """Return an operator policy."""
    return _show(context, request, _operator)


async def set_operator_policy(context: Context, request: SetOperatorPolicy) -> Stored:
    """Add or replace an operator policy. Returns when it is applied."""
    return await _set(context, request, _operator)


async def delete_operator_policy(context: Context, request: NamedInVhost) -> None:
    """Delete an operator policy. Returns when that is applied."""
    await _delete(context, request, _operator)


OPERATIONS: Operations = {
    "policies.list": Operation(list_policies, InVhost, PolicyInfo),
    "policies.show": Operation(show_policy, NamedInVhost, PolicyInfo),
    "policies.set": Operation(set_policy, SetPolicy, Stored, changes=True),
    "policies.delete": Operation(delete_policy, NamedInVhost, changes=True),
    "operator_policies.list": Operation(list_operator_policies, InVhost, PolicyInfo),
    "operator_policies.show": Operation(show_operator_policy, NamedInVhost, PolicyInfo),
    "operator_policies.set": Operation(set_operator_policy, SetOperatorPolicy, Stored, changes=True),
    "operator_policies.delete": Operation(delete_operator_policy, NamedInVhost, changes=True),
}
