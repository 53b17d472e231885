"""Branches of distributed transactions: what a coordinator calls, and who resolves them in its place."""

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
    """`age`: seconds since it began, or was prepared or decided; `timeout`: seconds until it is rolled back, None for
    never."""
    broker = branch.branches.broker
    due = branch.timer.due
    return {"vhost": branch.branches.vhost.name, "branch": shown(branch.name), "user": plain(branch.user),
            "state": branch.state, "timed_out": branch.timed_out, "channels": len(branch.workers),
            "publishes": len(branch.publishes), "octets": branch.octets, "settlements": len(branch.settlements),
            "age": max(broker.timers.now() - branch.since, 0) // 1000,
            "timeout": max(due - broker.timers.now(), 0) // 1000 if due else None}


def list_branches(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [branch for vhost in admin.vhosts(arguments.vhost) for branch in vhost.branches.by_name.values()]
    return (describe(branch) for branch in found)


def prepare(admin: Admin, arguments: NamedInVhost) -> Awaitable[Item]:
    branch = _find(admin, arguments)
    told = _Outcome("prepared")
    branch.branches.prepare(branch, told.done)
    return told.future


def commit(admin: Admin, arguments: Commit) -> Awaitable[Item]:
    branch = _find(admin, arguments)
    told = _Outcome("committed")
    branch.branches.commit(branch, arguments.one_phase, told.done, arguments.remember)
    return told.future


def rollback(admin: Admin, arguments: Rollback) -> Awaitable[Item]:
    branch = _find(admin, arguments)
    told = _Outcome("rolled back")
    branch.branches.rollback(branch, told.done, arguments.remember, by_hand=True)
    return told.future


def forget(admin: Admin, arguments: NamedInVhost) -> None:
    """What has become of a branch is not known any more."""
    branch = _find(admin, arguments)
    branch.branches.forget(branch)


def _find(admin: Admin, arguments: NamedInVhost) -> Branch:
    try:
        name = meant(arguments.name)
    except ValueError:
        raise NotFound(f"'{arguments.name}' is no transaction identifier: hexadecimal digits are expected after 'hex:'"
                       ) from None
    return admin.vhost(arguments.vhost).branches.find(name, None)


class _Outcome:
    """Waits for what becomes of a branch. The outcome differs from what was wanted where the branch was lost."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[Item] = asyncio.get_running_loop().create_future()

    def done(self, outcome: int) -> None:
        if self.future.done():
            return
        if outcome == FAILED:
            self.future.set_exception(BrokerError(MISTAKE))
        else:
            what = self.wanted if outcome == DONE else "timed out" if outcome == HAS_TIMED_OUT else "rolled back"
            self.future.set_result({"outcome": what})


CALLS = {
    "dtx.list": Call(list_branches, InVhost),
    "dtx.prepare": Call(prepare, NamedInVhost, changes=True),
    "dtx.commit": Call(commit, Commit, changes=True),
    "dtx.rollback": Call(rollback, Rollback, changes=True),
    "dtx.forget": Call(forget, NamedInVhost, changes=True),
}
