"""The branches of the distributed transactions of a vhost, and the decisions of their coordinators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.branch import (
    COMMITTED,
    PREPARED,
    ROLLBACK_ONLY,
    ROLLED_BACK,
    Branch,
    Worker,
    shown,
)
from leveret.broker.consumer import Holder
from leveret.broker.errors import ContentTooLarge, NotFound, PreconditionFailed, ResourceError, ResourceLocked
from leveret.broker.log import CommitWaiter
from leveret.broker.message import Entry
from leveret.broker.queues import limits
from leveret.broker.transactions import LARGE, REQUEUE, Transaction

if TYPE_CHECKING:
    from leveret.broker.branch_recovery import Taken
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

# What has become of a branch that was to be prepared or decided.
DONE: Final = 0
WAS_ROLLED_BACK: Final = 1
HAS_TIMED_OUT: Final = 2
FAILED: Final = 3  # by a mistake of the broker, which its log has

Done = Callable[[int], None]

MAX_NAME_BYTES: Final = 255
# Milliseconds for which a coordinator can find out that a branch has timed out.
KNOWN_AS_LATE: Final = 3_600_000


class _Told(CommitWaiter):
    """Notification of a decision once it is on disk."""

    def __init__(self, done: Done, outcome: int) -> None:
        self.done = done
        self.outcome = outcome

    def committed(self, batch: int) -> None:
        self.done(self.outcome)


class Branches(Holder):
    """The branches of a vhost, by name. `bytes` is the size of their publishes."""

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.broker = vhost.broker
        self.by_name: dict[str, Branch] = {}
        self.bytes = 0

    def committed(self, batch: int) -> None:
        """Do nothing: a branch has no output to wait for."""

    def all_held(self) -> list[Entry]:
        return [entry for branch in self.by_name.values() for entry, _ in branch.settlements]

    def find(self, name: str, user: str | None) -> Branch:
        """The branch of that name, and of that user unless that is None. NotFound."""
        branch = self.by_name.get(name)
        if branch is None or user not in (None, branch.user):
            raise NotFound(f"no branch '{shown(name)}' in vhost '{self.vhost.name}'")
        return branch

    def begin(self, name: str, user: str, worker: Worker) -> Branch:
        """A new branch. ResourceLocked for a name in use, PreconditionFailed for none, ResourceError for too many."""
        if not 0 < len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_BYTES:
            raise PreconditionFailed(f"a transaction identifier has 1 to {MAX_NAME_BYTES} bytes")
        if name in self.by_name:
            raise ResourceLocked(f"the transaction identifier '{shown(name)}' is in use in vhost '{self.vhost.name}'")
        if len(self.by_name) >= self.broker.branch_settings.count:
            raise ResourceError(f"vhost '{self.vhost.name}' has reached its limit of {self.broker.branch_settings.count}"
                                " branches; the setting is dtx.max_branches")
        branch = self._add(name, user)
        branch.workers[worker] = None
        branch.start_timer()
        return branch

    def check_room(self, n_bytes: int) -> None:
        """ContentTooLarge where the publishes of so many more bytes are too much."""
        size = self.broker.branch_settings.size
        if self.bytes + n_bytes > size:
            raise ContentTooLarge(f"branches of distributed transactions in vhost '{self.vhost.name}' hold more than {size}"
                                  " bytes; the setting is dtx.max_bytes")

    def _add(self, name: str, user: str) -> Branch:
        branch = self.by_name[name] = Branch(self, name, user)
        self.broker.holders[self] = None
        return branch

    def in_doubt(self, user: str | None) -> list[Branch]:
        """The prepared ones, and those that were decided by hand and not forgotten."""
        return [branch for branch in self.by_name.values()
                if branch.recorded and user in (None, branch.user)]

    # Decisions. `done` is called with the outcome once it is on disk.

    def prepare(self, branch: Branch, done: Done) -> None:
        """Promise that it can be committed, whatever happens. PreconditionFailed where it is not the time for that."""
        if self._is_lost(branch, done):
            return
        if branch.state == PREPARED or branch.deciding:
            raise PreconditionFailed(f"{branch} was prepared already")
        self._end_work(branch)
        refusing = next((queue for message, queues in branch.publishes for queue in queues
                         if not queue.deleted and limits.refuses_publish(queue, message.size)), None)
        if refusing is not None:
            logger.info("%s cannot be prepared: queue '%s' is full", branch, refusing.name)
            branch.fail()
            done(WAS_ROLLED_BACK)
            return
        branch.state = PREPARED
        branch.since = self.broker.timers.now()
        branch.start_timer()
        branch.write()
        self.broker.log.wait(_Told(done, DONE))

    def commit(self, branch: Branch, one_phase: bool, done: Done, remember: bool = False) -> None:
        """Have it take effect: one that is prepared, or with `one_phase` one that is not. With `remember` it is listed as
        committed until it is forgotten."""
        if branch.state == COMMITTED:
            done(DONE)
            return
        if self._is_lost(branch, done):
            return
        if branch.deciding:
            raise PreconditionFailed(f"{branch} is being decided")
        if one_phase and branch.state == PREPARED:
            raise PreconditionFailed(f"{branch} is prepared: it takes a commit of two phases")
        if not one_phase and branch.state != PREPARED:
            raise PreconditionFailed(f"{branch} is not prepared: prepare it, or commit it in one phase")
        self._end_work(branch)
        branch.when_loaded(partial(self._commit, branch, done, remember))

    def _commit(self, branch: Branch, done: Done, remember: bool) -> None:
        self.broker.timers.cancel(branch.timer)
        transaction = Transaction(self.broker.log)
        transaction.forced = branch.recorded
        durable = branch.recorded or remember
        for message, queues in branch.publishes:
            transaction.publish(message, queues)
        for entry, outcome in branch.settlements:
            transaction.settle(entry, outcome)
        large = len(branch.publishes) + len(branch.settlements) > LARGE
        branch.empty()
        if large:
            transaction.durable = durable
            self._decide_in_steps(branch, transaction, COMMITTED, done, remember)
            return
        self._decided(branch, COMMITTED, remember)
        transaction.commit(partial(done, DONE), durable)
        branch.forget_stored()  # after its queues have the publishes, so that the log keeps their bodies

    def _decide_in_steps(self, branch: Branch, transaction: Transaction, state: str, done: Done, remember: bool) -> None:
        """Carry out the decision about a large branch, of which the transaction does what is to be done."""
        failed = partial(done, FAILED)
        self.broker.jobs.commits.add(self._deciding(branch, transaction, state, remember),
                                     partial(transaction.finish, partial(done, DONE), failed), failed)

    def _deciding(self, branch: Branch, transaction: Transaction, state: str, remember: bool) -> Iterator[int]:
        transaction.begin(self.broker.jobs)
        try:
            yield from transaction.writing()
            self._decided(branch, state, remember)
            yield from branch.forgetting_stored()
        finally:
            transaction.end()

    def rollback(self, branch: Branch, done: Done, remember: bool = False, by_hand: bool = False) -> None:
        """Forget the publishes and give the entries back. `by_hand`: also while somebody works in it, whose work is
        lost."""
        if branch.state == COMMITTED:
            raise PreconditionFailed(f"{branch} was committed by hand: forget it")
        if branch.timed_out:
            self._is_lost(branch, done)
            return
        if branch.deciding:
            raise PreconditionFailed(f"{branch} is being decided")
        if by_hand:
            branch.lose_workers(f"{branch} was rolled back")
        else:
            self._end_work(branch)
        branch.when_loaded(partial(self._rollback, branch, done, remember))

    def _rollback(self, branch: Branch, done: Done, remember: bool) -> None:
        self.broker.timers.cancel(branch.timer)
        durable = branch.recorded or remember
        if len(branch.publishes) + len(branch.settlements) > LARGE:
            transaction = Transaction(self.broker.log)
            transaction.durable = durable
            for entry, _ in reversed(branch.settlements):
                transaction.settle(entry, REQUEUE)
            branch.empty()
            self._decide_in_steps(branch, transaction, ROLLED_BACK, done, remember)
            return
        branch.release()
        branch.forget_stored()
        self._decided(branch, ROLLED_BACK, remember)
        if durable:
            self.broker.log.wait(_Told(done, DONE))
        else:
            done(DONE)

    def forget(self, branch: Branch) -> None:
        """Forget what has become of a branch. PreconditionFailed where that is not decided."""
        if branch.state not in (COMMITTED, ROLLED_BACK):
            raise PreconditionFailed(f"{branch} is {branch.state}: commit it or roll it back")
        self._drop(branch)

    def time_out(self, branch: Branch) -> None:
        """Roll back a branch that was not prepared or decided in time; forget it after a while."""
        if branch.timed_out and not branch.workers:
            self._drop(branch)
            return
        timers = self.broker.timers
        timers.at(timers.now() + KNOWN_AS_LATE, branch.timer)
        if branch.timed_out:
            return
        logger.warning("%s rolled back: not prepared or committed within dtx.timeout", branch)
        branch.state = ROLLED_BACK
        branch.timed_out = True
        branch.release()
        branch.lose_workers(f"{branch} has timed out")
        self.broker.end_turn()

    def _is_lost(self, branch: Branch, done: Done) -> bool:
        """Whether a branch was rolled back, so that this is all there is to say."""
        if branch.timed_out:
            self._drop(branch)
            done(HAS_TIMED_OUT)
        elif branch.state in (ROLLBACK_ONLY, ROLLED_BACK):
            done(WAS_ROLLED_BACK)
        else:
            return False
        return True

    def _end_work(self, branch: Branch) -> None:
        """Everything that channels have collected is in the branch."""
        for worker in branch.workers:
            if worker.demarcated:
                raise PreconditionFailed(f"{branch} has not been ended")
        for worker in list(branch.workers):
            branch.end(worker, False)
            worker.through()

    def _decided(self, branch: Branch, state: str, remember: bool) -> None:
        branch.state = state
        branch.deciding = False
        if remember:
            self.broker.timers.cancel(branch.timer)
            branch.since = self.broker.timers.now()
            branch.write()
        else:
            self._drop(branch)

    def _drop(self, branch: Branch) -> None:
        branch.erase()
        if self.by_name.get(branch.name) is branch:
            del self.by_name[branch.name]
            if not self.by_name:
                self.broker.holders.pop(self, None)

    def clear(self) -> None:
        """The vhost is deleted."""
        for branch in list(self.by_name.values()):
            branch.lose_workers(f"vhost '{self.vhost.name}' is deleted")
            branch.release()
            branch.forget_stored()
            self._drop(branch)

    # After a start

    def restore(self, name: str, value: dict[str, Any], taken: Taken | None) -> None:
        branch = self._add(name, value["user"])
        queues = {queue.id: queue for queue in self.vhost.queues.values()}
        queues.update({transaction.id: transaction for transaction in self.vhost.sink_transactions.by_uuid.values()})
        branch.recover(value["state"], value["since"], taken, queues)

    def start(self) -> None:
        """With the log committing: have back in memory what was prepared."""
        for branch in self.by_name.values():
            branch.load()
        in_doubt = sum(branch.state == PREPARED for branch in self.by_name.values())
        if in_doubt:
            logger.warning("vhost '%s' has %d branches of distributed transactions in doubt: leveret dtx lists them",
                           self.vhost.name, in_doubt)
