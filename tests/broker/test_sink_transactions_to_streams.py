"""Sink transactions whose messages a stream takes over in whole chunks: the log has them only once, under other ids."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from leveret.broker import metadata
from leveret.broker.message import Message
from leveret.broker.queues import sink_transaction
from leveret.broker.streams.queue import StreamQueue
from leveret.broker.transactions.batch_commit import FAIL, MIN_WHOLE_CHUNK
from tests.broker.streams.test_sealing import restarted, sealed_world
from tests.broker.streams.test_streams import Reading, append, stream
from tests.broker.support import HeldLog, Taker, World
from tests.broker.test_sink_transactions import USER, Answer, commit, prepare_transaction, restart

MANY = 3 * MIN_WHOLE_CHUNK


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks instead of one, unless the modules are compiled."""
    monkeypatch.setattr(sink_transaction, "CHUNK_ENTRIES", MIN_WHOLE_CHUNK)


def texts(name: str, count: int = MANY) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def stage(world: World, uuid: str, bodies: list[str], *, runs: bool = True, key: str = "s", **options: Any) -> None:
    """Open a sink transaction, publish to it, as a record batch does or singly, and prepare it."""
    transactions = world.vhost.sink_transactions
    transactions.open(uuid, "app", USER)
    messages: list[Message] = [
        world.message(body, exchange=f"leveret.stage:{uuid}:", key=key, persistent=True, **options) for body in bodies
    ]
    index = 0
    while index < len(messages):
        pushed = transactions.by_uuid[uuid].push_run(messages, index, min(index + 50, len(messages))) if runs else index
        if pushed == index:
            transactions.by_uuid[uuid].push(messages[index])
            pushed += 1
        index = pushed
    prepare_transaction(world, uuid, *bodies)


def read(queue: StreamQueue, world: World) -> list[str]:
    reader = Reading(queue)
    world.run()
    assert reader.offsets() == list(range(queue.first_offset, queue.first_offset + len(reader.taken)))
    return reader.bodies()


def moved(world: World) -> list[int]:
    """Return the numbers of messages that streams have taken over, by chunk."""
    records = [value for (kind, _), value in world.held_log.metadata.items() if kind == metadata.STREAM_CHUNK]
    return [count for value in records if (count := metadata.unpack(value).get("count", 0))]


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_stream_takes_over_whole_chunks(runs: bool, in_memory: bool) -> None:
    world = World()
    queue = stream(world)
    append(world, queue, "before")
    stage(world, "a", texts("a"), runs=runs)
    stage(world, "b", texts("b"), runs=runs)
    if not in_memory:
        for transaction in world.vhost.sink_transactions.by_uuid.values():
            transaction.page_out(0)
    stored = len(world.held_log.kept)
    assert commit(world, 1, "a", "b").outcome == (2 * MANY, 0, False)
    append(world, queue, "after")
    expected = ["before", *texts("a"), *texts("b"), "after"]
    assert read(queue, world) == expected
    assert queue.counters.published == len(expected) == queue.ready_count
    assert sum(moved(world)) == 2 * MANY and len(world.held_log.kept) == stored + 1
    assert not world.vhost.sink_transactions.by_uuid and not world.vhost.sink_transactions.memory
    again = restart(world)
    found = again.vhost.queues["s"]
    assert isinstance(found, StreamQueue)
    append(again, found, "later")
    assert read(found, again) == [*expected, "later"]
    assert found.ready_bytes == sum(map(len, [*expected, "later"]))
    found.delete()
    again.run()
    assert not again.held_log.kept and not moved(again)


def test_publishes_during_the_commit_keep_the_order_of_their_offsets() -> None:
    world = World(log=HeldLog(held=True))
    world.held_log.release_all()
    queue = stream(world)
    world.held_log.held = False
    stage(world, "a", texts("a"))
    world.held_log.held = True
    commit(world, 1, "a")
    world.held_log.release()  # the decision
    world.run()
    assert queue.ready_count == 0
    append(world, queue, "new")
    assert queue.visible_until == 1
    world.held_log.release_all()
    world.run()
    world.held_log.release_all()
    world.run()
    assert read(queue, world) == [*texts("a"), "new"]


