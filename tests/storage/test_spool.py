"""The spool of large bodies."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.broker.bodies import Body, StoredBody, whole
from leveret.broker.errors import ContentTooLarge
from leveret.broker.message import Message
from leveret.storage.registry import make_logs
from leveret.storage.spool import BLOCK_BYTES, FileSpool
from tests.storage.harness import ADDRESS, HEADER, FakeQueue, Harness, sqlite_log
from tests.support.polling import wait_until

MIB = 1 << 20


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[FileSpool]:
    spool = FileSpool(tmp_path, 0)
    yield spool
    spool.close()


def fill(spool: FileSpool, data: bytes, step: int = 100_000) -> StoredBody:
    body = spool.begin(len(data), False)
    for at in range(0, len(data), step):
        body.append(data[at : at + step])
    return body


def octets(body: object) -> bytes:
    assert isinstance(body, StoredBody)
    return body.read(0, body.size)


def is_empty(spool: FileSpool) -> bool:
    """Return whether no body is left, once the spool's thread has freed returned blocks."""
    spool.close()
    return not spool.blocks


def space_of(spool: FileSpool) -> int:
    """Return the bytes that the file uses on disk."""
    spool.close()
    os.fsync(spool._file.fileno())  # type: ignore[union-attr]
    return os.fstat(spool._file.fileno()).st_blocks * 512  # type: ignore[union-attr]


def test_interleaved_bodies(spool: FileSpool) -> None:
    source = random.Random(1)
    kept: list[tuple[StoredBody, bytes]] = []
    for _ in range(200):
        if kept and source.random() < 0.4:
            kept.pop(source.randrange(len(kept)))
        data = source.randbytes(source.choice([1, 4096, BLOCK_BYTES, BLOCK_BYTES + 1, source.randrange(3 * MIB)]))
        kept.append((fill(spool, data, source.choice([5000, 131_064, BLOCK_BYTES])), data))
        if len(kept) > 8:
            del kept[source.randrange(8)]
        body, wanted = source.choice(kept)
        at, length = source.randrange(len(wanted)), source.randrange(2 * MIB)
        assert body.read(at, length) == wanted[at : at + length]
    assert all(octets(body) == data for body, data in kept)
    assert space_of(spool) <= spool.blocks * BLOCK_BYTES + 4096
    body, data = kept.pop()
    kept.clear()
    assert octets(body) == data
    del body
    assert is_empty(spool)
    assert not space_of(spool)


def test_the_file_has_no_name_and_shrinks(spool: FileSpool, tmp_path: Path) -> None:
    first = fill(spool, b"1" * MIB)
    second = fill(spool, b"2" * MIB)
    assert list(tmp_path.iterdir()) == []
    assert space_of(spool) >= 2 * MIB
    del first
    assert space_of(spool) < 2 * MIB
    third = fill(spool, b"3" * MIB)
    assert octets(second) == b"2" * MIB
    del second
    assert space_of(spool) < 2 * MIB
    assert octets(third) == b"3" * MIB
    assert os.fstat(spool._file.fileno()).st_size == 2 * MIB  # type: ignore[union-attr]


