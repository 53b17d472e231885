"""The branches of the distributed transactions of a vhost, and the decisions of their coordinators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.consumer import UNACKED_PIECE, UnackedOwner
from leveret.broker.delay import Delay
from leveret.broker.errors import ContentTooLarge, NotFound, PreconditionFailed, ResourceError, ResourceLocked
from leveret.broker.log import CommitWaiter
from leveret.broker.message import Entry, Message
from leveret.broker.metadata import Record
from leveret.broker.queues.queue import Queue
from leveret.broker.transactions.branch import (
    COMMITTED,
    PREPARED,
    ROLLBACK_ONLY,
    ROLLED_BACK,
    Branch,
    Worker,
    format_identifier,
)
from leveret.broker.transactions.transaction import LARGE, Transaction

if TYPE_CHECKING:
    from leveret.broker.transactions.branch_recovery import Taken
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

# Outcomes of a preparation or decision.
DONE: Final = 0
WAS_ROLLED_BACK: Final = 1
HAS_TIMED_OUT: Final = 2
FAILED: Final = 3  # internal error, which is logged

Done = Callable[[int], None]

MAX_NAME_BYTES: Final = 255
# Milliseconds during which a coordinator can find out that a branch has timed out.
TIMED_OUT_RETENTION: Final = 3_600_000


class _DecisionWaiter(CommitWaiter):
    """Notification of a decision once it is on disk."""

    def __init__(self, done: Done, outcome: int) -> None:
        self.done = done
        self.outcome = outcome

    def committed(self, batch: int) -> None:
        self.done(self.outcome)


class _Prepare:
    """The preparation of a branch, in steps if it is large."""

    def __init__(self, branches: Branches, branch: Branch, done: Done) -> None:
        self.branches = branches
        self.broker = branches.broker
        self.branch = branch
        self.done = done
        self.large = False
        # Queue without room for the publishes.
        self.refusing: Queue | None = None

    def begin(self) -> None:
        branch = self.branch
        count = len(branch.publishes) + len(branch.settlements)
        self.large = count > LARGE
        if self.large:
            self.broker.jobs.commits.add(self._pieces(), self._written, self._failed)
            return
        self.broker.work += count
        try:
            for _ in self._pieces():
                pass
        except Exception:
            self._undecided()
            raise
        self._written()

    def _pieces(self) -> Iterator[int]:
        branch = self.branch
        if not branch.is_open():
            return
        for message, queues, delay in branch.publishes:
            for queue in queues:
                due = 0 if delay is None else delay.due_in(queue, 0)
                if not queue.deleted and queue.limits.would_reject(message, due):
                    self.refusing = queue
                    return
            yield 1
        branch.since = self.broker.timers.now()
        if not self.large:
            yield from self._write()
            return
        log = self.broker.log
        log.begin_batch(self.broker.jobs.commits.complete)
        try:
            yield from self._write()
        finally:
            log.end_batch()

    def _write(self) -> Iterator[int]:
        branch = self.branch
        yield from branch.preparing()
        if self.branches.contains(branch):
            branch.state = PREPARED
        else:  # its vhost was deleted meanwhile
            yield from branch.forgetting_stored()
            branch.erase()

    def _written(self) -> None:
        branch = self.branch
        branch.deciding = False
        if branch.state == PREPARED:
            self.broker.log.wait(_DecisionWaiter(self.done, DONE))
            return
        if self.refusing is not None:
            logger.info("%s cannot be prepared: queue '%s' is full", branch, self.refusing.name)
        branch.fail()
        branch.start_timer()
        self.done(WAS_ROLLED_BACK)

    def _failed(self) -> None:
        self._undecided()
        self.done(FAILED)

    def _undecided(self) -> None:
        """Return the branch to its earlier state: it can be prepared again, or decided."""
        self.branch.deciding = False
        self.branch.start_timer()


class Branches(UnackedOwner):
    """The branches of a vhost, by name. `bytes` is the size of their publishes."""

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.broker = vhost.broker
        self.by_name: dict[str, Branch] = {}
        self.bytes = 0

    def all_unacked(self) -> list[Entry]:
        return [entry for branch in self.by_name.values() for entry, _ in branch.settlements]

    def unacked_pieces(self) -> Iterator[list[Entry]]:
        for branch in list(self.by_name.values()):
            settlements = branch.settlements
            for at in range(0, len(settlements), UNACKED_PIECE):
                yield [entry for entry, _ in settlements[at : at + UNACKED_PIECE]]

    def find(self, name: str, user: str | None) -> Branch:
        """Return a branch of a user; of any user for None. Raises NotFound."""
        branch = self.by_name.get(name)
        if branch is None or user not in (None, branch.user):
            raise NotFound(f"branch '{format_identifier(name)}' does not exist in vhost '{self.vhost.name}'")
        return branch

    def begin(self, name: str, user: str, worker: Worker) -> Branch:
        """Create a branch.

        Raises ResourceLocked if its name is in use, PreconditionFailed for a bad name, or ResourceError.
        """
        if not 0 < len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_BYTES:
            raise PreconditionFailed(f"a transaction identifier has 1 to {MAX_NAME_BYTES} bytes")
        if name in self.by_name:
            raise ResourceLocked(
                f"the transaction identifier '{format_identifier(name)}' is in use in vhost '{self.vhost.name}'"
            )
        if len(self.by_name) >= self.broker.branch_settings.count:
            raise ResourceError(
                f"vhost '{self.vhost.name}' has reached its limit of {self.broker.branch_settings.count}"
                " branches; the setting is dtx.max_branches"
            )
        branch = self._add(name, user)
        branch.workers[worker] = None
        branch.start_timer()
        return branch

    def check_room(self, n_bytes: int) -> None:
        """Raise ContentTooLarge if `n_bytes` more of publishes would exceed the limit."""
        size = self.broker.branch_settings.size
        if self.bytes + n_bytes > size:
            raise ContentTooLarge(
                f"branches of distributed transactions in vhost '{self.vhost.name}' exceed {size}"
                " bytes; the setting is dtx.max_bytes"
            )

    def _add(self, name: str, user: str) -> Branch:
        branch = self.by_name[name] = Branch(self, name, user)
        self.broker.holders[self] = None
        return branch

    def in_doubt(self, user: str | None) -> list[Branch]:
        """Return the prepared branches, and those decided by hand and not yet forgotten."""
        return [branch for branch in self.by_name.values() if branch.recorded and user in (None, branch.user)]

    # Decisions; `done` is called with the outcome once it is on disk

    def prepare(self, branch: Branch, done: Done) -> None:
        """Prepare a branch: after that, a commit cannot fail.

        Raises PreconditionFailed if its state does not allow that.
        """
        if self._is_lost(branch, done):
            return
        if branch.state == PREPARED:
            raise PreconditionFailed(f"{branch} is already prepared")
        self._check_undecided(branch)
        self._end_work(branch)
        branch.when_idle(_Prepare(self, branch, done).begin)

    def commit(self, branch: Branch, one_phase: bool, done: Done, remember: bool = False) -> None:
        """Commit a prepared branch, or with `one_phase` an unprepared one.

        With `remember`, the branch stays listed as committed until it is forgotten.
        """
        if branch.state == COMMITTED:
            done(DONE)
            return
        if self._is_lost(branch, done):
            return
        self._check_undecided(branch)
        if one_phase and branch.state == PREPARED:
            raise PreconditionFailed(f"{branch} is prepared: commit it in two phases")
        if not one_phase and branch.state != PREPARED:
            raise PreconditionFailed(f"{branch} is not prepared: prepare it, or commit it in one phase")
        self._end_work(branch)
        branch.when_idle(partial(self._commit, branch, done, remember))

    def _commit(self, branch: Branch, done: Done, remember: bool) -> None:
        if self._is_lost(branch, done):
            branch.deciding = False
            return
        transaction = Transaction(self.broker.log)
        transaction.forced = branch.recorded
        transaction.durable = branch.recorded or remember
        publishes, settlements = branch.take()
        transaction.settlements = settlements
        count = len(publishes) + len(settlements)
        failed = partial(done, FAILED)
        finish = partial(transaction.finish, partial(done, DONE), failed)
        if count > LARGE:
            self.broker.jobs.commits.add(self._committing(branch, transaction, publishes, remember, True), finish, failed)
            return
        self.broker.work += count
        for _ in self._committing(branch, transaction, publishes, remember, False):
            pass
        finish()

    def _committing(
        self,
        branch: Branch,
        transaction: Transaction,
        publishes: list[tuple[Message, list[Queue], Delay | None]],
        remember: bool,
        large: bool,
    ) -> Iterator[int]:
        """Commit a branch, in steps if it is large. After a failure it can be decided again."""
        state = branch.state
        publishes.reverse()
        while publishes:
            message, queues, delay = publishes.pop()
            transaction.publish(message, queues, 0, delay)
            yield 1
        if large:
            transaction.begin(self.broker.jobs)
        failure: Exception | None = None
        try:
            yield from transaction.writing()
            self._decided(branch, COMMITTED, remember)
        except Exception as error:
            failure = error
        if failure is None:
            yield from transaction.returning()
            # After its queues have the publishes, so that the log keeps their bodies.
            yield from branch.forgetting_stored()
        else:
            yield from transaction.undoing()
            branch.state = state
            yield from branch.restoring(transaction)
        if large:
            transaction.end()
        if failure is not None:
            raise failure

    def rollback(self, branch: Branch, done: Done, remember: bool = False, by_hand: bool = False) -> None:
        """Drop the publishes and requeue the entries. `by_hand`: even if a worker is active, whose work is lost."""
        if branch.state == COMMITTED:
            raise PreconditionFailed(f"{branch} was committed by hand: forget it")
        if branch.timed_out:
            self._is_lost(branch, done)
            return
        self._check_undecided(branch)
        if by_hand:
            branch.lose_workers(f"{branch} was rolled back")
        else:
            self._end_work(branch)
        branch.when_idle(partial(self._rollback, branch, done, remember))

    def _rollback(self, branch: Branch, done: Done, remember: bool) -> None:
        durable = branch.recorded or remember
        count = len(branch.publishes) + len(branch.settlements)
        if count > LARGE:
            self.broker.jobs.commits.add(
                self._rolling_back_at_once(branch, remember),
                partial(self._rolled_back, done, durable),
                partial(done, FAILED),
            )
            return
        self.broker.work += count
        for _ in self._rolling_back(branch, remember):
            pass
        self._rolled_back(done, durable)

    def _rolling_back_at_once(self, branch: Branch, remember: bool) -> Iterator[int]:
        """Roll back a large branch in steps, in one log commit."""
        log = self.broker.log
        log.begin_batch(self.broker.jobs.commits.complete)
        try:
            yield from self._rolling_back(branch, remember)
        finally:
            log.end_batch()

    def _rolling_back(self, branch: Branch, remember: bool) -> Iterator[int]:
        yield from branch.releasing()
        yield from branch.forgetting_stored()
        self._decided(branch, ROLLED_BACK, remember)

    def _rolled_back(self, done: Done, durable: bool) -> None:
        if durable:
            self.broker.log.wait(_DecisionWaiter(done, DONE))
        else:
            done(DONE)

    def forget(self, branch: Branch) -> None:
        """Forget a branch that was decided by hand. Raises PreconditionFailed for other states."""
        if branch.state not in (COMMITTED, ROLLED_BACK):
            raise PreconditionFailed(f"{branch} is {branch.state}: commit it or roll it back")
        self._drop(branch)

    def time_out(self, branch: Branch) -> None:
        """Roll back a branch that was not prepared or decided in time; forget it after a while."""
        if branch.timed_out and not branch.workers:
            self._drop(branch)
            return
        timers = self.broker.timers
        timers.at(timers.now() + TIMED_OUT_RETENTION, branch.timer)
        if branch.timed_out:
            return
        logger.warning("%s rolled back: not prepared or committed within dtx.timeout", branch)
        branch.state = ROLLED_BACK
        branch.timed_out = True
        branch.release()
        branch.lose_workers(f"{branch} has timed out")
        self.broker.end_turn()

    def _is_lost(self, branch: Branch, done: Done) -> bool:
        """Return whether a branch was rolled back, and report that to `done`."""
        if branch.timed_out:
            self._drop(branch)
            done(HAS_TIMED_OUT)
        elif branch.state in (ROLLBACK_ONLY, ROLLED_BACK) or not self.contains(branch):
            done(WAS_ROLLED_BACK)
        else:
            return False
        return True

    def contains(self, branch: Branch) -> bool:
        """Return whether the branch still belongs to this vhost."""
        return self.by_name.get(branch.name) is branch

    def _check_undecided(self, branch: Branch) -> None:
        if branch.deciding:
            raise PreconditionFailed(f"{branch} is being decided")

    def _end_work(self, branch: Branch) -> None:
        """Move all collected work of the channels into the branch."""
        for worker in branch.workers:
            if worker.demarcated:
                raise PreconditionFailed(f"{branch} has not been ended")
        for worker in list(branch.workers):
            branch.end(worker, False)
            worker.detached()

    def _decided(self, branch: Branch, state: str, remember: bool) -> None:
        branch.state = state
        branch.deciding = False
        if remember and self.contains(branch):
            self.broker.timers.cancel(branch.timer)
            branch.since = self.broker.timers.now()
            branch.write()
        else:
            self._drop(branch)

    def _drop(self, branch: Branch) -> None:
        branch.erase()
        if self.contains(branch):
            del self.by_name[branch.name]
            if not self.by_name:
                self.broker.holders.pop(self, None)

    def clear(self) -> None:
        """Drop all branches of a deleted vhost."""
        for branch in list(self.by_name.values()):
            branch.lose_workers(f"vhost '{self.vhost.name}' is deleted")
            branch.release()
            self.broker.jobs.removals.add(branch.forgetting_stored())
            self._drop(branch)

    # Recovery

    def restore(self, name: str, value: Record, taken: Taken | None) -> None:
        branch = self._add(name, value["user"])
        queues = {queue.id: queue for queue in self.vhost.queues.values()}
        queues.update({transaction.id: transaction for transaction in self.vhost.sink_transactions.by_uuid.values()})
        branch.recover(value["state"], value["since"], taken, queues)

    def start(self) -> None:
        """Read the prepared branches back once the log commits."""
        for branch in self.by_name.values():
            branch.load()
        in_doubt = sum(branch.state == PREPARED for branch in self.by_name.values())
        if in_doubt:
            logger.warning(
                "vhost '%s' has %d branches of distributed transactions in doubt: leveret dtx lists them",
                self.vhost.name,
                in_doubt,
            )
