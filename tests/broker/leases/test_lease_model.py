"""A queue with leases against the model of `test_queue_model`: in addition, batches are leased, read in any slices,
committed with and without returned messages, released, abandoned, and recovered."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from leveret.broker.leases import batch_builder
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.lease import Lease
from leveret.broker.leases.leases import Leases
from leveret.broker.queues.classic.backlog import Chunk
from leveret.broker.queues.classic.dispatcher import Dispatcher
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.leases.support import LeaseReader, ask, restart
from tests.broker.queues.test_queue_model import PAGE_ABOVE, PRIORITIES, Expected, QueueMachine
from tests.broker.support import World
from tests.support.examples import examples
from tests.support.queues import classic

NAMES = st.sampled_from(("a", "a", "a", "b"))


class Planned:
    """One batch in the model."""

    def __init__(self) -> None:
        self.messages: list[Expected] = []
        self.read = False


class LeaseMachine(QueueMachine):
    """`planned` has batches by lease and number; `back` the messages being returned to the queue, by sequence
    number."""

    @initialize(
        max_priority=st.sampled_from((None, None, 2)),
        max_length=st.sampled_from((None, None, 12)),
        overflow=st.booleans(),
        chunk=st.sampled_from((3, 50)),
    )
    def begin(self, max_priority: int | None, max_length: int | None, overflow: bool, chunk: int) -> None:
        QueueMachine.begin(self, max_priority, max_length, overflow, chunk, False)
        self.planned: dict[str, dict[int, Planned]] = {"a": {}, "b": {}}
        self.committed = {"a": 0, "b": 0}
        self.back: dict[int, Expected] = {}
        self.making: list[Expected] = []
        # All batches ever leased, as sequence numbers.
        self.made: list[list[int]] = []
        machine = self

        class WatchedBatch(Batch):
            """Reports to the machine the entries that leave the backlog."""

            __slots__ = ()

            def add(self, priority: int, row_id: int, slot: int, seq: int, size: int, publisher: int) -> None:
                super().add(priority, row_id, slot, seq, size, publisher)
                machine.taken(seq)

            def add_piece(self, priority: int, piece: Chunk) -> None:
                seqs = list(piece.seqs)
                super().add_piece(priority, piece)
                for seq in seqs:
                    machine.taken(seq)

        self.return_chunks = ClassicQueue.return_leased
        self.patch.setattr(batch_builder, "Batch", WatchedBatch)

        def return_chunks(queue: ClassicQueue, pieces: list[tuple[int, Chunk]]) -> None:
            seqs = [seq for _, piece in pieces for seq in piece.seqs]
            notify = Dispatcher.notify_waiting

            def notify_waiting(dispatcher: Dispatcher) -> None:
                """Called between the return of the entries and their next change."""
                machine.came_back(seqs)
                seqs.clear()
                notify(dispatcher)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Dispatcher, "notify_waiting", notify_waiting)
                machine.return_chunks(queue, pieces)

        self.patch.setattr(ClassicQueue, "return_leased", return_chunks)
        for name in self.planned:
            self.queue.make_leases().acquire(name)

    def lease(self, name: str) -> Lease | None:
        leases = self.queue.leases
        return None if leases is None else leases.by_name.get(name)

    # Callbacks of the queue

    def taken(self, seq: int) -> None:
        """An entry leaves the ready ones for a batch, in its turn."""
        expected = next(item for item in self.ready.values() if item.seq == seq)
        del self.ready[expected.body]
        assert not expected.due or expected.due > self.world.clock.now()
        self.is_highest(expected)
        if not expected.early:
            for other in self.ready.values():
                assert other.early or other.level != expected.level or other.seq > seq
        expected.persistent = True  # it is in the log from now on
        self.making.append(expected)

    def came_back(self, seqs: list[int]) -> None:
        """Entries are ready again, in their places. Only uncommitted entries may precede them, so that they may leave
        after younger ones."""
        for seq in seqs:
            expected = self.back.pop(seq)
            self.ready[expected.body] = expected
        by_seq = {expected.seq: expected for expected in self.ready.values()}
        early = any(expected.early for expected in self.ready.values())
        for level in self.queue.ready.all_levels():
            highest = 0
            order = [entry.seq for entry in level.head]
            for chunk in level.chunks:
                order.extend(chunk.seqs)
            order.extend(entry.seq for entry in level.young or ())
            uncommitted = any(
                entry.row is None or entry.row.batch > entry.row.log.committed
                for entry in (*level.head, *(level.young or ()))
            )
            for seq in order:
                if seq < highest:
                    assert early or uncommitted
                    by_seq[seq].early = True
                highest = max(highest, seq)

    # Actions

    @rule(name=NAMES, timeout=st.sampled_from((None, None, 0.5)))
    def acquire(self, name: str, timeout: float | None) -> None:
        before = self.lease(name)
        epoch = 0 if before is None else before.epoch
        lease = self.queue.make_leases().acquire(name, timeout)
        assert lease.epoch > epoch
        assert lease.committed == self.committed[name]
        assert list(lease.batches) == list(self.planned[name])

    @rule(
        name=NAMES,
        most=st.sampled_from((10, 100, 3, 1)),
        max_bytes=st.sampled_from((None, None, 3000, 1)),
        again=st.sampled_from((False, False, True)),
        more=st.sampled_from((4, 12, 0)),
        priority=st.sampled_from(PRIORITIES),
        size=st.sampled_from((10, 1500)),
        ttl=st.sampled_from((None, None, None, 500)),
        persistent=st.booleans(),
    )
    def plan(
        self,
        name: str,
        most: int,
        max_bytes: int | None,
        again: bool,
        more: int,
        priority: int,
        size: int,
        ttl: int | None,
        persistent: bool,
    ) -> None:
        QueueMachine.push(self, persistent, priority, size, ttl, more)
        lease = self.lease(name)
        if lease is None:
            return
        batches = self.planned[name]
        after = max(batches) if batches else self.committed[name]
        if again and batches:
            after -= 1
        answer = ask(self.queue, name, lease.epoch, after, most, max_bytes)
        while lease.builder is not None:
            assert self.world.posted
            self.world.posted.pop(0)()
        making, self.making = self.making, []
        if again and batches:
            assert not making and answer.batch in (None, lease.batches[after + 1])
        elif making:
            planned = batches[after + 1] = Planned()
            planned.messages = making
            self.made.append([expected.seq for expected in making])
            batch = lease.batches[after + 1]
            size = sum(len(expected.body) for expected in making)
            assert (batch.count, batch.bytes) == (len(making), size)
            assert list(batch.seqs()) == [expected.seq for expected in making]
            assert batch.count <= most and (max_bytes is None or size <= max_bytes or batch.count == 1)
        else:
            assert after + 1 not in lease.batches and answer.told and answer.batch is None
            assert not any(not other.due or other.due > self.world.clock.now() for other in self.ready.values())

    @rule(name=NAMES, which=st.integers(0, 3), first=st.floats(0, 1), last=st.floats(0, 1))
    def read(self, name: str, which: int, first: float, last: float) -> None:
        lease = self.lease(name)
        if lease is None or not self.planned[name]:
            return
        numbers = list(self.planned[name])
        number = numbers[which % len(numbers)]
        planned = self.planned[name][number]
        count = len(planned.messages)
        begin, end = sorted((int(first * (count - 1)), int(last * (count - 1)) + 1))
        end = max(end, begin + 1)
        wanted = [(expected.body, expected.seq - 1) for expected in planned.messages[begin:end]]
        reader = LeaseReader(self.queue, name, lease.epoch, number, begin, end - begin)
        planned.read = True
        self.world.run()
        self.queue.remove_consumer(reader)
        found = list(zip(reader.bodies, reader.offsets, strict=True))
        if self.world.held_log.held:
            assert found == wanted[: len(found)]
        else:
            assert found == wanted

    @rule(name=NAMES, some=st.lists(st.integers(0, 200), max_size=4))
    def commit(self, name: str, some: list[int]) -> None:
        lease = self.lease(name)
        if lease is None or not self.planned[name]:
            return
        number = next(iter(self.planned[name]))
        messages = self.planned[name].pop(number).messages
        back = {index % len(messages) for index in some}
        for index in back:
            self.back[messages[index].seq] = messages[index]
        assert Leases.of(self.queue, name).commit(name, lease.epoch, number, back) == number
        self.committed[name] = number
        assert Leases.of(self.queue, name).commit(name, lease.epoch, number, back) == number

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        if self.lease(name) is None:
            return
        batches = self.planned[name]
        for planned in batches.values():
            for expected in planned.messages:
                self.back[expected.seq] = expected
        assert Leases.of(self.queue, name).release(name) == sum(len(planned.messages) for planned in batches.values())
        batches.clear()
        self.committed[name] = 0

    @rule()
    def abandon(self) -> None:
        """Time passes, and unread messages of leases with a timeout return to the queue."""
        for name, batches in self.planned.items():
            lease = self.lease(name)
            if lease is not None and lease.timeout:
                for number in [number for number, planned in batches.items() if not planned.read]:
                    for expected in batches.pop(number).messages:
                        self.back[expected.seq] = expected
        QueueMachine.sleep(self, 600)
        for name, batches in self.planned.items():
            lease = self.lease(name)
            assert lease is None or list(lease.batches) == list(batches)

    @rule(milliseconds=st.sampled_from((1, 60)))
    def sleep(self, milliseconds: int) -> None:
        # Not so long that a lease is abandoned, unless `abandon` knows of it.
        for name in self.planned:
            lease = self.lease(name)
            if lease is not None:
                lease.call(self.queue)
        QueueMachine.sleep(self, milliseconds)

    def leased(self) -> list[Expected]:
        planned = [
            expected for batches in self.planned.values() for batch in batches.values() for expected in batch.messages
        ]
        return [*planned, *self.back.values()]

    @invariant()
    def leased_figures_are_exact(self) -> None:
        if not hasattr(self, "planned"):
            return
        held = self.leased()
        leases = self.queue.leases
        assert self.queue.leased_count == len(held)
        assert leases is None or leases.bytes == sum(len(expected.body) for expected in held)

    # The end

    def crash(self) -> None:
        """Leased batches are complete and readable after a start, and nowhere else."""
        log = self.world.held_log
        self.crash_before_commits_return()
        log.held = False
        self.world.end_turn()
        log.release_all()
        self.world.run()
        assert not self.back
        after = restart(self.world)
        queue = after.vhost.queues["q"]
        for name, batches in self.planned.items():
            lease = None if queue.leases is None else queue.leases.by_name.get(name)
            assert ([] if lease is None else list(lease.batches)) == list(batches)
            for number, planned in batches.items():
                assert lease is not None
                reader = LeaseReader(queue, name, lease.epoch, number, 0, len(planned.messages))
                after.run()
                assert reader.bodies == [expected.body for expected in planned.messages]
                assert lease.batches[number].read
        assert queue.leased_count == sum(
            len(planned.messages) for batches in self.planned.values() for planned in batches.values()
        )
        super().crash()

    def crash_before_commits_return(self) -> None:
        """Some uncommitted changes are lost, but batches are complete and disjoint from each other and the queue; all
        other messages were settled."""
        log, recovery = self.world.held_log.recovery()
        after = World(log=log, recovery=recovery, page_above=PAGE_ABOVE, time=self.world.clock.time)
        queue = after.vhost.queues.get("q")
        if queue is None:
            return
        leased: list[int] = []
        if queue.leases is not None:
            for lease in queue.leases.by_name.values():
                for batch in lease.batches.values():
                    assert list(batch.seqs()) in self.made
                    leased.extend(batch.seqs())
        ready = [
            seq
            for level in classic(queue).ready.all_levels()
            for seq in (
                *(entry.seq for entry in level.head),
                *(seq for chunk in level.chunks for seq in chunk.seqs),
                *(entry.seq for entry in level.young or ()),
            )
        ]
        assert len({*leased, *ready}) == len(leased) + len(ready) == len(log.kept)
        assert queue.leased_count == len(leased)


TestLeaseModel = LeaseMachine.TestCase
TestLeaseModel.settings = examples(50, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
