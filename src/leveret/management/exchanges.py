"""Exchanges: list, add, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import field

from leveret.broker.errors import NotFound
from leveret.broker.exchanges.base import Exchange
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class Add(NamedInVhost, kw_only=True):
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


class Delete(NamedInVhost, kw_only=True):
    if_unused: bool = False


def describe(vhost: str, exchange: Exchange) -> Item:
    return {
        "vhost": vhost,
        "name": plain(exchange.name),
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        "bindings": sum(len(own) for own in exchange.by_destination.values()),
    }


def list_exchanges(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [(vhost.name, exchange) for vhost in admin.vhosts(arguments.vhost) for exchange in vhost.exchanges.values()]
    return (describe(vhost, exchange) for vhost, exchange in found)


def add(admin: Admin, arguments: Add) -> Item:
    """Declare an exchange, as a client does. An equal exchange may exist already."""
    exchange = admin.vhost(arguments.vhost).declare_exchange(
        arguments.name, arguments.type, durable=arguments.durable, auto_delete=arguments.auto_delete,
        internal=arguments.internal, arguments=arguments.arguments)
    return describe(arguments.vhost, exchange)


def delete(admin: Admin, arguments: Delete) -> None:
    vhost = admin.vhost(arguments.vhost)
    if arguments.name not in vhost.exchanges:
        raise NotFound(f"no exchange '{arguments.name}' in vhost '{arguments.vhost}'")
    vhost.delete_exchange(arguments.name, if_unused=arguments.if_unused)


CALLS = {
    "exchanges.list": Call(list_exchanges, InVhost),
    "exchanges.add": Call(add, Add, changes=True),
    "exchanges.delete": Call(delete, Delete, changes=True, removes=True),
}
