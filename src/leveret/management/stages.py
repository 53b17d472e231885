"""Sink transactions (`stages` in the control protocol) and their sinks (`apps`): list, abort, forget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.errors import NotFound
from leveret.management.calls import Arguments, Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.broker.queues.sink_transaction import SinkTransaction
    from leveret.broker.sink_transactions import App
    from leveret.management.admin import Admin


class Discard(Arguments, kw_only=True):
    stages: list[str]
    vhost: str = "/"


def describe_stage(stage: SinkTransaction) -> Item:
    """Describe a sink transaction. `idle` is the approximate number of seconds since it was published to or prepared."""
    state = "promoted" if stage.batch_commit is not None else "sealed" if stage.prepared else "open"
    now = stage.broker.timers.now()
    return {"vhost": stage.vhost.name, "stage": stage.uuid, "app": plain(stage.app), "user": plain(stage.user),
            "state": state, "messages": stage.count, "octets": stage.bytes, "memory": stage.memory,
            "idle": 0 if stage.count != stage.last_count else max(now - stage.idle_since, 0) // 1000}


def describe_app(app: App) -> Item:
    """Describe a sink. `moved` is the number of committed messages of the current batch; `waits_for` what delays it."""
    commit = app.batch_commit
    return {"app": plain(app.name), "user": plain(app.user), "batch": app.batch if app.batch >= 0 else None,
            "promoting": commit.batch if commit is not None else None,
            "moved": commit.n_moved if commit is not None else None,
            "waits_for": plain(commit.waits_for) or None if commit is not None else None}


def list_stages(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [stage for vhost in admin.vhosts(arguments.vhost) for stage in vhost.sink_transactions.by_uuid.values()]
    return (describe_stage(stage) for stage in found)


def list_apps(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [(vhost.name, app) for vhost in admin.vhosts(arguments.vhost) for app in vhost.sink_transactions.apps.values()]
    return ({"vhost": vhost, **describe_app(app)} for vhost, app in found)


def discard(admin: Admin, arguments: Discard) -> Item:
    stages = admin.vhost(arguments.vhost).sink_transactions
    for uuid in arguments.stages:
        if uuid not in stages.by_uuid:
            raise NotFound(f"sink transaction '{uuid}' does not exist in vhost '{arguments.vhost}'")
    return {"discarded": sum(stages.abort(uuid) for uuid in arguments.stages)}


def forget(admin: Admin, arguments: NamedInVhost) -> None:
    """Forget the last batch of a sink. If the sink commits it again, it is published again."""
    admin.vhost(arguments.vhost).sink_transactions.forget_app(arguments.name)


CALLS = {
    "stages.list": Call(list_stages, InVhost),
    "stages.apps": Call(list_apps, InVhost),
    "stages.discard": Call(discard, Discard, changes=True),
    "stages.forget": Call(forget, NamedInVhost, changes=True),
}
