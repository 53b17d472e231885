"""Sink transactions: publish the messages of a batch exactly once, across crashes.

Each writer of a sink publishes to a sink transaction of its own, then prepares it. One commit moves the messages of
several sink transactions into their target queues. A commit belongs to a batch of an app. The batch numbers of an app
increase, and a batch that was committed before is not committed again. The decision is one record in the log. The messages
move after it, and the move resumes after a crash.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.errors import INTERNAL_ERROR, AccessRefused, BrokerError, NotFound, PreconditionFailed, ResourceError
from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.control import RESERVED
from leveret.broker.jobs import Job
from leveret.broker.metadata import Record
from leveret.broker.queues.sink_transaction import FORGET_SHIFT, SHARES, SinkTransaction, checksum_of
from leveret.broker.routing import Route
from leveret.broker.timers import Timed
from leveret.broker.transactions.batch_commit import FAIL, BatchCommit

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

PREFIX: Final = "leveret.stage:"
TRANSACTION_NAME: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
MAX_SWEEP_INTERVAL: Final = 60_000

Failed = Callable[[BrokerError], None]


class SinkTransactionSettings:
    """Limits of the sink transactions of a vhost.

    Attributes:
        size: Maximum size of one sink transaction in bytes.
        timeout: Milliseconds without a publish, prepare or commit after which a sink transaction is aborted; 0 for never.
        count: Maximum number of sink transactions.
        apps: Maximum number of apps whose last batch is remembered.
    """

    def __init__(self, size: int = 16 << 30, timeout: int = 86_400_000, count: int = 10_000, apps: int = 10_000) -> None:
        self.size = size
        self.timeout = timeout
        self.count = count
        self.apps = apps


class App:
    """A sink: its owner, and the number of the last batch whose commit was decided.

    Attributes:
        batch_commit: The commit in progress; None if there is none.
        queued: Commits of later batches, called once `batch_commit` is done.
    """

    __slots__ = ("batch", "batch_commit", "name", "queued", "user")

    def __init__(self, name: str, user: str, batch: int) -> None:
        self.name = name
        self.user = user
        self.batch = batch
        self.batch_commit: BatchCommit | None = None
        self.queued: list[Callable[[], None]] = []


class _Sweep(Timed):
    """Timer that aborts idle sink transactions."""

    def __init__(self, manager: SinkTransactions) -> None:
        super().__init__()
        self.manager = manager

    def fire(self, now: int) -> None:
        self.manager.sweep(now)


class _Verification(Job):
    """Job that recomputes the checksum of a recovered sink transaction from its bodies."""

    def __init__(self, transaction: SinkTransaction, on_done: Callable[[], None], on_failure: Failed) -> None:
        super().__init__(transaction.broker.jobs)
        self.transaction = transaction
        self.on_done = on_done
        self.on_failure = on_failure
        self.at = 0
        self.checksum = 0

    def step(self) -> bool:
        transaction = self.transaction
        if transaction.deleted or transaction.batch_commit is not None:
            self.on_done()
            return False
        if self.at >= len(transaction.chunks):
            transaction.checksum = self.checksum
            transaction.checksum_known = True
            self.on_done()
            return False
        chunk = transaction.chunks[self.at]
        if not transaction.ensure_loaded(chunk, self):
            return False
        for message in chunk.messages or ():
            self.checksum = checksum_of(transaction.broker.content_of(message), self.checksum)
        self.at += 1
        transaction.page_out(transaction.broker.page_above >> 1)
        return True

    def failed(self) -> None:
        self.on_failure(BrokerError(INTERNAL_ERROR))


class SinkTransactions:
    """The sink transactions of a vhost.

    Attributes:
        by_uuid: Sink transactions by name.
        apps: Sinks by name.
        memory: Bytes of their messages in memory.
    """

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.broker = vhost.broker
        self.settings = vhost.broker.sink_transaction_settings
        self.by_uuid: dict[str, SinkTransaction] = {}
        self.apps: dict[str, App] = {}
        self.memory = 0
        self.timer = _Sweep(self)

    @property
    def max_bytes(self) -> int:
        return self.settings.size

    def prefix_of(self, uuid: str) -> str:
        """Return the prefix of the exchange names that publish to the sink transaction."""
        return f"{PREFIX}{uuid}:"

    # Publishing

    def route(self, name: str, routing_key: str) -> Route | None:
        """Return the route of a publish to an exchange name; None if the name is not that of a sink transaction.

        Raises:
            NotFound: If the sink transaction or its exchange does not exist.
            AccessRefused: If sink transactions cannot publish to the exchange.
        """
        if not name.startswith(PREFIX):
            return None
        transaction, exchange = self._parse(name)
        return Route(exchange, exchange.name, routing_key, [transaction], False, None, transaction.user)

    def exchange(self, name: str) -> Exchange | None:
        """Return the target exchange in a name of a sink transaction and an exchange; None for another name."""
        return self._parse(name)[1] if name.startswith(PREFIX) else None

    def _parse(self, name: str) -> tuple[SinkTransaction, Exchange]:
        uuid, colon, exchange_name = name[len(PREFIX) :].partition(":")
        if not colon:
            raise NotFound(f"exchange '{name}' does not exist: expected '{PREFIX}TRANSACTION:EXCHANGE'")
        transaction = self._find(uuid)
        self.check_exchange(exchange_name)
        return transaction, self.vhost.exchange(exchange_name)

    def check_exchange(self, name: str) -> None:
        """Raise AccessRefused if sink transactions cannot publish to an exchange."""
        if name.startswith(RESERVED):
            raise AccessRefused(f"a sink transaction cannot publish to exchange '{name}'")

    def _find(self, uuid: str) -> SinkTransaction:
        transaction = self.by_uuid.get(uuid)
        if transaction is None:
            raise NotFound(
                f"sink transaction '{uuid[:80]}' does not exist in vhost '{self.vhost.name}': it was never"
                " opened, was committed, or was aborted"
            )
        return transaction

    def find_own(self, uuid: str, user: str) -> SinkTransaction:
        """Return a sink transaction of this user.

        Raises:
            NotFound: If it does not exist.
            AccessRefused: If it belongs to another user.
        """
        transaction = self._find(uuid)
        if transaction.user != user:
            raise AccessRefused(f"sink transaction '{uuid}' in vhost '{self.vhost.name}' belongs to another user")
        return transaction

    # Lifecycle

    def open(self, uuid: str, app: str, user: str) -> None:
        """Open a sink transaction. Does nothing if the same one is already open and empty."""
        if TRANSACTION_NAME.fullmatch(uuid) is None:
            raise PreconditionFailed(
                f"invalid name '{uuid[:80]}' of a sink transaction: expected 1 to 64 letters, digits and hyphens"
            )
        self._check_app(app, user)
        if uuid in self.by_uuid:
            transaction = self.find_own(uuid, user)
            if transaction.app != app or transaction.count or transaction.prepared:
                raise PreconditionFailed(f"sink transaction '{uuid}' already exists: expected an unused name")
            return
        if len(self.by_uuid) >= self.settings.count:
            raise ResourceError(
                f"vhost '{self.vhost.name}' has reached its limit of {self.settings.count} sink"
                " transactions; the setting is sink_transactions.max_per_vhost"
            )
        transaction = self.by_uuid[uuid] = SinkTransaction(self, self.broker.new_queue_id(), uuid, user, app)
        self._save(transaction)
        self._watch()

    def prepare(self, uuid: str, user: str, count: int, checksum: int, done: Callable[[], None], failed: Failed) -> None:
        """Prepare a sink transaction: close it to publishes after verifying its message count and checksum.

        Preparing it again with the same arguments succeeds. `done` or `failed` is called with the outcome.
        """
        transaction = self.find_own(uuid, user)
        if transaction.failed:
            raise PreconditionFailed(
                f"sink transaction '{uuid}' lacks a message of an AMQP transaction: {transaction.failed}"
            )
        if transaction.count != count and transaction.batch_commit is None:
            raise PreconditionFailed(f"sink transaction '{uuid}' has {transaction.count} messages, expected {count}")
        if transaction.checksum_known or transaction.batch_commit is not None:
            self._prepare(transaction, checksum)
            done()
            return

        def verified() -> None:
            try:
                if transaction.deleted:
                    raise transaction.refusal()
                if transaction.count != count and transaction.batch_commit is None:
                    raise PreconditionFailed(
                        f"sink transaction '{uuid}' has {transaction.count} messages, expected {count}"
                    )
                self._prepare(transaction, checksum)
            except BrokerError as error:
                failed(error)
            else:
                done()

        _Verification(transaction, verified, failed).resume()

    def _prepare(self, transaction: SinkTransaction, checksum: int) -> None:
        if transaction.checksum_known and transaction.checksum != checksum:
            raise PreconditionFailed(
                f"the bodies in sink transaction '{transaction.uuid}' have the CRC-32"
                f" {transaction.checksum:#010x}, expected {checksum:#010x}"
            )
        if not transaction.prepared:
            transaction.close()
            self._save(transaction)

    def abort(self, uuid: str) -> bool:
        """Abort a sink transaction and remove its messages. Return False if it does not exist."""
        transaction = self.by_uuid.get(uuid)
        if transaction is None:
            return False
        if transaction.batch_commit is not None:
            raise PreconditionFailed(f"sink transaction '{uuid}' is being committed")
        transaction.discard_messages()
        self.forget(transaction)
        return True

    def forget(self, transaction: SinkTransaction) -> None:
        """Remove an empty sink transaction that was ended."""
        del self.by_uuid[transaction.uuid]
        self.broker.log.put(metadata.SINK_TRANSACTION, metadata.make_key(self.vhost.name, transaction.uuid), None)

    def _save(self, transaction: SinkTransaction) -> None:
        self.broker.log.put(
            metadata.SINK_TRANSACTION,
            metadata.make_key(self.vhost.name, transaction.uuid),
            metadata.pack(
                {"id": transaction.id, "user": transaction.user, "app": transaction.app, "sealed": transaction.prepared}
            ),
        )

    # Commit

    def last(self, app: str, user: str) -> int | None:
        """Return the number of the last committed batch of an app; None if there is none."""
        known = self._check_app(app, user)
        return None if known is None else known.batch

    def _check_app(self, name: str, user: str) -> App | None:
        known = self.apps.get(name)
        if known is not None and known.user != user:
            raise AccessRefused(
                f"app '{name}' in vhost '{self.vhost.name}' belongs to another user; `leveret"
                " sink-transactions forget` removes it"
            )
        return known

    def commit(
        self,
        name: str,
        user: str,
        batch: int,
        uuids: list[str],
        rule: int,
        exchange: str | None,
        key: str | None,
        done: Callable[[int, int, bool], None],
        failed: Failed,
    ) -> None:
        """Commit a batch.

        Once the result is on disk, `done` is called with the number of messages moved, the number of unroutable messages
        among them, and whether the batch was committed before.
        """
        app = self._check_app(name, user)
        running = None if app is None else app.batch_commit
        if app is not None and running is not None and running.batch != batch:

            def again() -> None:
                try:
                    self.commit(name, user, batch, uuids, rule, exchange, key, done, failed)
                except BrokerError as error:
                    failed(error)

            app.queued.append(again)
            return
        if running is not None and not running.decided:
            # A retry: the reply to the first request was lost or late.
            running.waiters.append((done, failed))
            return
        if app is not None and batch <= app.batch:
            if batch < app.batch:
                raise PreconditionFailed(
                    f"batch {batch} of app '{name}' precedes batch {app.batch}, which is already committed"
                )
            for uuid in uuids:
                transaction = self.by_uuid.get(uuid)
                if transaction is not None and transaction.user == user and transaction.batch_commit is None:
                    self.abort(uuid)
            done(0, 0, True)
            return
        if app is None and len(self.apps) >= self.settings.apps:
            raise ResourceError(
                f"vhost '{self.vhost.name}' has reached its limit of {self.settings.apps} apps; the setting"
                " is sink_transactions.max_apps, and `leveret sink-transactions forget` removes one"
            )
        transactions = self._prepared_transactions(uuids, name, user)
        if app is None:
            app = self.apps[name] = App(name, user, -1)
        batch_commit = BatchCommit(self, app, batch, transactions, rule, exchange, key)
        batch_commit.waiters.append((done, failed))
        batch_commit.begin()

    def _prepared_transactions(self, uuids: list[str], app: str, user: str) -> list[SinkTransaction]:
        transactions: list[SinkTransaction] = []
        for uuid in uuids:
            transaction = self.find_own(uuid, user)
            if transaction.app != app:
                raise PreconditionFailed(f"sink transaction '{uuid}' belongs to app '{transaction.app}', not '{app}'")
            if not transaction.prepared:
                raise PreconditionFailed(f"sink transaction '{uuid}' is not prepared")
            if transaction.batch_commit is not None or transaction in transactions:
                raise PreconditionFailed(f"sink transaction '{uuid}' can be committed only once")
            transactions.append(transaction)
        return transactions

    def decide(self, batch_commit: BatchCommit) -> None:
        """Write the decision: the batch will be committed, even after a crash."""
        app = batch_commit.app
        app.batch = batch_commit.batch
        self._save_app(app)

    def moved(self, batch_commit: BatchCommit) -> None:
        """Remove the sink transactions of a batch, in the same log commit as their last messages."""
        for transaction in batch_commit.transactions:
            transaction.end()
            self.forget(transaction)
        batch_commit.transactions = []
        self._save_app(batch_commit.app)

    def ended(self, batch_commit: BatchCommit) -> None:
        """Forget a commit that succeeded or failed, and start the next one of the app."""
        app = batch_commit.app
        app.batch_commit = None
        if app.batch < 0:
            self.apps.pop(app.name, None)
        following = app.queued
        app.queued = []
        for call in following:
            call()

    def _save_app(self, app: App) -> None:
        value: Record = {"user": app.user, "batch": app.batch}
        batch_commit = app.batch_commit
        if batch_commit is not None and batch_commit.transactions:
            value.update(
                stages=[transaction.uuid for transaction in batch_commit.transactions],
                rule=batch_commit.rule,
                exchange=batch_commit.exchange,
                key=batch_commit.key,
            )
        self.broker.log.put(metadata.SINK_APP, metadata.make_key(self.vhost.name, app.name), metadata.pack(value))

    def forget_app(self, name: str) -> None:
        """Forget the last batch of an app. If that batch is committed again, it is published again.

        Raises:
            NotFound: If the app does not exist.
            PreconditionFailed: If a batch of it is being committed.
        """
        app = self.apps.get(name)
        if app is None:
            raise NotFound(f"app '{name}' does not exist in vhost '{self.vhost.name}'")
        if app.batch_commit is not None:
            raise PreconditionFailed(f"batch {app.batch_commit.batch} of app '{name}' is being committed")
        del self.apps[name]
        self.broker.log.put(metadata.SINK_APP, metadata.make_key(self.vhost.name, name), None)

    # Timeout, memory, removal

    def _watch(self) -> None:
        if not self.timer.due and self.by_uuid and self.settings.timeout:
            timers = self.broker.timers
            timers.at(timers.now() + min(self.settings.timeout // 4 + 1, MAX_SWEEP_INTERVAL), self.timer)

    def sweep(self, now: int) -> None:
        """Abort the sink transactions that have been idle for the timeout."""
        for transaction in list(self.by_uuid.values()):
            if transaction.idle_time(now) >= self.settings.timeout and transaction.batch_commit is None:
                logger.warning(
                    "sink transaction '%s' of app '%s' in vhost '%s' aborted with %d messages: it was not"
                    " committed within sink_transactions.timeout",
                    transaction.uuid,
                    transaction.app,
                    self.vhost.name,
                    transaction.count,
                )
                self.abort(transaction.uuid)
        self._watch()

    def paging_down(self) -> Iterator[int]:
        """Page out down to the current memory share of each sink transaction and of all together, in steps."""
        above = self.broker.page_above
        if self.memory > above * SHARES:
            above = min(above, above * SHARES // len(self.by_uuid))
        for transaction in list(self.by_uuid.values()):
            while transaction.cached_bytes > above:
                count = transaction.page_out(above)
                yield 1 + (count >> FORGET_SHIFT)
                if not count:
                    break
            yield 1

    def clear(self) -> None:
        """Abort all sink transactions of a deleted vhost."""
        for app in self.apps.values():
            if app.batch_commit is not None:
                app.batch_commit.abandon()
            self.broker.log.put(metadata.SINK_APP, metadata.make_key(self.vhost.name, app.name), None)
        self.apps.clear()
        for transaction in list(self.by_uuid.values()):
            transaction.set_batch_commit(None)
            self.abort(transaction.uuid)
        self.broker.timers.cancel(self.timer)

    # Recovery

    def restore_sink_transaction(self, uuid: str, value: Record, recovery: Recovery) -> None:
        transaction = self.by_uuid[uuid] = SinkTransaction(self, value["id"], uuid, value["user"], value["app"])
        transaction.recover_entries(recovery, value["sealed"])

    def restore_app(self, name: str, value: Record) -> None:
        app = self.apps[name] = App(name, value["user"], value["batch"])
        transactions = [self.by_uuid[uuid] for uuid in value.get("stages", ()) if uuid in self.by_uuid]
        if "stages" in value:
            batch_commit = BatchCommit(self, app, app.batch, transactions, value["rule"], value["exchange"], value["key"])
            batch_commit.decided = True

    def start(self) -> None:
        """Resume decided commits after recovery, once the log commits."""
        for app in self.apps.values():
            if app.batch_commit is not None:
                app.batch_commit.resume()
        self._watch()


__all__ = ["FAIL", "PREFIX", "App", "SinkTransactionSettings", "SinkTransactions"]
