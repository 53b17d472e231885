"""Vhosts: list, add, change, delete. Configured vhosts can only be changed in the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from leveret.broker.errors import NotAllowed, NotFound, PreconditionFailed
from leveret.config import CompatConfig, VhostConfig, VhostLimitsConfig
from leveret.management.calls import Arguments, Call, Item, Named

if TYPE_CHECKING:
    from leveret.management.admin import Admin

# The kind of metadata for the settings of vhosts that an operator added.
KIND = "vhost-settings"
DEFAULT_VHOST = "/"


class Change(Named, kw_only=True):
    """Arguments that are omitted stay unchanged; in a new vhost they have their defaults."""

    strict: bool | None = None
    qos_global: Literal["rabbitmq", "spec"] | None = None
    max_queues: int | None = None
    max_connections: int | None = None
    consumer_timeout: float | None = None


def stored_vhosts(metadata: Mapping[tuple[str, str], bytes]) -> dict[str, VhostConfig]:
    """Return the settings that operators gave to vhosts, from the log's metadata."""
    return {name: msgspec.json.decode(value, type=VhostConfig)
            for (kind, name), value in metadata.items() if kind == KIND}


def list_vhosts(admin: Admin, arguments: Arguments) -> Iterator[Item]:
    for vhost in admin.vhosts(None):
        ready = unacked = 0
        for queue in vhost.queues.values():
            ready += queue.ready_count
            unacked += queue.unacked
        yield {
            "name": vhost.name,
            "source": _source(admin, vhost.name),
            "strict": vhost.strict,
            "queues": len(vhost.queues),
            "exchanges": len(vhost.exchanges),
            "ready": ready,
            "unacked": unacked,
            "connections": vhost.connections,
            "max_queues": max(vhost.settings.max_queues, 0),
            "max_connections": max(vhost.settings.max_connections, 0),
        }


def _source(admin: Admin, name: str) -> str:
    if name in admin.config.vhosts:
        return "config"
    return "default" if name == DEFAULT_VHOST and name not in admin.vhost_settings else "metadata"


def _check_changeable(admin: Admin, name: str) -> None:
    if name in admin.config.vhosts:
        raise NotAllowed(f"vhost '{name}' is declared in {admin.config_name}; change it there")


def add(admin: Admin, arguments: Change) -> None:
    _check_changeable(admin, arguments.name)
    if arguments.name in admin.broker.vhosts:
        raise PreconditionFailed(f"vhost '{arguments.name}' exists already")
    if not 1 <= len(arguments.name.encode("utf-8", "surrogateescape")) <= 255:
        raise PreconditionFailed("invalid name of a vhost; expected 1 to 255 bytes")
    _set(admin, arguments, VhostConfig())


def change(admin: Admin, arguments: Change) -> None:
    _check_changeable(admin, arguments.name)
    admin.vhost(arguments.name)
    _set(admin, arguments, admin.vhost_settings.get(arguments.name, VhostConfig()))


def _set(admin: Admin, arguments: Change, old: VhostConfig) -> None:
    limits = old.limits
    new = VhostConfig(
        compat=old.compat if arguments.strict is None else CompatConfig(strict=arguments.strict),
        qos_global=arguments.qos_global or old.qos_global,
        limits=VhostLimitsConfig(
            max_queues=limits.max_queues if arguments.max_queues is None else arguments.max_queues,
            max_connections=limits.max_connections if arguments.max_connections is None else arguments.max_connections,
        ),
        consumer_timeout=old.consumer_timeout if arguments.consumer_timeout is None else arguments.consumer_timeout,
    )
    if min(new.limits.max_queues, new.limits.max_connections, new.consumer_timeout) < 0:
        raise PreconditionFailed("limits and timeouts must be at least 0, which means none")
    admin.vhost_settings[arguments.name] = new
    admin.broker.log.put(KIND, arguments.name, msgspec.json.encode(new))
    admin.apply_vhost(arguments.name, new)


def delete(admin: Admin, arguments: Named) -> None:
    """Delete a vhost with everything in it, its connections and the permissions in it."""
    name = arguments.name
    _check_changeable(admin, name)
    if name == DEFAULT_VHOST:
        raise NotAllowed(f"vhost '{DEFAULT_VHOST}' always exists")
    if name not in admin.broker.vhosts:
        raise NotFound(f"no vhost '{name}'")
    for session in list(admin.sessions()):
        if session.describe()["vhost"] == name:
            session.shut_down(f"vhost '{name}' was deleted")
    admin.broker.remove_vhost(name)
    if admin.vhost_settings.pop(name, None) is not None:
        admin.broker.log.put(KIND, name, None)
    admin.users.forget_vhost(name)


CALLS = {
    "vhosts.list": Call(list_vhosts),
    "vhosts.add": Call(add, Change, changes=True),
    "vhosts.change": Call(change, Change, changes=True),
    "vhosts.delete": Call(delete, Named, changes=True, removes=True),
}
