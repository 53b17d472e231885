"""Sink transactions: their messages stay hidden until the commit, which publishes them exactly once."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from leveret.broker.errors import (
    AccessRefused,
    BrokerError,
    ContentTooLarge,
    NotFound,
    PreconditionFailed,
    ResourceError,
)
from leveret.broker.message import Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.transactions.batch_commit import CHECKING, DEAD_LETTER, DROP, FAIL, SLICE
from leveret.broker.transactions.sink_transactions import SinkTransactions
from leveret.broker.transactions.transaction import Transaction
from tests.broker.support import HeldLog, Taker, World, deaths_in

USER = "sink"


class Answer:
    """Outcome of a commit or a prepare; None while it is pending."""

    def __init__(self) -> None:
        self.outcome: Any = None

    def done(self, *figures: Any) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = figures

    def failed(self, error: BrokerError) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = error


def transaction(
    world: World,
    uuid: str,
    *bodies: str,
    exchange: str = "",
    key: str = "q",
    app: str = "app",
    prepare: bool = True,
    **options: Any,
) -> None:
    """Open a sink transaction, publish to it and prepare it."""
    transactions = world.vhost.sink_transactions
    transactions.open(uuid, app, USER)
    for body in bodies:
        publish(world, uuid, body, exchange, key, **options)
    if prepare:
        prepare_transaction(world, uuid, *bodies)


def publish(world: World, uuid: str, body: str, exchange: str = "", key: str = "q", **options: Any) -> None:
    assert world.publish(f"leveret.stage:{uuid}:{exchange}", key, body, **{"persistent": True, **options}) == ["app"]


def prepare_transaction(world: World, uuid: str, *bodies: str) -> None:
    answer = Answer()
    world.vhost.sink_transactions.prepare(
        uuid, USER, len(bodies), crc32("".join(bodies).encode()), answer.done, answer.failed
    )
    world.run()
    assert answer.outcome == ()


def commit(
    world: World,
    batch: int,
    *uuids: str,
    app: str = "app",
    rule: int = FAIL,
    exchange: str | None = None,
    key: str | None = None,
    run: bool = True,
) -> Answer:
    answer = Answer()
    world.vhost.sink_transactions.commit(app, USER, batch, list(uuids), rule, exchange, key, answer.done, answer.failed)
    if run:
        world.run()
    return answer


def restart(world: World, clean: bool = False) -> World:
    """The world after a start from the data on disk after a crash."""
    log, recovery = world.held_log.recovery(clean)
    return World(log=log, recovery=recovery, time=world.clock.now())


# Basics


def test_messages_become_visible_on_commit(world: World) -> None:
    queue = world.queue(durable=True)
    taker = Taker(queue)
    transaction(world, "s", "a", "b", "c")
    assert taker.bodies() == []
    assert commit(world, 1, "s").outcome == (3, 0, False)
    assert taker.bodies() == ["a", "b", "c"]
    entry = taker.taken[0]
    assert (entry.message.exchange, entry.message.routing_key) == ("", "q")
    assert not world.vhost.sink_transactions.by_uuid
    assert world.vhost.sink_transactions.memory == 0
    taker.ack(3)
    world.run()
    assert not world.held_log.kept, "something is left in the log"


def test_transactions_are_committed_in_the_given_order(world: World) -> None:
    queue = world.queue(durable=True)
    for uuid in ("c", "a", "b"):
        transaction(world, uuid, *(f"{uuid}{number}" for number in range(SLICE + 1)))
    commit(world, 1, "b", "c", "a")
    assert world.contents(queue) == [f"{uuid}{number}" for uuid in "bca" for number in range(SLICE + 1)]


def test_all_exchange_types_and_bindings_between_exchanges(world: World) -> None:
    vhost = world.vhost
    for name, kind in (("topic", "topic"), ("headers", "headers"), ("behind", "fanout"), ("alternate", "fanout")):
        vhost.declare_exchange(
            name, kind, durable=True, arguments={"alternate-exchange": "alternate"} if name == "topic" else {}
        )
    one, two, three, four = (world.queue(name, durable=True) for name in ("one", "two", "three", "four"))
    stream = world.declare("stream", durable=True, queue_type="stream")
    vhost.bind(one, "topic", "a.#", {})
    vhost.bind(vhost.exchange("behind"), "topic", "a.b", {})
    vhost.bind(two, "behind", "", {})
    vhost.bind(stream, "behind", "", {})
    vhost.bind(three, "alternate", "", {})
    vhost.bind(four, "headers", "", {"x-match": "all", "wanted": 1})
    transaction(world, "s", prepare=False)
    publish(world, "s", "both", "topic", "a.b")
    publish(world, "s", "one", "topic", "a.c")
    publish(world, "s", "alternate", "topic", "x")
    publish(world, "s", "headed", "headers", "", headers={"wanted": 1})
    publish(world, "s", "default", "", "four")
    prepare_transaction(world, "s", "both", "one", "alternate", "headed", "default")
    assert commit(world, 1, "s").outcome == (5, 0, False)
    assert world.contents(one) == ["both", "one"]
    assert world.contents(two) == ["both"]
    assert world.contents(three) == ["alternate"]
    assert world.contents(four) == ["headed", "default"]
    assert stream.ready_count == 1


def test_messages_are_routed_when_they_are_committed(world: World) -> None:
    """A queue that is bound after the publish gets the messages."""
    world.vhost.declare_exchange("e", "direct", durable=True)
    transaction(world, "s", "a", exchange="e")
    queue = world.queue(durable=True)
    world.vhost.bind(queue, "e", "q", {})
    commit(world, 1, "s")
    assert world.contents(queue) == ["a"]


def test_cc_and_bcc_are_routed(world: World) -> None:
    first, second = world.queue("q", durable=True), world.queue("r", durable=True)
    third = world.queue("t", durable=True)
    transaction(world, "s", "a", headers={"CC": ["r"], "BCC": ["t"]})
    assert commit(world, 1, "s").outcome == (1, 0, False)
    for queue in (first, second, third):
        taker = Taker(queue)
        world.run()
        assert taker.bodies() == ["a"]
        overlay = taker.taken[0].overlay
        assert overlay is not None and overlay.headers == {"BCC": None}


def test_transient_messages_survive_until_the_commit(world: World) -> None:
    queue = world.queue(durable=True)
    transaction(world, "s", "a", "b", persistent=False)
    assert len(world.held_log.kept) == 2
    commit(world, 1, "s")
    assert not world.held_log.kept
    assert world.contents(queue) == ["a", "b"]


def test_ttl_starts_at_the_commit(world: World) -> None:
    queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    dead = world.queue("dead")
    aging = world.queue("aging", durable=True, message_ttl=500)
    transaction(world, "s", "short", "at once", ttl=100)
    world.sleep(1000)
    transaction(world, "t", "of the queue", key="aging")
    world.sleep(1000)
    commit(world, 1, "s", "t")
    world.sleep(99)
    assert queue.ready_count == 2
    world.sleep(2)
    assert queue.ready_count == 0
    assert dead.ready_count == 2
    assert aging.ready_count == 1
    world.sleep(500)
    assert aging.ready_count == 0


def test_messages_for_later(world: World) -> None:
    queue = world.queue(durable=True)
    transactions = world.vhost.sink_transactions
    transactions.open("s", "app", USER)
    message = world.message("later", exchange="leveret.stage:s:", key="q", persistent=True)
    route = world.vhost.route(message.address)
    reader = world.broker.header_readers[0]
    now = world.clock.now()
    assert route.queues[0].delay(message, now + 1000)
    prepare_transaction(world, "s", "later")
    reader.times = lambda message, now, step: (0, now + 1000)  # type: ignore[method-assign]
    world.sleep(5000)
    commit(world, 1, "s")
    assert (queue.ready_count, queue.delayed_count) == (0, 1)
    world.sleep(1001)
    assert world.contents(queue) == ["later"]


def test_limits_are_enforced(world: World) -> None:
    queue = world.queue(durable=True, max_length=2)
    transaction(world, "s", "a", "b", "c")
    commit(world, 1, "s")
    assert world.contents(queue) == ["b", "c"]


def test_published_in_a_transaction(world: World) -> None:
    queue = world.queue(durable=True)
    world.vhost.sink_transactions.open("s", "app", USER)
    message = world.message("a", exchange="leveret.stage:s:", key="q", persistent=True)
    transaction = Transaction(world.log)
    transaction.publish(message, world.vhost.route(message.address).queues)
    done: list[bool] = []
    transaction.commit(lambda: done.append(True))
    prepare_transaction(world, "s", "a")
    assert done == [True]
    commit(world, 1, "s")
    assert world.contents(queue) == ["a"]


# Refusals


def refused(kind: type[BrokerError], part: str, call: Any, *arguments: Any) -> None:
    with pytest.raises(kind, match=part):
        call(*arguments)


def test_invalid_publishes(world: World) -> None:
    transactions = world.vhost.sink_transactions
    refused(NotFound, "sink transaction 's' does not exist", world.publish, "leveret.stage:s:", "q")
    transactions.open("s", "app", USER)
    refused(NotFound, "no exchange 'none'", world.publish, "leveret.stage:s:none", "q")
    refused(NotFound, "expected 'leveret.stage:TRANSACTION:EXCHANGE'", world.publish, "leveret.stage:s", "q")
    refused(
        AccessRefused,
        "a sink transaction cannot publish to exchange",
        world.publish,
        "leveret.stage:s:leveret.control",
        "q",
    )
    route = world.vhost.route(world.message(exchange="leveret.stage:s:", key="q").address)
    assert route.owner == USER
    prepare_transaction(world, "s")
    refused(PreconditionFailed, "is prepared", world.publish, "leveret.stage:s:", "q")
    transactions.abort("s")
    refused(PreconditionFailed, "no longer exists", route.queues[0].push, world.message())


def test_the_size_of_a_sink_transaction_is_limited(world: World) -> None:
    transactions = world.vhost.sink_transactions
    transactions.settings.size = 10
    transactions.open("s", "app", USER)
    publish(world, "s", "123456789")
    refused(ContentTooLarge, "sink_transactions.max_bytes", world.publish, "leveret.stage:s:", "q", "12")
    publish(world, "s", "0")
    prepare_transaction(world, "s", "123456789", "0")
    transactions.settings.count = 2
    transactions.open("t", "app", USER)
    refused(ResourceError, "sink_transactions.max_per_vhost", transactions.open, "u", "app", USER)
    refused(PreconditionFailed, "letters, digits and hyphens", transactions.open, "a:b", "app", USER)


def test_transactions_belong_to_their_user(world: World) -> None:
    transactions = world.vhost.sink_transactions
    transaction(world, "s", "a")
    refused(AccessRefused, "belongs to another user", transactions.open, "s", "app", "other")
    answer = Answer()
    refused(AccessRefused, "belongs to another user", transactions.prepare, "s", "other", 1, 0, answer.done, answer.failed)
    refused(
        AccessRefused,
        "belongs to another user",
        transactions.commit,
        "app",
        "other",
        1,
        ["s"],
        FAIL,
        None,
        None,
        answer.done,
        answer.failed,
    )
    assert "app" not in transactions.apps
    world.queue(durable=True)
    commit(world, 1, "s")
    refused(AccessRefused, "belongs to another user", transactions.last, "app", "other")
    refused(AccessRefused, "belongs to another user", transactions.open, "t", "app", "other")
    assert transactions.last("app", USER) == 1


def test_prepare_verifies_count_and_checksum(world: World) -> None:
    transactions = world.vhost.sink_transactions
    transaction(world, "s", "ab", "c", prepare=False)
    answer = Answer()
    refused(
        PreconditionFailed,
        "has 2 messages, expected 3",
        transactions.prepare,
        "s",
        USER,
        3,
        crc32(b"abc"),
        answer.done,
        answer.failed,
    )
    refused(
        PreconditionFailed,
        "CRC-32 0x352441c2, expected 0x00000000",
        transactions.prepare,
        "s",
        USER,
        2,
        0,
        answer.done,
        answer.failed,
    )
    refused(
        PreconditionFailed,
        "is not prepared",
        transactions.commit,
        "app",
        USER,
        1,
        ["s"],
        FAIL,
        None,
        None,
        answer.done,
        answer.failed,
    )
    publish(world, "s", "d")
    prepare_transaction(world, "s", "ab", "c", "d")
    prepare_transaction(world, "s", "ab", "c", "d")
    refused(PreconditionFailed, "expected 2", transactions.prepare, "s", USER, 2, 0, answer.done, answer.failed)
    refused(
        PreconditionFailed,
        "committed only once",
        transactions.commit,
        "app",
        USER,
        1,
        ["s", "s"],
        FAIL,
        None,
        None,
        answer.done,
        answer.failed,
    )
    refused(
        PreconditionFailed,
        "belongs to app 'app', not 'b'",
        transactions.commit,
        "b",
        USER,
        1,
        ["s"],
        FAIL,
        None,
        None,
        answer.done,
        answer.failed,
    )
    refused(
        NotFound,
        "sink transaction 'none' does not exist",
        transactions.commit,
        "app",
        USER,
        1,
        ["none"],
        FAIL,
        None,
        None,
        answer.done,
        answer.failed,
    )


# Batches


def test_a_batch_is_committed_once(world: World) -> None:
    queue = world.queue(durable=True)
    transactions = world.vhost.sink_transactions
    assert transactions.last("app", USER) is None
    transaction(world, "s", "a")
    assert commit(world, 5, "s").outcome == (1, 0, False)
    transaction(world, "again", "a")
    assert commit(world, 5, "again").outcome == (0, 0, True)
    assert "again" not in transactions.by_uuid
    answer = Answer()
    refused(
        PreconditionFailed,
        "precedes batch 5",
        transactions.commit,
        "app",
        USER,
        4,
        [],
        FAIL,
        None,
        None,
        answer.done,
        answer.failed,
    )
    transaction(world, "t", "b")
    assert commit(world, 9, "t").outcome == (1, 0, False)
    assert transactions.last("app", USER) == 9
    assert commit(world, 10).outcome == (0, 0, False)
    assert transactions.last("app", USER) == 10
    assert world.contents(queue) == ["a", "b"]


def test_a_repeated_request(world: World) -> None:
    queue = world.queue(durable=True)
    world.held_log.held = True
    transactions = world.vhost.sink_transactions
    transactions.open("s", "app", USER)
    publish(world, "s", "a")
    answer = Answer()
    transactions.prepare("s", USER, 1, crc32(b"a"), answer.done, answer.failed)
    first = commit(world, 1, "s")
    second = commit(world, 1, "s")
    assert first.outcome is None
    world.held_log.held = False
    world.held_log.release_all()
    world.run()
    assert [answer.outcome for answer in (first, second)] == [(1, 0, False), (0, 0, True)]
    assert world.contents(queue) == ["a"]


def test_the_next_batch_waits_for_the_previous_one(world: World) -> None:
    queue = world.queue(durable=True, max_length=2, overflow="reject-publish")
    transaction(world, "s", "a", "b", "c", "d")
    transaction(world, "t", "e")
    first = commit(world, 1, "s")
    second = commit(world, 2, "t")
    assert (first.outcome, second.outcome) == (None, None)
    assert world.vhost.sink_transactions.last("app", USER) == 1
    taker = Taker(queue)
    for _ in range(5):
        world.sleep(100)
        taker.ack(len(taker.taken))
    assert (first.outcome, second.outcome) == ((4, 0, False), (1, 0, False))
    assert taker.history == ["a", "b", "c", "d", "e"]


def test_forgotten_apps(world: World) -> None:
    transactions = world.vhost.sink_transactions
    world.queue(durable=True)
    transactions.settings.apps = 1
    commit(world, 3)
    refused(
        ResourceError, "sink_transactions.max_apps", transactions.commit, "more", USER, 1, [], FAIL, None, None, None, None
    )
    refused(NotFound, "app 'none' does not exist", transactions.forget_app, "none")
    transactions.forget_app("app")
    assert commit(world, 1, app="more").outcome == (0, 0, False)
    world = restart(world)
    assert world.vhost.sink_transactions.apps.keys() == {"more"}


# Unroutable messages


def test_a_history_is_no_destination(world: World) -> None:
    world.vhost.declare_exchange("news", "x-recent-history", durable=True)
    transaction(world, "s", prepare=False)
    publish(world, "s", "a", "news")
    prepare_transaction(world, "s", "a")
    assert "1 messages are unroutable" in str(commit(world, 1, "s").outcome)
    assert commit(world, 1, "s", rule=DROP).outcome == (1, 1, False)
    queue = world.queue()
    world.vhost.bind(queue, "news", "", {})
    assert world.contents(queue) == ["a"]


def test_unroutable_messages_stop_it_all(world: World) -> None:
    queue = world.queue(durable=True)
    transaction(world, "s", "a", "b")
    transaction(world, "t", "c", prepare=False)
    publish(world, "t", "d", "amq.topic", "no.way")
    publish(world, "t", "e", "amq.topic", "no.way")
    prepare_transaction(world, "t", "c", "d", "e")
    answer = commit(world, 1, "s", "t")
    assert isinstance(answer.outcome, PreconditionFailed)
    assert str(answer.outcome) == (
        "2 messages are unroutable: the first was published to exchange 'amq.topic' with routing"
        " key 'no.way' in sink transaction 't'; the batch is not committed"
    )
    assert queue.ready_count == 0
    assert world.vhost.sink_transactions.last("app", USER) is None
    world.vhost.bind(queue, "amq.topic", "#", {})
    assert commit(world, 1, "s", "t").outcome == (5, 0, False)
    assert world.contents(queue) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("count", [10, 3000])
def test_unroutable_messages_among_many_keys(world: World, count: int) -> None:
    """More keys than are counted individually: the messages are checked one by one."""
    world.vhost.declare_exchange("e", "topic", durable=True)
    queue = world.queue(durable=True)
    world.vhost.bind(queue, "e", "even.#", {})
    transaction(world, "s", prepare=False)
    bodies = [f"{number}" for number in range(count)]
    for number, body in enumerate(bodies):
        publish(world, "s", body, "e", f"{'odd' if number % 2 else 'even'}.{number}")
    prepare_transaction(world, "s", *bodies)
    answer = commit(world, 1, "s")
    assert f"{count // 2} messages are unroutable" in str(answer.outcome)
    assert "with routing key 'odd.1'" in str(answer.outcome)
    assert commit(world, 1, "s", rule=DROP).outcome == (count, count // 2, False)
    assert world.contents(queue) == bodies[::2]


def test_unroutable_messages_as_dead_letters(world: World) -> None:
    queue = world.queue(durable=True)
    dead = world.queue("dead", durable=True)
    world.vhost.declare_exchange("graveyard", "direct", durable=True)
    transaction(world, "s", "a", prepare=False)
    publish(world, "s", "b", key="none")
    prepare_transaction(world, "s", "a", "b")
    answer = commit(world, 1, "s", rule=DEAD_LETTER, exchange="nowhere")
    assert isinstance(answer.outcome, NotFound)
    answer = commit(world, 1, "s", rule=DEAD_LETTER, exchange="graveyard")
    assert "also as dead letters by exchange" in str(answer.outcome)
    assert commit(world, 1, "s", rule=DEAD_LETTER, exchange="", key="dead").outcome == (2, 1, False)
    assert world.contents(queue) == ["a"]
    taker = Taker(dead)
    world.run()
    [entry] = taker.taken
    assert entry.overlay is not None
    [death] = deaths_in(entry.overlay.headers)
    assert (death["reason"], death["queue"], death["exchange"]) == ("unroutable", "app", "")
    assert death["routing-keys"] == ["none"]
    taker.ack()
    world.run()
    assert not world.held_log.kept


def test_full_queues(world: World) -> None:
    queue = world.queue(durable=True, max_length=1, overflow="reject-publish")
    world.push(queue, "before", persistent=True)
    transaction(world, "s", "a", "b")
    answer = commit(world, 1, "s")
    assert "queue 'q' in vhost '/' is full" in str(answer.outcome)
    assert world.contents(queue) == ["before"]
    answer = commit(world, 1, "s")
    assert answer.outcome is None
    app = world.vhost.sink_transactions.apps["app"]
    assert app.batch_commit is not None and app.batch_commit.waits_for == "room in queue 'q'"
    assert world.contents(queue) == ["a"]
    world.sleep(100)
    assert answer.outcome == (2, 0, False)
    assert world.contents(queue) == ["b"]


def test_full_queues_with_dead_letters(world: World) -> None:
    queue = world.queue(
        durable=True, max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    dead = world.queue("dead", durable=True)
    transaction(world, "s", "a", "b", "c")
    assert commit(world, 1, "s").outcome == (3, 0, False)
    assert world.contents(queue) == ["a"]
    assert world.contents(dead) == ["b", "c"]


def last_values(world: World, *bodies: str, **arguments: Any) -> ClassicQueue:
    """A last-value queue that rejects messages when it is full; the key is the first letter of the body."""
    queue = world.queue(durable=True, queue_type="last-value", last_value_key="key", overflow="reject-publish", **arguments)
    for body in bodies:
        assert world.push(queue, body, persistent=True, headers={"key": body[0]})
    return queue


def keyed(world: World, uuid: str, *bodies: str) -> None:
    transaction(world, uuid, prepare=False)
    for body in bodies:
        publish(world, uuid, body, headers={"key": body[0]})
    prepare_transaction(world, uuid, *bodies)


def test_messages_that_replace_others_in_a_full_queue(world: World) -> None:
    queue = last_values(world, "a1", "b1", max_length=2)
    keyed(world, "s", "a2", "b2", "a3")
    assert commit(world, 1, "s").outcome == (3, 0, False)
    assert world.contents(queue) == ["b2", "a3"]


def test_a_batch_with_a_new_key_for_a_full_queue(world: World) -> None:
    queue = last_values(world, "a1", "b1", max_length=2)
    keyed(world, "s", "a2", "c1")
    assert "queue 'q' in vhost '/' is full" in str(commit(world, 1, "s").outcome)
    assert world.contents(queue) == ["a1", "b1"]
    assert commit(world, 1, "s").outcome == (2, 0, False)
    assert world.contents(queue) == ["a2", "c1"]


def test_messages_that_are_larger_than_those_they_replace(world: World) -> None:
    queue = last_values(world, "a1", "b1", max_length_bytes=4)
    keyed(world, "s", "a2", "b2..")
    assert "queue 'q' in vhost '/' is full" in str(commit(world, 1, "s").outcome)
    keyed(world, "t", "a2", "b2")
    assert commit(world, 1, "t").outcome == (2, 0, False)
    assert world.contents(queue) == ["a2", "b2"]


def test_a_full_queue_checks_each_message_in_steps(world: World) -> None:
    """Keys are decoded, which is work."""
    queue = last_values(world, "a1", max_length=1)
    transaction(world, "s", prepare=False)
    bodies = [f"a{number}" for number in range(200)]
    for body in bodies:
        publish(world, "s", body, headers={"key": "a", "more": "x" * 20_000})
    prepare_transaction(world, "s", *bodies)
    answer = commit(world, 1, "s", run=False)
    steps = 0
    app = world.vhost.sink_transactions.apps["app"]
    while app.batch_commit is not None and app.batch_commit.state == CHECKING:
        world.posted.pop(0)()
        steps += 1
    assert steps > 5
    world.run()
    assert answer.outcome == (200, 0, False)
    assert world.contents(queue) == ["a199"]


def test_a_queue_deleted_during_the_commit(world: World) -> None:
    """The decision is final: messages that have become unroutable are counted."""
    queue = world.queue(durable=True, max_length=1, overflow="reject-publish")
    transaction(world, "s", "a", "b", "c")
    answer = commit(world, 1, "s")
    assert answer.outcome is None
    world.vhost.remove_queue(queue)
    world.sleep(100)
    assert answer.outcome == (3, 2, False)
    world.run()
    assert not world.held_log.kept


# Memory


def test_deep_sink_transactions_leave_memory() -> None:
    world = World(page_above=100_000)
    queue = world.queue(durable=True)
    bodies = [f"{number:06}" for number in range(20_000)]
    transaction(world, "s", prepare=False)
    for at in range(0, len(bodies), 500):
        for body in bodies[at : at + 500]:
            publish(world, "s", body)
        world.end_turn()
    kept = world.vhost.sink_transactions.by_uuid["s"]
    assert kept.cached_bytes == world.vhost.sink_transactions.memory < 6_000_000, "most of 14 MB has left memory"
    prepare_transaction(world, "s", *bodies)
    assert commit(world, 1, "s").outcome == (20_000, 0, False)
    assert world.contents(queue) == bodies
    assert world.vhost.sink_transactions.memory == 0


def test_many_sink_transactions_together_leave_memory() -> None:
    world = World(page_above=20_000)
    queue = world.queue(durable=True)
    for number in range(50):
        transaction(world, f"s{number}", *(f"{number}.{at}" for at in range(20)))
    world.broker.page_down()
    assert world.vhost.sink_transactions.memory <= 4 * 20_000
    assert commit(world, 1, *(f"s{number}" for number in range(50))).outcome == (1000, 0, False)
    assert world.contents(queue) == [f"{number}.{at}" for number in range(50) for at in range(20)]


def test_other_work_proceeds_between_slices(world: World) -> None:
    """No turn of a long commit does more than a slice."""
    queue = world.queue(durable=True)
    transaction(world, "s", *(f"{number}" for number in range(10 * SLICE)))
    commit(world, 1, "s", run=False)
    world.end_turn()
    most = passes = 0
    while world.posted:
        before = queue.next_seq
        world.posted.pop(0)()
        world.end_turn()
        most = max(most, queue.next_seq - before)
        passes += 1
    assert 0 < most <= SLICE
    assert passes >= 10
    assert queue.ready_count == 10 * SLICE


# Time


def test_idle_transactions_are_aborted(world: World) -> None:
    transactions = world.vhost.sink_transactions
    transactions.settings.timeout = 100_000
    transaction(world, "s", "a")
    transaction(world, "t", "b", prepare=False)
    for _ in range(6):
        world.sleep(30_000)
        publish(world, "t", "more")
    assert transactions.by_uuid.keys() == {"t"}
    for _ in range(10):
        world.sleep(30_000)
    assert not transactions.by_uuid
    assert not world.held_log.kept
    assert transactions.memory == 0


# Crashes


def test_prepared_transactions_survive(world: World) -> None:
    world.queue(durable=True)
    transaction(world, "s", "a", "b")
    transaction(world, "open", "c", prepare=False)
    world.run()
    world = restart(world)
    transactions = world.vhost.sink_transactions
    assert transactions.by_uuid["s"].prepared
    assert (transactions.by_uuid["s"].count, transactions.by_uuid["open"].count) == (2, 1)
    publish(world, "open", "d")
    answer = Answer()
    transactions.prepare("open", USER, 2, 0, answer.done, answer.failed)
    world.run()
    assert "CRC-32" in str(answer.outcome)
    prepare_transaction(world, "open", "c", "d")
    assert commit(world, 1, "s", "open").outcome == (4, 0, False)
    queue = world.vhost.queues["q"]
    assert world.contents(queue) == ["a", "b", "c", "d"]


def test_concurrent_prepares_that_read_the_same_messages(world: World) -> None:
    """After a start, the checksum is recomputed. A repeated request gets two replies."""
    transaction(world, "s", "a", "b", prepare=False)
    transaction(world, "t", "c", prepare=False)
    world.run()
    world = restart(world)
    transactions = world.vhost.sink_transactions
    answers = [Answer() for _ in range(3)]
    for answer in answers[:2]:
        transactions.prepare("s", USER, 2, crc32(b"ab"), answer.done, answer.failed)
    transactions.prepare("t", USER, 1, crc32(b"c"), answers[2].done, answers[2].failed)
    transactions.abort("t")
    world.run()
    assert [answer.outcome for answer in answers[:2]] == [(), ()]
    assert "no longer exists" in str(answers[2].outcome)
    world = restart(world)
    assert world.vhost.sink_transactions.by_uuid.keys() == {"s"}


@pytest.mark.parametrize("commits", range(12))
def test_a_crash_after_any_commit(commits: int) -> None:
    """After any number of log commits, the complete batch is on disk, in the queues or the transactions."""
    bodies = [f"{number}" for number in range(3 * SLICE)]
    world = World()
    queue = world.queue(durable=True)
    other = world.queue("other", durable=True)
    world.vhost.bind(queue, "amq.fanout", "", {})
    world.vhost.bind(other, "amq.fanout", "", {})
    transaction(world, "s", *bodies[: 2 * SLICE - 7], exchange="amq.fanout")
    transaction(world, "t", *bodies[2 * SLICE - 7 :], exchange="amq.fanout")
    world.held_log.held = True
    commit(world, 7, "s", "t")
    for _ in range(commits):
        if world.held_log.flying is not None:
            world.held_log.release()
        world.run()
    world = restart(world)
    world.run()
    transactions = world.vhost.sink_transactions
    last = transactions.last("app", USER)
    assert last == (7 if commits else None)
    assert commit(world, 7, "s", "t").outcome == ((0, 0, True) if commits else (len(bodies), 0, False))
    world.run()
    assert not transactions.by_uuid
    for name in ("q", "other"):
        assert world.contents(world.vhost.queues[name]) == bodies, f"after {commits} commits"
    world.run()
    assert not world.held_log.kept


def test_deleting_a_vhost_aborts_its_transactions(world: World) -> None:
    queue = world.queue(durable=True, max_length=1, overflow="reject-publish")
    transaction(world, "s", "a", "b")
    transaction(world, "t", "c")
    answer = commit(world, 1, "s")
    assert queue.ready_count == 1
    world.broker.remove_vhost("/")
    world.run()
    assert isinstance(answer.outcome, NotFound)
    assert not world.held_log.kept
    assert not [key for key in world.held_log.metadata if key[0].startswith("stage")]


def test_entries_are_hidden_until_they_are_on_disk(world: World) -> None:
    queue: ClassicQueue = world.queue(durable=True)
    taker = Taker(queue)
    transaction(world, "s", "a")
    world.held_log.held = True
    commit(world, 1, "s")
    seen: list[list[Entry]] = []
    while world.held_log.flying is not None:
        seen.append(list(taker.taken))
        world.held_log.release()
        world.run()
    assert seen[-1] == []
    assert taker.bodies() == ["a"]
    assert isinstance(world.vhost.sink_transactions, SinkTransactions)
    assert isinstance(world.log, HeldLog)
