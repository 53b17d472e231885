"""Branches of distributed transactions: calls of coordinators, and of operators who resolve branches in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING

from leveret.broker.branch import Branch, meant, shown
from leveret.broker.branches import DONE, FAILED, HAS_TIMED_OUT
from leveret.broker.errors import MISTAKE, BrokerError, NotFound
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class Commit(NamedInVhost, kw_only=True):
    one_phase: bool = False
    remember: bool = False


class Rollback(NamedInVhost, kw_only=True):
    remember: bool = False


def describe(branch: Branch) -> Item:
    """Describe a branch.

    `age` is the seconds since it was started, prepared or decided; `timeout` the seconds until it is rolled back, or None.
    """
    broker = branch.branches.broker
    due = branch.timer.due
    return {"vhost": branch.branches.vhost.name, "branch": shown(branch.name), "user": plain(branch.user),
            "state": branch.state, "timed_out": branch.timed_out, "channels": len(branch.workers),
            "publishes": len(branch.publishes), "octets": branch.bytes, "settlements": len(branch.settlements),
            "age": max(broker.timers.now() - branch.since, 0) // 1000,
            "timeout": max(due - broker.timers.now(), 0) // 1000 if due else None}


def list_branches(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [branch for vhost in admin.vhosts(arguments.vhost) for branch in vhost.branches.by_name.values()]
    return (describe(branch) for branch in found)


def prepare(admin: Admin, arguments: NamedInVhost) -> Awaitable[Item]:
    branch = _find(admin, arguments)
    outcome = _Outcome("prepared")
    branch.branches.prepare(branch, outcome.done)
    return outcome.future


def commit(admin: Admin, arguments: Commit) -> Awaitable[Item]:
    branch = _find(admin, arguments)
    outcome = _Outcome("committed")
    branch.branches.commit(branch, arguments.one_phase, outcome.done, arguments.remember)
    return outcome.future


def rollback(admin: Admin, arguments: Rollback) -> Awaitable[Item]:
    branch = _find(admin, arguments)
    outcome = _Outcome("rolled back")
    branch.branches.rollback(branch, outcome.done, arguments.remember, by_hand=True)
    return outcome.future


def forget(admin: Admin, arguments: NamedInVhost) -> None:
    """Forget the outcome of a branch."""
    branch = _find(admin, arguments)
    branch.branches.forget(branch)


def _find(admin: Admin, arguments: NamedInVhost) -> Branch:
    try:
        name = meant(arguments.name)
    except ValueError:
        raise NotFound(f"'{arguments.name}' is not a transaction identifier: expected hexadecimal digits after 'hex:'"
                       ) from None
    return admin.vhost(arguments.vhost).branches.find(name, None)


class _Outcome:
    """Waits for the outcome of a branch, which may differ from the wanted one."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[Item] = asyncio.get_running_loop().create_future()

    def done(self, outcome: int) -> None:
        if self.future.done():
            return
        if outcome == FAILED:
            self.future.set_exception(BrokerError(MISTAKE))
        else:
            name = self.wanted if outcome == DONE else "timed out" if outcome == HAS_TIMED_OUT else "rolled back"
            self.future.set_result({"outcome": name})


CALLS = {
    "dtx.list": Call(list_branches, InVhost),
    "dtx.prepare": Call(prepare, NamedInVhost, changes=True),
    "dtx.commit": Call(commit, Commit, changes=True),
    "dtx.rollback": Call(rollback, Rollback, changes=True),
    "dtx.forget": Call(forget, NamedInVhost, changes=True),
}