def test_a_full_disk_is_a_refusal(spool: FileSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    body = spool.begin(2 * MIB, False)
    body.append(bytes(100_000))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", full)
        with pytest.raises(ContentTooLarge, match="No space left on device"):
            body.append(bytes(BLOCK_BYTES))
    del body
    assert is_empty(spool)
    assert spool._expected == 0


def test_space_for_announced_bodies_is_kept_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = FileSpool(tmp_path, 0)
    monkeypatch.setattr(spool, "_room", lambda: 10 * MIB)
    first = spool.begin(MIB, True)
    assert spool._expected == 3 * MIB
    first.append(bytes(MIB // 2))
    assert spool._expected == 5 * MIB // 2
    first.append(bytes(MIB // 2))
    assert spool._expected == 0
    with pytest.raises(ContentTooLarge, match="too little space is free"):
        spool.begin(11 * MIB, False)


def test_a_missing_directory_is_a_refusal(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path / "nowhere", 0)
    with pytest.raises(ContentTooLarge):
        spool.begin(MIB, False)


@pytest.mark.embedded("reads the database file")
@pytest.mark.parametrize("durable", [True, False])
def test_the_log_stores_and_loads_bodies(tmp_path: Path, durable: bool) -> None:
    spool = FileSpool(tmp_path, 0)

    def make() -> object:
        log = sqlite_log(tmp_path, durable=durable)
        log.spool = spool
        return log

    harness = Harness(make)  # type: ignore[arg-type]
    queue = FakeQueue(1)
    data = [random.Random(number).randbytes(size) for number, size in enumerate((5 * MIB + 1, 1000, MIB, 2 * MIB))]
    entries = []
    for body in data:
        message = Message(ADDRESS, HEADER, fill(spool, body), len(body), True)
        entries.append(queue.entry(message))
        harness.log.store(entries[-1])
        # In a second queue, the same bytes are stored once.
        other = FakeQueue(2).entry(message)
        harness.log.store(other)
    assert harness.log.pending_spooled == sum(map(len, data)) - 1000
    harness.commit()
    assert harness.log.pending_bytes == harness.log.pending_spooled == 0
    if durable:
        entries.clear()
        del message, other
        # The thread of the log drops its references after the commit.
        wait_until(lambda: not spool.blocks)
        harness.reopen()
        loaded = harness.load_queue(1)
        assert len(harness.load_queue(2)) == 4
    else:
        loaded = harness.load_entries(entries)
    found: list[Body] = [item.message.body for item in loaded]
    assert [isinstance(one, StoredBody) for one in found] == [True, False, True, True]
    for got, wanted in zip(found, data, strict=True):
        assert hashlib.sha256(whole(got)).digest() == hashlib.sha256(wanted).digest()
    harness.log.close()


def test_without_room_a_body_is_read_back_into_memory(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, 0)

    def make() -> object:
        log = sqlite_log(tmp_path)
        log.spool = spool
        return log

    harness = Harness(make)  # type: ignore[arg-type]
    harness.publish(FakeQueue(1), b"x" * 3 * MIB)
    harness.commit()
    harness.reopen()
    spool._keep_free = 1 << 60
    assert harness.bodies(1) == [b"x" * 3 * MIB]
    harness.log.close()


def test_a_body_that_cannot_be_read_fails_the_complete_commit(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, 0)
    harness = Harness(lambda: sqlite_log(tmp_path))
    queue = FakeQueue(1)
    harness.publish(queue, b"first")
    harness.commit()
    body = fill(spool, bytes(3 * MIB))
    spool._file.truncate(MIB)  # type: ignore[union-attr]
    harness.log.store(queue.entry(Message(ADDRESS, HEADER, body, body.size, True)))
    harness.log.flush()
    harness.loop.run_until(lambda: harness.log.state == "failed")
    assert "cannot be read back" in harness.log.reason
    harness.log._release()  # type: ignore[attr-defined]
    harness.begin()
    assert harness.bodies(1) == [b"first"]
    harness.log.close()


def test_the_registry_creates_one_spool_for_both_logs(tmp_path: Path) -> None:
    log, overflow = make_logs("sqlite", tmp_path, reserve=4 * MIB, disk_free=MIB)
    assert overflow is not None
    assert log.spool is overflow.spool is not None
    assert make_logs("memory", tmp_path)[0].spool is None


def test_the_space_to_leave_free_can_be_changed(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, 0)
    spool.leave_free(1 << 60)
    with pytest.raises(ContentTooLarge, match=r"limits\.disk_free"):
        spool.begin(MIB, False)
    spool.leave_free(0)
    assert octets(fill(spool, b"x" * MIB)) == b"x" * MIB
    spool.close()


def test_the_space_to_leave_free_has_a_minimum(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, 0, at_least=1 << 60)
    spool.leave_free(0)
    with pytest.raises(ContentTooLarge):
        spool.begin(MIB, False)
    spool.close()
