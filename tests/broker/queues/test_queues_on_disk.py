"""Queues over the SQLite log, through any mixture of work and restarts: after a crash or a clean stop, exactly the
committed, unsettled messages are in the queue, in order, with their headers.
"""

from __future__ import annotations

import queue as queues
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.broker.broker import Broker, VhostSettings
from leveret.broker.log import Recovery
from leveret.broker.message import FORMAT_AMQP0, Entry
from leveret.broker.queues.queue import Queue
from leveret.broker.statistics import QUEUE_GAUGES
from leveret.broker.transactions.transaction import ACCEPT, REQUEUE, Transaction
from leveret.storage.sqlite import SqliteLog
from tests.broker.support import Clock, JsonReader, Keeper, World, text_of
from tests.support.examples import examples
from tests.support.queues import classic

NAMES = ("one", "two", "dead")


class DiskWorld(World):
    """A world over a log on disk and an overflow log; `run` waits until everything is committed and read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: queues.SimpleQueue[Callable[[], None]] = queues.SimpleQueue()
        self.log = self.disk = SqliteLog(path, reserve_bytes=0)  # type: ignore[assignment]
        self.paging = SqliteLog(path, durable=False)
        self.recovery: Recovery = self.disk.open()
        self.paging.open()
        self.broker = Broker(self.disk, self.paging)
        self.clock = Clock()
        self.broker.timers = self.clock
        self.broker.header_readers[FORMAT_AMQP0] = JsonReader()
        self.broker.recover(self.recovery)
        self.vhost = self.broker.add_vhost("/", VhostSettings())
        for log in (self.disk, self.paging):
            log.start(self.calls.put)
        self.broker.start()

    def run(self) -> None:
        while True:
            self.broker.end_turn()
            for log in (self.disk, self.paging):
                log.flush()
            busy = any(log.pending() or log.is_committing() for log in (self.disk, self.paging)) or any(
                level.loading for queue in self.vhost.queues.values() for level in classic(queue).ready.all_levels()
            )
            try:
                self.calls.get(timeout=10 if busy else 0)()
            except queues.Empty:
                assert not busy, "the log does not answer"
                return

    def get(self, queue: Queue) -> str | None:
        entry = self.acquire(queue)
        if entry is None:
            return None
        queue.settle(entry)
        return text_of(entry)

    def acquire(self, queue: Queue) -> Entry | None:
        while True:
            entry = queue.get(False)
            if entry is not None or not queue.paging.must_load():
                return entry
            self.run()

    def close(self) -> None:
        self.run()
        self.disk.close()
        self.paging.close()


def test_paged_out_messages_equal_the_published_ones(tmp_path: Path) -> None:
    """Persistent or not, and including the publisher, which matters for dead letters and no-local consumers."""
    world = DiskWorld(tmp_path)
    queue = world.queue()
    world.broker.page_above = 1
    sent = [(f"{number}", number % 2 == 0, number % 3) for number in range(20)]
    for body, persistent, publisher in sent:
        world.push(queue, body, persistent=persistent, publisher=publisher, headers={"n": 1} if publisher == 2 else None)
    for _ in range(3):
        world.run()
        world.broker.page_down()
    assert queue.ready.backlog.paged >= 18
    found = []
    while (entry := world.acquire(queue)) is not None:
        found.append((text_of(entry), entry.message.persistent, entry.message.publisher))
    assert found == sent
    world.close()


def test_the_logs_forget_deleted_queues(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    world.broker.page_above = 1
    for number in range(10):
        queue = world.queue(f"q{number}", durable=number % 2 == 0)
        world.push(queue, *"abcdef", persistent=number % 4 == 0)
        for _ in range(3):
            world.run()
            world.broker.page_down()
        assert queue.ready.backlog.paged
        world.vhost.delete_queue(queue.name, None)
    world.run()
    for log in (world.disk, world.paging):
        assert log._last == log._marks == {}
    world.close()


class DiskMachine(RuleBasedStateMachine):
    """Two durable queues and one for their dead letters. `kept` has the expected contents by queue: body to priority."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="leveret-test-"))
        self.copies = 0
        self.world = DiskWorld(self.directory / "0")
        for name in NAMES:
            self.world.queue(name, durable=True, dead_letter_exchange="", dead_letter_routing_key="dead", max_priority=3)
            self.world.vhost.bind(self.world.vhost.queues[name], "amq.fanout", "", {})
        self.world.run()
        self.kept: dict[str, dict[str, int]] = {name: {} for name in NAMES}
        self.transient: dict[str, set[str]] = {name: set() for name in NAMES}
        self.held: list[Entry] = []
        self.hold()
        self.count = 0

    def hold(self) -> None:
        self.keeper = Keeper()
        self.keeper.entries = self.held
        self.world.broker.holders[self.keeper] = None

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.crash()
            finally:
                self.world.close()
                shutil.rmtree(self.directory)

    def queue(self, name: str) -> Queue:
        return self.world.vhost.queues[name]

    @rule(
        name=st.sampled_from((*NAMES, "fanout")),
        persistent=st.sampled_from((True, True, False)),
        priority=st.sampled_from((-1, -1, 1, 3)),
        size=st.sampled_from((0, 10, 3000)),
        times=st.integers(1, 12),
        headers=st.booleans(),
    )
    def publish(self, name: str, persistent: bool, priority: int, size: int, times: int, headers: bool) -> None:
        for _ in range(times):
            self.count += 1
            body = f"{self.count:05}".ljust(size, ".")
            options = {"persistent": persistent, "priority": priority, "headers": {"n": 1} if headers else None}
            if name == "fanout":
                self.world.publish("amq.fanout", "", body, **options)
            else:
                self.world.push(self.queue(name), body, **options)
            for target in NAMES if name == "fanout" else (name,):
                self.kept[target][body] = max(priority, 0)
                if not persistent:
                    self.transient[target].add(body)

    @rule(name=st.sampled_from(NAMES), times=st.integers(1, 15))
    def acquire(self, name: str, times: int) -> None:
        for _ in range(times):
            entry = self.world.acquire(self.queue(name))
            if entry is None:
                assert not set(self.kept[name]) - {text_of(held) for held in self.held if held.queue.name == name}
                return
            self.held.append(entry)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from(("settle", "settle", "requeue", "reject")), times=st.integers(1, 10))
    def settle(self, data: st.DataObject, outcome: str, times: int) -> None:
        for _ in range(min(times, len(self.held))):
            entry = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            name = entry.queue.name
            if outcome == "requeue" or (outcome == "reject" and name != "dead" and text_of(entry) in self.kept["dead"]):
                entry.queue.requeue(entry)  # the table has one copy only
                continue
            getattr(entry.queue, outcome)(entry)
            body = text_of(entry)
            priority = self.kept[name].pop(body)
            was_transient = body in self.transient[name]
            self.transient[name].discard(body)
            if outcome == "reject":
                self.kept["dead"][body] = priority
                if was_transient:
                    self.transient["dead"].add(body)

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def transaction(self, name: str, data: st.DataObject) -> None:
        transaction = Transaction(self.world.log)
        for _ in range(3):
            self.count += 1
            body = f"{self.count:05} in a transaction"
            transaction.publish(self.world.message(body, key=name, persistent=True), [self.queue(name)])
            self.kept[name][body] = 0
        if self.held:
            entry = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            outcome = data.draw(st.sampled_from((ACCEPT, REQUEUE)))
            transaction.settle(entry, outcome)
            if outcome == ACCEPT:
                self.transient[entry.queue.name].discard(text_of(entry))
                del self.kept[entry.queue.name][text_of(entry)]
        done: list[bool] = []
        transaction.commit(lambda: done.append(True))
        self.world.run()
        assert done

    @rule(name=st.sampled_from(NAMES))
    def purge(self, name: str) -> None:
        self.queue(name).purge()
        held = {text_of(entry) for entry in self.held if entry.queue.name == name}
        self.kept[name] = {body: priority for body, priority in self.kept[name].items() if body in held}
        self.transient[name] &= held

    @rule(share=st.sampled_from((20_000, 3_000)))
    def page(self, share: int) -> None:
        self.world.broker.page_above = share
        for _ in range(2):
            self.world.broker.page_down()
            self.world.run()

    @rule()
    def run(self) -> None:
        self.world.run()

    @rule()
    def crash(self) -> None:
        """Committed data is opened again from a copy, as after a crash."""
        self.world.run()
        self.copies += 1
        directory = self.directory / str(self.copies)
        shutil.copytree(self.world.path, directory, ignore=shutil.ignore_patterns("*.lock", "overflow*"))
        self.world.close()
        self.begin_again(directory, False)

    @rule()
    def stop(self) -> None:
        for entry in reversed(self.held):
            entry.queue.requeue(entry)
        self.held.clear()
        self.world.close()
        self.begin_again(self.world.path, True)

    def begin_again(self, directory: Path, clean: bool) -> None:
        self.world = DiskWorld(directory)
        assert self.world.recovery.clean == clean
        self.held = []
        self.hold()
        for name in NAMES:
            for body in self.transient[name]:
                del self.kept[name][body]
            self.transient[name] = set()
            assert self.queue(name).ready_count == len(self.kept[name])
            assert self.queue(name).ready_bytes == sum(len(body) for body in self.kept[name])

    @invariant()
    def figures_are_exact(self) -> None:
        for name in NAMES if hasattr(self, "kept") else ():
            kept = self.kept[name].keys()
            gauges = dict(zip(QUEUE_GAUGES, self.queue(name).gauges(), strict=True))
            found = (gauges["persistent"], gauges["persistent_bytes"], gauges["unacked_bytes"])
            stored = [len(body) for body in kept - self.transient[name]]
            held = [entry.message.size for entry in self.held if entry.queue.name == name]
            assert found == (len(stored), sum(stored), sum(held))

    @rule(name=st.sampled_from(NAMES))
    def look(self, name: str) -> None:
        """Every message is in the queue once, with its own body, headers and priority."""
        queue = self.queue(name)
        found: list[Entry] = []
        while (entry := self.world.acquire(queue)) is not None:
            found.append(entry)
        ours = [entry for entry in self.held if entry.queue is queue]
        assert sorted(map(text_of, [*found, *ours])) == sorted(self.kept[name])
        for entry in found:
            assert max(entry.message.priority, 0) == self.kept[name][text_of(entry)]
            deaths = self.world.vhost.dead_letters.headers_of(entry).get("x-death", [])
            assert name == "dead" or not deaths
        for entry in reversed(found):
            queue.requeue(entry)

    @rule(name=st.sampled_from(NAMES))
    def order(self, name: str) -> None:
        """After a start, messages are delivered by priority, then age, and count as redelivered."""
        self.crash()
        queue = self.queue(name)
        found: list[Entry] = []
        while (entry := self.world.acquire(queue)) is not None:
            assert entry.acquired_count > 1
            found.append(entry)
        assert [max(entry.message.priority, 0) for entry in found] == sorted(
            (max(entry.message.priority, 0) for entry in found), reverse=True
        )
        for level in range(4):
            seqs = [entry.seq for entry in found if max(entry.message.priority, 0) == level]
            assert seqs == sorted(seqs)
        for entry in reversed(found):
            queue.requeue(entry)


TestQueuesOnDisk = DiskMachine.TestCase
TestQueuesOnDisk.settings = examples(15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
