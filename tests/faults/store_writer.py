"""A process that writes through a log until it is killed: `python -m tests.faults.store_writer DIRECTORY|URL SEED`.

It prints its progress on standard output: "ready"; "try BATCH JSON" before a batch may reach the disk; "done BATCH" when
its commit has returned. The JSON lists what the batch stores, settles and updates, as [queue id, seq] or [queue id, seq,
count].
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from leveret.broker.bodies import StoredBody
from leveret.broker.message import Entry, Message
from leveret.storage.batched import BatchedLog
from tests.storage.harness import ADDRESS, HEADER, FakeQueue, Harness, Waiter, entry_of, log_at, message

QUEUES = 4
DEPTH = 400
# The queue of the bodies that are written ahead, one at a time.
LARGE = QUEUES + 1


def body_of(queue_id: int, seq: int) -> bytes:
    """The body of an entry, derived from its position, so that a checker knows it. Fan-outs have the body of their first
    entry.
    """
    chance = random.Random(queue_id * 1_000_003 + seq)
    if queue_id == LARGE:
        return b"%d:%d;" % (queue_id, seq) + bytes([seq % 256]) * chance.randrange(2_200_000, 5_000_000)
    size = chance.choice((0, 10, 300, 5000, 60_000)) if chance.random() < 0.995 else 1_300_000
    return b"%d:%d;" % (queue_id, seq) + bytes([seq % 256]) * size


def say(line: str) -> None:
    os.write(1, line.encode("ascii") + b"\n")


class HeldBody(StoredBody):
    """A stored body that is in memory."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.size = len(data)

    def read(self, at: int, length: int) -> bytes:
        return self.data[at : at + length]


class Writer:
    def __init__(self, place: Path | str, seed: int, say: Callable[[str], None] = say) -> None:
        self.chance = random.Random(seed)
        self.say = say
        self.harness = Harness(lambda: log_at(place))
        assert isinstance(self.harness.log, BatchedLog)
        self.log = self.harness.log
        # Copy and merge rows much earlier than usual.
        self.log.trimmer.floor = 200_000
        self.log.trimmer.merges.limit = 30
        self.queues = [FakeQueue(id) for id in range(1, QUEUES + 1)]
        self.large = FakeQueue(LARGE)
        self.writes_ahead = False
        self.entries: list[Entry] = []
        for queue in [*self.queues, self.large]:
            queue.seq = self.harness.recovery.last_seq.get(queue.id, 0)
            self.entries += [entry_of(queue, item) for item in self.harness.load_queue(queue.id)]

    def write_ahead(self) -> None:
        """Begin to write a large body, which is stored in a later batch."""
        body = HeldBody(body_of(LARGE, self.large.seq + 1))
        item = Message(ADDRESS, HEADER, body, body.size, True)

        def publish(written: StoredBody) -> None:
            self.writes_ahead = False
            item.body = written
            entry = self.large.entry(item)
            self.log.store(entry)
            self.entries.append(entry)
            self.announce([[[LARGE, entry.seq, LARGE, entry.seq]], [], []])

        self.writes_ahead = True
        assert self.log.write_ahead(HEADER, body, publish, lambda: True)

    def announce(self, batch: list[list[list[int]]]) -> None:
        """Announce a part of the current batch, and its commit."""
        number = self.log.filling
        self.say(f"try {number} {json.dumps(batch)}")
        waiter = Waiter(self.log)
        waiter.transaction.done = lambda: self.say(f"done {number}")

    def batch(self) -> None:
        """Fill a batch at random, announce it, and write it."""
        if not self.writes_ahead and self.chance.random() < 0.03:
            self.write_ahead()
        stored: list[list[int]] = []
        settled: list[list[int]] = []
        updated: list[list[int]] = []
        for _ in range(self.chance.randrange(1, 12)):
            action = self.chance.random()
            if action < 0.5 and len(self.entries) < DEPTH:
                first = self.chance.choice(self.queues)
                item = message(body_of(first.id, first.seq + 1))
                for queue in [first] + [other for other in self.queues if other is not first and action < 0.1]:
                    entry = queue.entry(item)
                    self.log.store(entry)
                    self.entries.append(entry)
                    stored.append([queue.id, entry.seq, first.id, first.seq])
            elif action < 0.6 and self.entries:
                entry = self.chance.choice(self.entries)
                entry.acquired_count += 1
                self.log.update(entry)
                updated.append([entry.queue.id, entry.seq, entry.acquired_count])
            elif self.entries:
                # Mostly the oldest, sometimes any.
                at = 0 if action < 0.9 else self.chance.randrange(len(self.entries))
                entry = self.entries.pop(at)
                self.log.settle(entry)
                settled.append([entry.queue.id, entry.seq])
        self.announce([stored, settled, updated])
        self.log.flush()
        self.harness.loop.run_pending()

    def run(self) -> None:
        self.say("ready")
        log = self.log
        while True:
            self.batch()
            if self.chance.random() < 0.3:
                self.harness.loop.run_until(lambda: not log.is_committing())


if __name__ == "__main__":
    place = sys.argv[1]
    Writer(place if "://" in place else Path(place), int(sys.argv[2])).run()
