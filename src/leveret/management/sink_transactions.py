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


class Abort(Arguments, kw_only=True):
    stages: list[str]
    vhost: str = "/"


def describe_transaction(transaction: SinkTransaction) -> Item:
    """Describe a sink transaction. `idle` is the approximate number of seconds since it was published to or prepared."""
    state = "promoted" if transaction.batch_commit is not None else "sealed" if transaction.prepared else "open"
    now = transaction.broker.timers.now()
    return {"vhost": transaction.vhost.name, "stage": transaction.uuid, "app": plain(transaction.app),
            "user": plain(transaction.user), "state": state, "messages": transaction.count, "octets": transaction.bytes,
            "memory": transaction.memory,
            "idle": 0 if transaction.count != transaction.last_count else max(now - transaction.idle_since, 0) // 1000}


def describe_app(app: App) -> Item:
    """Describe a sink. `moved` is the number of committed messages of the current batch; `waits_for` what delays it."""
    commit = app.batch_commit
    return {"app": plain(app.name), "user": plain(app.user), "batch": app.batch if app.batch >= 0 else None,
            "promoting": commit.batch if commit is not None else None,
            "moved": commit.n_moved if commit is not None else None,
            "waits_for": plain(commit.waits_for) or None if commit is not None else None}


def list_transactions(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [each for vhost in admin.vhosts(arguments.vhost) for each in vhost.sink_transactions.by_uuid.values()]
    return (describe_transaction(each) for each in found)


def list_apps(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [(vhost.name, app) for vhost in admin.vhosts(arguments.vhost) for app in vhost.sink_transactions.apps.values()]
    return ({"vhost": vhost, **describe_app(app)} for vhost, app in found)


def abort(admin: Admin, arguments: Abort) -> Item:
    transactions = admin.vhost(arguments.vhost).sink_transactions
    for uuid in arguments.stages:
        if uuid not in transactions.by_uuid:
            raise NotFound(f"sink transaction '{uuid}' does not exist in vhost '{arguments.vhost}'")
    return {"discarded": sum(transactions.abort(uuid) for uuid in arguments.stages)}


def forget(admin: Admin, arguments: NamedInVhost) -> None:
    """Forget the last batch of a sink. If the sink commits it again, it is published again."""
    admin.vhost(arguments.vhost).sink_transactions.forget_app(arguments.name)


CALLS = {
    "stages.list": Call(list_transactions, InVhost),
    "stages.apps": Call(list_apps, InVhost),
    "stages.discard": Call(abort, Abort, changes=True),
    "stages.forget": Call(forget, NamedInVhost, changes=True),
}
