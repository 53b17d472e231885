"""A queue against a model of its contents, through any mixture of pushes, gets, settlements, purges, paging, late
reads, late commits, expiry and crashes.

After every step the figures must be exact: ready entries and bytes, memory, unacked entries, and the place of each
entry.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from leveret.broker.message import ENTRY_OVERHEAD, Entry
from leveret.broker.queues.classic import backlog, ready_list
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.statistics import QUEUE_GAUGES
from tests.broker.support import Keeper, Taker, World, text_of
from tests.support.examples import examples

PAGE_ABOVE = 8_000
PRIORITIES = (-1, -1, -1, 4, 0, 9, 200)


class Expected:
    """One message in the model. `early`: it may leave before older ones, because it was requeued past paged-out
    ones."""

    def __init__(self, body: str, seq: int, level: int, persistent: bool, due: int) -> None:
        self.body = body
        self.seq = seq
        self.level = level
        self.persistent = persistent
        self.due = due
        self.early = False


class Watched(Taker):
    """A consumer that reports its deliveries to the machine."""

    machine: QueueMachine

    def deliver(self, entry: Entry) -> None:
        super().deliver(entry)
        self.machine.note_delivery(entry)


class QueueMachine(RuleBasedStateMachine):
    """One durable queue, its log and its overflow log."""

    held = Bundle("held")

    @initialize(
        max_priority=st.sampled_from((None, None, 2)),
        max_length=st.sampled_from((None, None, 12)),
        overflow=st.booleans(),
        chunk=st.sampled_from((3, 50)),
        watched=st.booleans(),
    )
    def begin(self, max_priority: int | None, max_length: int | None, overflow: bool, chunk: int, watched: bool) -> None:
        self.world = World(page_above=PAGE_ABOVE, overflow=overflow)
        if watched:  # which changes nothing
            events = self.world.queue("events", max_length=5)
            self.world.vhost.bind(events, "amq.leveret.events", "#", {})
        # Small chunks and a low share, so that few messages make several chunks.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ready_list, "LOW_HEAD", 2)
        self.patch.setattr(backlog, "CHUNK_ENTRIES", chunk)
        arguments: dict[str, Any] = {"dead_letter_exchange": "nowhere"}
        if max_priority is not None:
            arguments["max_priority"] = max_priority
        if max_length is not None:
            arguments["max_length"] = max_length
        self.max_priority = max_priority
        self.max_length = max_length
        self.queue: ClassicQueue = self.world.queue(durable=True, **arguments)
        self.ready: dict[str, Expected] = {}
        self.unacked: dict[str, tuple[Entry, Expected]] = {}
        self.count = 0
        self.keeper = Keeper()
        self.keeper.all_unacked = lambda: [entry for entry, _ in self.unacked.values()]  # type: ignore[method-assign]
        self.world.broker.holders[self.keeper] = None
        self.consumer: Watched | None = None
        # Unacked entries when a get began; only during one.
        self.delivered = 1 << 62
        self.behind: list[tuple[Entry, str]] = []
        given_up = self.queue.dead_letter

        def dead_letter(entry: Entry, reason: str) -> None:
            self.given_up(entry, reason)
            given_up(entry, reason)

        self.queue.dead_letter = dead_letter  # type: ignore[method-assign]

    def teardown(self) -> None:
        if not hasattr(self, "patch"):
            return
        try:
            self.crash()
        finally:
            self.patch.undo()

    # Callbacks of the queue

    def leaves(self, entry: Entry) -> Expected:
        """An entry leaves the ready ones: check that it was next within its level."""
        expected = self.ready.pop(text_of(entry))
        assert entry.seq == expected.seq
        if not expected.early:
            for other in self.ready.values():
                assert other.early or other.level != expected.level or other.seq > expected.seq, (
                    f"{expected.body} leaves before {other.body}"
                )
        return expected

    def is_highest(self, expected: Expected) -> None:
        for other in self.ready.values():
            assert other.level <= expected.level, f"{expected.body} leaves before {other.body} of a higher priority"

    def note_delivery(self, entry: Entry) -> None:
        expected = self.leaves(entry)
        self.is_highest(expected)
        assert not expected.due or expected.due > self.world.clock.now()
        self.unacked[expected.body] = (entry, expected)

    def given_up(self, entry: Entry, reason: str) -> None:
        if self.queue.counters.delivered > self.delivered:
            self.behind.append((entry, reason))  # entries delivered in this call left before it
            return
        if reason == "rejected":
            del self.unacked[text_of(entry)]
            return
        expected = self.leaves(entry)
        if reason == "expired":
            assert 0 < expected.due <= self.world.clock.now()
        else:
            assert reason == "maxlen" and self.max_length is not None
            assert len(self.ready) >= self.max_length
            self.is_highest(expected)

    # In

    def level(self, raw: int) -> int:
        if self.max_priority is not None:
            return min(max(raw, 0), self.max_priority)
        return 4 if raw < 0 else min(raw, 9)

    @rule(
        persistent=st.sampled_from((True, True, False)),
        priority=st.sampled_from(PRIORITIES),
        size=st.sampled_from((0, 10, 1500)),
        ttl=st.sampled_from((None, None, None, 50, 500)),
        times=st.sampled_from((1, 1, 5)),
    )
    def push(self, persistent: bool, priority: int, size: int, ttl: int | None, times: int) -> None:
        for _ in range(times):
            self.count += 1
            body = f"{self.count:04}".ljust(size, ".")
            due = 0 if ttl is None else self.world.clock.now() + ttl
            self.ready[body] = Expected(body, self.queue.next_seq, self.level(priority), persistent, due)
            assert self.world.push(self.queue, body, persistent=persistent, priority=priority, ttl=ttl)

    # Out

    @rule(target=held)
    def get(self) -> str:
        while True:
            # Consumers have precedence, as in the get itself.
            if self.queue.active and self.queue.expiry.expiring:
                self.queue.drain()
            else:
                self.queue.catch_up()
            self.delivered = self.queue.counters.delivered
            entry = self.queue.get(False)
            self.delivered = 1 << 62
            if entry is not None:
                self.note_delivery(entry)
                behind, self.behind = self.behind, []
                for item in behind:
                    self.given_up(*item)
                return text_of(entry)
            if not self.queue.paging.must_load():
                assert not any(not other.due or other.due > self.world.clock.now() for other in self.ready.values())
                return ""
            assert self.world.posted
            self.world.posted.pop(0)()

    @rule(body=consumes(held))
    def ack(self, body: str) -> None:
        if body in self.unacked:
            entry, _ = self.unacked.pop(body)
            self.forget_delivery(entry)
            self.queue.settle(entry)

    @rule(body=consumes(held))
    def reject(self, body: str) -> None:
        if body in self.unacked:
            entry, _ = self.unacked[body]
            self.forget_delivery(entry)
            self.queue.reject(entry)

    @rule(body=consumes(held))
    def requeue(self, body: str) -> None:
        self.give_back(body)

    def give_back(self, body: str) -> None:
        if body not in self.unacked:
            return
        entry, expected = self.unacked.pop(body)
        self.forget_delivery(entry)
        levels = [self.queue.ready.backlog] if self.queue.ready.levels is None else list(self.queue.ready.levels.values())
        expected.early = expected.early or any(level.chunks or level.young is not None for level in levels)
        self.ready[body] = expected
        self.queue.requeue(entry)

    def forget_delivery(self, entry: Entry) -> None:
        if self.consumer is not None and entry in self.consumer.taken:
            self.consumer.taken.remove(entry)

    @rule(credit=st.integers(0, 12), no_ack=st.just(False))
    def consume(self, credit: int, no_ack: bool) -> None:
        if self.consumer is None:
            self.consumer = Watched(self.queue, credit=credit, no_ack=no_ack, join=False)
            self.consumer.machine = self
            self.queue.add_consumer(self.consumer)
        else:
            self.consumer.give(credit)

    @precondition(lambda self: self.consumer is not None)
    @rule(backwards=st.booleans())
    def cancel(self, backwards: bool) -> None:
        """Remove the consumer, which requeues all of its messages."""
        assert self.consumer is not None
        consumer = self.consumer
        self.queue.remove_consumer(consumer)
        bodies = [text_of(entry) for entry in consumer.taken]
        for body in reversed(bodies) if backwards else bodies:
            self.give_back(body)
        self.consumer = None

    @precondition(lambda self: self.consumer is not None and self.consumer.taken)
    @rule()
    def ack_all(self) -> None:
        assert self.consumer is not None
        for entry in list(self.consumer.taken):
            self.ack(text_of(entry))

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.ready)
        self.ready.clear()

    # External events

    @rule(milliseconds=st.sampled_from((1, 60, 600)))
    def sleep(self, milliseconds: int) -> None:
        self.world.sleep(milliseconds)
        for level in {expected.level for expected in self.ready.values()}:
            heads = [expected for expected in self.ready.values() if expected.level == level]
            if not any(expected.early for expected in heads):
                head = min(heads, key=lambda expected: expected.seq)
                assert not head.due or head.due > self.world.clock.now(), "the head should have expired"

    @rule()
    def end_turn(self) -> None:
        self.world.end_turn()

    @rule()
    def run(self) -> None:
        self.world.run()
        if self.max_length is not None:
            assert len(self.ready) <= self.max_length

    @precondition(lambda self: self.world.posted)
    @rule()
    def one_event(self) -> None:
        self.world.posted.pop(0)()

    @rule(share=st.sampled_from((PAGE_ABOVE, PAGE_ABOVE, 2_000, 1 << 30)))
    def page(self, share: int) -> None:
        self.world.broker.page_above = share
        self.world.broker.page_down()
        self.world.end_turn()
        self.world.broker.page_down()
        self.world.broker.page_above = PAGE_ABOVE

    @rule(held=st.booleans())
    def hold_commits(self, held: bool) -> None:
        for log in (self.world.held_log, self.world.overflow):
            if log is not None:
                log.held = held
                if not held:
                    log.release_all()

    @precondition(lambda self: self.world.held_log.flying is not None)
    @rule()
    def commit_returns(self) -> None:
        self.world.held_log.release()

    # Invariants

    def leased(self) -> list[Expected]:
        """Return the leased messages of a queue that has leases."""
        return []

    @invariant()
    def figures_are_exact(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue = self.queue
        assert queue.ready_count == len(self.ready)
        assert queue.ready_bytes == sum(len(body) for body in self.ready)
        assert queue.unacked == len(self.unacked)
        leased = self.leased()
        there = [*self.ready.values(), *[expected for _, expected in self.unacked.values()], *leased]
        kept = [len(expected.body) for expected in there if expected.persistent]
        gauges = dict(zip(QUEUE_GAUGES, queue.gauges(), strict=True))
        assert gauges["unacked_bytes"] == sum(len(body) for body in self.unacked)
        assert (gauges["persistent"], gauges["persistent_bytes"]) == (len(kept), sum(kept))
        in_memory: list[Entry] = []
        seqs: list[int] = []
        for level in queue.ready.all_levels():
            in_memory.extend(level.head)
            in_memory.extend(level.young or ())
            for chunk in level.chunks:
                seqs.extend(chunk.seqs)
                assert chunk.bytes == sum(chunk.sizes)
            assert level.paged == sum(len(chunk.seqs) for chunk in level.chunks)
            assert level.paged_bytes == sum(chunk.bytes for chunk in level.chunks)
            assert not level.loading or level.chunks
        read = sum(entry.message.size for entry in in_memory)
        assert gauges["paged"] == len(seqs) + len(leased)
        assert gauges["paged_bytes"] == gauges["ready_bytes"] + gauges["leased_bytes"] - read
        seqs.extend(entry.seq for entry in in_memory)
        assert sorted(seqs) == sorted(expected.seq for expected in self.ready.values())
        assert queue.ready.memory == sum(entry.message.size + ENTRY_OVERHEAD for entry in in_memory)

    def crash(self) -> None:
        """After a start, every committed, unsettled persistent message is in the queue, in order."""
        log = self.world.held_log
        log.held = False
        self.world.end_turn()
        log.release_all()
        self.world.run()
        new_log, recovery = log.recovery()
        after = World(log=new_log, recovery=recovery, page_above=PAGE_ABOVE, time=self.world.clock.time)
        kept = [*self.ready.values(), *(expected for _, expected in self.unacked.values())]
        kept = [
            expected for expected in kept if expected.persistent and (not expected.due or expected.due > after.clock.now())
        ]
        kept.sort(key=lambda expected: (-expected.level, expected.seq))
        found = after.contents(after.vhost.queues["q"])
        wanted = [expected.body for expected in kept]
        if self.max_length is None:
            assert found == wanted
        else:
            assert found == [body for body in wanted if body in set(found)] and len(found) <= len(wanted)


TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = examples(50, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
