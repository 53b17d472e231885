"""Shovels: list, show, restart."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.management.descriptions import ShovelInfo
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import InVhost, NamedInVhost


def list_shovels(context: Context, request: InVhost) -> Iterator[ShovelInfo]:
    """List shovels with their states."""
    names = {vhost.name for vhost in context.vhosts(request.vhost)}
    return (item for item in context.managed.shovels.describe() if item.vhost in names)


def show(context: Context, request: NamedInVhost) -> ShovelInfo:
    """Return a shovel."""
    return context.managed.shovels.show(request.vhost, request.name)


def restart(context: Context, request: NamedInVhost) -> None:
    """Close both connections of a shovel, and start it again."""
    context.managed.shovels.restart(request.vhost, request.name)


OPERATIONS: Operations = {
    "shovels.list": Operation(list_shovels, InVhost, ShovelInfo),
    "shovels.show": Operation(show, NamedInVhost, ShovelInfo),
    "shovels.restart": Operation(restart, NamedInVhost, changes=True),
}
