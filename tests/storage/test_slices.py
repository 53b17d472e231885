"""Large messages that are written ahead, in slices between other commits."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.bodies import StoredBody
from leveret.broker.message import Message
from leveret.storage.spool import FileSpool
from tests.storage.harness import ADDRESS, HEADER, FakeQueue, Harness, Waiter, content, sqlite_log
from tests.storage.test_trimming import on_disk, settle

MIB = 1 << 20
BODY = bytes(range(256)) * 4096 * 5 + b"tail"
CHUNKS = 6


@pytest.fixture
def spool(tmp_path: Path) -> FileSpool:
    return FileSpool(tmp_path, 0)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(lambda: sqlite_log(tmp_path / "data"))


def spooled(spool: FileSpool, body: bytes = BODY) -> StoredBody:
    stored = spool.begin(len(body), True)
    stored.append(body)
    return stored


class Publish:
    """A publish of a large message, which a log writes ahead.

    stores  whether the message is stored as soon as it is written
    wanted  whether the message will be published
    """

    def __init__(self, harness: Harness, queue: FakeQueue, body: StoredBody, stores: bool = True) -> None:
        self.harness = harness
        self.queue = queue
        self.message = Message(ADDRESS, HEADER, body, body.size, True)
        self.stores = stores
        self.wanted = True
        self.done = False
        self.ahead = harness.log.write_ahead(HEADER, body, self.written, lambda: self.wanted)

    def written(self, body: StoredBody) -> None:
        self.done = True
        self.message.body = body
        if self.stores:
            self.store()

    def store(self) -> None:
        self.entry = self.queue.entry(self.message)
        self.harness.log.store(self.entry)


def test_a_message_of_two_chunks_is_not_written_ahead(harness: Harness, spool: FileSpool) -> None:
    assert not Publish(harness, FakeQueue(1), spooled(spool, bytes(2 * MIB - len(HEADER)))).ahead
    assert not harness.log.has_pending()


def test_small_messages_are_committed_between_the_slices(harness: Harness, spool: FileSpool) -> None:
    queue = FakeQueue(1)
    publish = Publish(harness, queue, spooled(spool))
    for _ in range(CHUNKS - 2):
        harness.publish(queue, b"small")
        harness.commit()
        assert not publish.done
    harness.loop.run_until(lambda: publish.done)
    harness.commit()
    assert harness.log.statistics()["pending_bytes"] == 0
    harness.reopen()
    assert harness.bodies(1) == [b"small"] * (CHUNKS - 2) + [BODY]


def test_a_slice_commits_no_batch(harness: Harness, spool: FileSpool) -> None:
    publish = Publish(harness, FakeQueue(1), spooled(spool))
    harness.log.flush()
    harness.publish(FakeQueue(2), b"small")
    waiter = Waiter(harness.log)
    batch = harness.log.filling
    harness.loop.posted.get(timeout=60)()
    assert harness.log.committed == batch - 1
    assert not waiter.batches
    harness.loop.run_until(lambda: bool(waiter.batches))
    assert not publish.done
    harness.loop.run_until(lambda: publish.done)


def test_references_to_a_message_that_was_written_ahead(harness: Harness, spool: FileSpool) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    publish = Publish(harness, queue, spooled(spool))
    harness.log.flush()
    harness.loop.run_until(lambda: publish.done)
    second = other.entry(publish.message)
    harness.log.store(second)
    harness.commit()
    settle(harness, publish.entry)
    harness.commit()
    harness.reopen()
    loaded = harness.load_queue(2)
    assert content(loaded[0].message) == BODY
    assert 1 not in harness.recovery.queues


@pytest.mark.embedded("reads the database file")
def test_chunks_of_a_settled_message_are_deleted_in_slices(harness: Harness, spool: FileSpool) -> None:
    queue = FakeQueue(1)
    publish = Publish(harness, queue, spooled(spool))
    harness.log.flush()
    harness.loop.run_until(lambda: publish.done)
    harness.commit()
    settle(harness, publish.entry)
    commits = harness.log.statistics()["commits"]
    harness.log.flush()
    harness.loop.run_until(lambda: not harness.log.has_pending())
    assert harness.log.statistics()["commits"] - commits == 1 + CHUNKS // 2
    assert on_disk(harness) == {"log": [], "chunk": []}


@pytest.mark.embedded("reads the database file")
@pytest.mark.parametrize("closes", [False, True])
def test_a_message_that_is_not_published_leaves_no_chunks(harness: Harness, spool: FileSpool, closes: bool) -> None:
    publish = Publish(harness, FakeQueue(1), spooled(spool), stores=False)
    harness.log.flush()
    if not closes:
        harness.loop.run_until(lambda: publish.done)
        publish.message.body = b""
        harness.log.flush()
        harness.loop.run_until(lambda: not harness.log.has_pending())
    found = on_disk(harness)
    assert found["chunk"] == []
    assert harness.log.pending_bytes == 0


def test_a_message_that_is_stored_in_a_later_batch_uses_its_chunks(harness: Harness, spool: FileSpool) -> None:
    queue = FakeQueue(1)
    publish = Publish(harness, queue, spooled(spool), stores=False)
    harness.log.flush()
    harness.loop.run_until(lambda: publish.done)
    written = harness.log.statistics()["written_bytes"]
    harness.publish(queue, b"small")
    harness.commit()
    publish.store()
    harness.commit()
    assert harness.log.statistics()["written_bytes"] - written < MIB
    harness.reopen()
    assert harness.bodies(1) == [b"small", BODY]


def test_a_second_message_with_the_same_body_has_chunks_of_its_own(harness: Harness, spool: FileSpool) -> None:
    queue = FakeQueue(1)
    publish = Publish(harness, queue, spooled(spool))
    harness.log.flush()
    harness.loop.run_until(lambda: publish.done)
    second = queue.entry(Message(ADDRESS, HEADER, publish.message.body, len(BODY), True))
    harness.log.store(second)
    harness.commit()
    settle(harness, publish.entry)
    harness.commit()
    harness.reopen()
    assert harness.bodies(1) == [BODY]


def test_another_log_does_not_use_the_chunks(harness: Harness, spool: FileSpool, tmp_path: Path) -> None:
    other = Harness(lambda: sqlite_log(tmp_path / "other"))
    publish = Publish(harness, FakeQueue(1), spooled(spool), stores=False)
    harness.log.flush()
    harness.loop.run_until(lambda: publish.done)
    other.log.store(FakeQueue(1).entry(publish.message))
    other.commit()
    other.reopen()
    assert other.bodies(1) == [BODY]


@pytest.mark.embedded("reads the database file")
def test_the_rest_of_a_message_that_is_no_longer_wanted_is_not_written(harness: Harness, spool: FileSpool) -> None:
    unwanted = Publish(harness, FakeQueue(1), spooled(spool))
    next_one = Publish(harness, FakeQueue(2), spooled(spool))
    harness.log.flush()
    harness.loop.posted.get(timeout=60)()
    unwanted.wanted = False
    harness.loop.run_until(lambda: next_one.done)
    harness.commit()
    assert harness.log.statistics()["written_bytes"] < (CHUNKS + 3) * MIB
    assert not unwanted.done
    harness.log.flush()
    harness.loop.run_until(lambda: not harness.log.has_pending())
    assert len(on_disk(harness)["chunk"]) == CHUNKS
    assert harness.log.pending_bytes == 0


@pytest.mark.embedded("reads the database file")
@pytest.mark.parametrize("slices", range(1, CHUNKS))
def test_a_kill_between_slices(harness: Harness, spool: FileSpool, tmp_path: Path, slices: int) -> None:
    """Nothing of the unfinished message remains, and everything that was confirmed does."""
    queue = FakeQueue(1)
    publish = Publish(harness, queue, spooled(spool))
    log: Any = harness.log
    harness.publish(queue, b"confirmed")
    harness.commit()
    for _ in range(slices):
        log.flush()
        harness.loop.posted.get(timeout=60)()
    assert not publish.done
    log._worker.close()  # the slice after these may be complete, too
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    log.close()
    recovered = Harness(lambda: sqlite_log(tmp_path / "killed"))
    assert not recovered.recovery.clean
    assert recovered.bodies(1) == [b"confirmed"]
    assert recovered.log.has_pending()
    recovered.log.flush()
    recovered.loop.run_until(lambda: not recovered.log.has_pending())
    found = on_disk(recovered)
    assert found["chunk"] == []
    assert len(found["log"]) == 1


@pytest.mark.embedded("reads the database file")
def test_a_kill_while_chunks_are_deleted(harness: Harness, spool: FileSpool, tmp_path: Path) -> None:
    queue = FakeQueue(1)
    publish = Publish(harness, queue, spooled(spool))
    log: Any = harness.log
    log.flush()
    harness.loop.run_until(lambda: publish.done)
    kept = harness.publish(queue, b"kept")
    assert kept
    harness.commit()
    settle(harness, publish.entry)
    harness.commit()
    log._worker.close()
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    log.close()
    recovered = Harness(lambda: sqlite_log(tmp_path / "killed"))
    assert recovered.bodies(1) == [b"kept"]
    assert not recovered.load(array("Q"), array("I"))
    found = on_disk(recovered)
    assert found["chunk"] == []
