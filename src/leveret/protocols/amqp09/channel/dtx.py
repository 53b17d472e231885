"""A channel's work in branches of distributed transactions (0-9 classes dtx and dtx-demarcation).

While a channel works in a branch, it collects publishes and acknowledgements as in a local transaction, and passes them to
the branch when its work there ends. Outside branches, they take effect at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.message import Entry
from leveret.broker.transactions.branch import Branch
from leveret.broker.transactions.transaction import REQUEUE
from leveret.protocols.amqp091.channel.transaction import PendingPublish
from leveret.protocols.amqp091.methods import tx as tx091

if TYPE_CHECKING:
    from leveret.broker.transactions.branches import Branches
    from leveret.protocols.amqp09.channel.channel import Channel

logger = logging.getLogger("leveret.broker")

PRECONDITION_FAILED: Final = 406


class Work:
    """A channel's part in one branch, active or `suspended`."""

    def __init__(self, session: DtxSession) -> None:
        self.session = session
        self.demarcated = session.demarcated
        self.branch: Branch | None = None
        self.suspended = False

    def begin(self, branches: Branches, name: str, user: str) -> None:
        """Begin a new branch."""
        self.branch = branches.begin(name, user, self)

    def join(self, branch: Branch) -> None:
        """Join a branch that other channels work in."""
        self.branch = branch
        branch.join(self)

    def suspend(self) -> None:
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False

    def flushing(self, branch: Branch) -> Iterator[int]:
        publishes: list[PendingPublish] = []
        settlements: list[tuple[int, Entry, int]] = []
        if self.session.current is self:
            channel = self.session.channel
            publishes, settlements = channel.transaction.take()
            channel.transaction_ended(True)
        return self._flushing(branch, publishes, settlements)

    def _flushing(
        self, branch: Branch, publishes: list[PendingPublish], settlements: list[tuple[int, Entry, int]]
    ) -> Iterator[int]:
        """Add publishes and settlements to the branch. If that fails, the branch can only be rolled back."""
        wakes = bool(settlements)
        try:
            yield from self._publishing(branch, publishes)
        except BrokerError as error:
            logger.info("%s can only be rolled back: %s", branch, error)
            branch.fail()
        except Exception:
            logger.exception("%s can only be rolled back", branch)
            branch.fail()
        while publishes:
            publishes.pop()
            yield 1
        settlements.reverse()
        while settlements:
            yield from logged(self._settling(branch, settlements))
        if wakes:
            self.session.channel.wake()

    def _publishing(self, branch: Branch, publishes: list[PendingPublish]) -> Iterator[int]:
        channel = self.session.channel
        publishes.reverse()
        while publishes:
            pending = publishes.pop()
            queues = tx091.queues_of(channel, pending)
            branch.publish(pending.message, queues, pending.route.delay)
            yield 2 + len(queues)

    def _settling(self, branch: Branch, settlements: list[tuple[int, Entry, int]]) -> Iterator[int]:
        channel = self.session.channel
        while settlements:
            tag, entry, outcome = settlements.pop()
            channel.unacked.uncount(tag, entry)
            if outcome == REQUEUE:
                entry.queue.refuse(entry, channel.scope)
            branch.settle(entry, outcome)
            yield 2

    def detached(self) -> None:
        self.session.leave(self)

    def rolled_back(self, branch: Branch, reason: str) -> None:
        if self.demarcated:
            # The client is notified when it ends its work.
            self.session.channel.broker.jobs.removals.add(branch.flushing(self))
        else:
            # No later reply would report the loss.
            channel = self.session.channel
            channel.connection.refuse(channel, PRECONDITION_FAILED, reason, 0, 0)


class DtxSession:
    """The branches that one channel works in.

    Attributes:
        demarcated: whether the client ends its work in a branch (class dtx-demarcation). Otherwise, the work ends when the
            branch is prepared, committed or rolled back (class dtx).
        current: the active work; None outside branches.
        works: active and suspended work by branch name.
        started: whether the channel has worked in a branch.
    """

    def __init__(self, channel: Channel, demarcated: bool) -> None:
        self.channel = channel
        self.demarcated = demarcated
        self.current: Work | None = None
        self.works: dict[str, Work] = {}
        self.started = False

    def start(self, name: str, join: bool = False) -> None:
        """Start work in a new branch, or in one that other channels work in.

        Raises:
            PreconditionFailed: the channel already works in a branch, or has suspended its work in this one.
        """
        if self.current is not None:
            raise PreconditionFailed(f"the channel already works in {self.current.branch}")
        if name in self.works:
            raise PreconditionFailed(f"the channel has suspended its work in {self.works[name].branch}: resume it")
        channel = self.channel
        branches = channel.vhost.branches
        work = Work(self)
        if join:
            work.join(branches.find(name, channel.connection.user))
        else:
            work.begin(branches, name, channel.connection.user)
        self.started = True
        self.works[name] = work
        self._enter(work)

    def suspend(self, name: str) -> tuple[Branch, Iterator[int]]:
        """Suspend work in the branch. Return the steps that add the work done so far to the branch."""
        work = self.current
        if work is None or self.works.get(name) is not work or work.branch is None:
            raise PreconditionFailed("the channel does not work in a branch with this name")
        pieces = work.branch.flushing(work)
        work.suspend()
        self._outside()
        return work.branch, pieces

    def resume(self, name: str) -> None:
        work = self.works.get(name)
        if work is None or not work.suspended:
            raise PreconditionFailed("the channel has not suspended a branch with this name")
        if self.current is not None:
            raise PreconditionFailed(f"the channel already works in {self.current.branch}")
        work.resume()
        self._enter(work)

    def end(self, name: str, failed: bool) -> tuple[Branch, Iterator[int]]:
        """End the work in a branch, successfully or not. Return the steps that add it to the branch."""
        work = self.works.get(name)
        if work is None or work.branch is None:
            raise PreconditionFailed("the channel does not work in a branch with this name")
        pieces = work.branch.ending(work, failed)
        self.leave(work)
        return work.branch, pieces

    def leave(self, work: Work) -> None:
        branch = work.branch
        if branch is not None:
            self.works.pop(branch.name, None)
        if self.current is work:
            self._outside()

    def close(self) -> None:
        """Handle the end of the channel: its branches can only be rolled back."""
        works = self.works
        self.works = {}
        self.current = None
        for work in works.values():
            if work.branch is not None:
                work.branch.workers.pop(work, None)
                work.branch.fail()

    def _enter(self, work: Work) -> None:
        self.current = work
        self.channel.set_in_branch(True)

    def _outside(self) -> None:
        self.current = None
        self.channel.set_in_branch(False)