def test_after_a_crash_at_any_commit_each_message_is_there_once() -> None:
    seen = set()
    for commits in range(12):
        world = World(log=HeldLog(held=False))
        stream(world)
        for uuid in "ab":
            stage(world, uuid, texts(uuid))
        stage(world, "c", texts("c", 10))
        world.held_log.held = True
        commit(world, 1, "a", "b", "c")
        for _ in range(commits):
            if world.held_log.flying is not None:
                world.held_log.release()
            world.run()
        seen.add(sum(moved(world)))
        again = restart(world)
        again.run()
        found = again.vhost.queues["s"]
        assert isinstance(found, StreamQueue)
        if again.vhost.sink_transactions.last("app", USER) is None:
            assert found.ready_count == 0
            assert commit(again, 1, "a", "b", "c").outcome == (2 * MANY + 10, 0, False)
        assert read(found, again) == [*texts("a"), *texts("b"), *texts("c", 10)]
        assert not again.vhost.sink_transactions.by_uuid
        append(again, found, "later")
        last = restart(again)
        found = last.vhost.queues["s"]
        assert isinstance(found, StreamQueue)
        assert read(found, last)[-2:] == ["c9", "later"]
    assert {0, 2 * MANY} <= seen


def test_what_needs_a_look_at_each_message_is_moved_one_by_one() -> None:
    world = World()
    queue = stream(world)
    for uuid, options in (
        ("ttl", {"ttl": 60_000}),
        ("copies", {"headers": {"CC": ["t"]}}),
        ("named", {"headers": {"x-stream-publisher": "p", "x-stream-sequence": 1}}),
    ):
        stage(world, uuid, texts(uuid), **options)
    other = stream(world, "t")
    assert commit(world, 1, "ttl", "copies", "named").outcome == (3 * MANY, 0, False)
    assert not moved(world)
    # Of the named publisher, only the first message has a new sequence number.
    assert queue.ready_count == 2 * MANY + 1
    assert read(other, world) == texts("copies")


def test_messages_of_two_queues_are_moved_one_by_one() -> None:
    world = World()
    world.vhost.declare_exchange("both", "fanout", durable=True, arguments={})
    queue, classic = stream(world), world.queue("q", durable=True)
    taker = Taker(classic)
    for target in (queue, classic):
        world.vhost.bind(target, "both", "", {})
    transactions = world.vhost.sink_transactions
    transactions.open("a", "app", USER)
    messages = [world.message(body, exchange="leveret.stage:a:both", key="k", persistent=True) for body in texts("a")]
    assert transactions.by_uuid["a"].push_run(messages, 0, MANY) == MANY
    prepare_transaction(world, "a", *texts("a"))
    assert commit(world, 1, "a").outcome == (MANY, 0, False)
    assert read(queue, world) == taker.bodies() == texts("a")
    assert not moved(world)


def test_sealing_and_retention_release_the_messages() -> None:
    world, store = sealed_world(size=1)
    queue = stream(world)
    stage(world, "a", texts("a"))
    commit(world, 1, "a")
    world.sleep(11 * 60_000)
    append(world, queue, "next")
    world.sleep(11 * 60_000)
    world.run()
    assert queue.sealed.count >= MANY
    assert not moved(world) and len(world.held_log.kept) <= 1
    world, queue = restarted(world, store)
    assert read(queue, world) == [*texts("a"), "next"]


def test_a_run_is_refused_as_single_messages_are() -> None:
    world = World()
    stream(world)
    transactions = world.vhost.sink_transactions
    transactions.settings.size = 100
    transactions.open("a", "app", USER)
    staged = transactions.by_uuid["a"]
    messages = [world.message("x" * 10, exchange="leveret.stage:a:", key=key, persistent=True) for key in "sssssttttt"]
    assert staged.push_run(messages, 0, 8) == 8
    more = [world.message("x" * 10, exchange="leveret.stage:a:", key="s", persistent=True) for _ in range(3)]
    assert staged.push_run(more, 0, 3) == 0, "the size limit"
    assert staged.push_run(messages, 8, 10) == 10
    assert {target.address: target.count for target in staged.addresses.values()} == {b"\0\1s": 5, b"\0\1t": 5}
    answer = Answer()
    transactions.prepare("a", USER, 10, crc32(b"x" * 100), answer.done, answer.failed)
    world.run()
    assert answer.outcome == () and staged.push_run(more, 0, 3) == 0, "prepared"
    assert commit(world, 1, "a", rule=FAIL).outcome is not None
