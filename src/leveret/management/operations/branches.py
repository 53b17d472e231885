"""Branches of distributed transactions: operations for coordinators, and for operators who resolve branches."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.broker.errors import INTERNAL_ERROR, BrokerError, NotFound
from leveret.broker.transactions.branch import Branch, format_identifier, parse_identifier
from leveret.broker.transactions.branches import DONE, FAILED, HAS_TIMED_OUT
from leveret.management.operations.operation import Context, Later, Operation, Operations
from leveret.management.structs import InVhost, NamedInVhost, Reply


class Commit(NamedInVhost, kw_only=True):
    one_phase: bool = False
    remember: bool = False


class Rollback(NamedInVhost, kw_only=True):
    remember: bool = False


class BranchInfo(Reply, kw_only=True):
    """A branch.

    `age` is the time since the branch was started, prepared or decided. `timeout` is the time until its rollback, or None.
    Both are in seconds.
    """

    vhost: str
    branch: str
    user: str
    state: str
    timed_out: bool
    channels: int
    publishes: int
    octets: int
    settlements: int
    age: int
    timeout: int | None


class Outcome(Reply, kw_only=True):
    """The outcome of a branch: `prepared`, `committed`, `rolled back` or `timed out`."""

    outcome: str


def describe(branch: Branch) -> BranchInfo:
    """Describe a branch."""
    broker = branch.branches.broker
    due = branch.timer.due
    return BranchInfo(
        vhost=branch.branches.vhost.name,
        branch=format_identifier(branch.name),
        user=branch.user,
        state=branch.state,
        timed_out=branch.timed_out,
        channels=len(branch.workers),
        publishes=len(branch.publishes),
        octets=branch.bytes,
        settlements=len(branch.settlements),
        age=max(broker.timers.now() - branch.since, 0) // 1000,
        timeout=max(due - broker.timers.now(), 0) // 1000 if due else None,
    )


def list_branches(context: Context, request: InVhost) -> Iterator[BranchInfo]:
    """List branches."""
    found = [branch for vhost in context.vhosts(request.vhost) for branch in vhost.branches.by_name.values()]
    return (describe(branch) for branch in found)


def prepare(context: Context, request: NamedInVhost) -> Later[Outcome]:
    """Prepare a branch."""
    branch = _find(context, request)
    outcome = _Waiter("prepared")
    branch.branches.prepare(branch, outcome.done)
    return outcome.later


def commit(context: Context, request: Commit) -> Later[Outcome]:
    """Commit a branch."""
    branch = _find(context, request)
    outcome = _Waiter("committed")
    branch.branches.commit(branch, request.one_phase, outcome.done, request.remember)
    return outcome.later


def rollback(context: Context, request: Rollback) -> Later[Outcome]:
    """Roll back a branch."""
    branch = _find(context, request)
    outcome = _Waiter("rolled back")
    branch.branches.rollback(branch, outcome.done, request.remember, by_hand=True)
    return outcome.later


def forget(context: Context, request: NamedInVhost) -> None:
    """Forget the outcome of a branch."""
    branch = _find(context, request)
    branch.branches.forget(branch)


def _find(context: Context, request: NamedInVhost) -> Branch:
    try:
        name = parse_identifier(request.name)
    except ValueError:
        raise NotFound(
            f"'{request.name}' is not a transaction identifier: expected hexadecimal digits after 'hex:'"
        ) from None
    return context.vhost(request.vhost).branches.find(name, None)


class _Waiter:
    """Waiter for the outcome of a branch, which may differ from `wanted`."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.later = Later[Outcome]()

    def done(self, outcome: int) -> None:
        if outcome == FAILED:
            self.later.fail(BrokerError(INTERNAL_ERROR))
        else:
            name = self.wanted if outcome == DONE else "timed out" if outcome == HAS_TIMED_OUT else "rolled back"
            self.later.answer(Outcome(outcome=name))


OPERATIONS: Operations = {
    "dtx.list": Operation(list_branches, InVhost, BranchInfo),
    "dtx.prepare": Operation(prepare, NamedInVhost, Outcome, changes=True),
    "dtx.commit": Operation(commit, Commit, Outcome, changes=True),
    "dtx.rollback": Operation(rollback, Rollback, Outcome, changes=True),
    "dtx.forget": Operation(forget, NamedInVhost, changes=True),
}
