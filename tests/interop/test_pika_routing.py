"""Exchanges in use: every type, bindings between exchanges, alternate exchanges, CC and BCC, direct reply-to."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.conftest import Connect
from tests.interop.helpers import Collector, Got, channel_error, count, drain, empty, get, pump
from tests.support.broker import leveret_only


def queues(channel: BlockingChannel, name: str, *suffixes: str) -> list[str]:
    names = [f"{name}.{suffix}" for suffix in suffixes]
    for queue in names:
        channel.queue_declare(queue, exclusive=True)
    return names


def arrived(channel: BlockingChannel, *names: str) -> list[list[bytes]]:
    return [drain(channel, queue) for queue in names]


def test_direct_with_several_queues(channel: BlockingChannel, name: str) -> None:
    one, two, three = queues(channel, name, "one", "two", "three")
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_bind(one, name, "a")
    channel.queue_bind(two, name, "a")
    channel.queue_bind(two, name, "b")
    channel.queue_bind(three, name, "")
    for key in ("a", "b", "c", ""):
        channel.basic_publish(name, key, key.encode())
    assert arrived(channel, one, two, three) == [[b"a"], [b"a", b"b"], [b""]]


def test_fanout(channel: BlockingChannel, name: str) -> None:
    names = queues(channel, name, *"abcde")
    channel.exchange_declare(name, "fanout", auto_delete=True)
    for queue in names:
        channel.queue_bind(queue, name, "ignored")
        channel.queue_bind(queue, name, "twice")
    channel.basic_publish(name, "whatever", b"all")
    assert arrived(channel, *names) == [[b"all"]] * 5


@pytest.mark.parametrize(
    "pattern,matches,others",
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", ""]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab"]),
        ("#", ["", "a", "a.b.c"], []),
        ("*", ["a"], ["a.b", ""]),
        ("#.z", ["z", "a.z", "a.b.z"], ["z.a"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a.b", "z"]),
        ("*.#.*", ["a.b", "a.b.c"], ["a"]),
        ("#.#", ["", "a", "a.b"], []),
        ("a.*.#.z", ["a.b.z", "a.b.c.z"], ["a.z"]),
        ("", [""], ["a", "a.b"]),
    ],
)
def test_topic(channel: BlockingChannel, name: str, pattern: str, matches: list[str], others: list[str]) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.queue_bind(name, name, pattern)
    for key in matches + others:
        channel.basic_publish(name, key, key.encode())
    assert drain(channel, name) == [key.encode() for key in matches]


@pytest.mark.parametrize(
    "arguments,headers,routed",
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
        ({"x-match": "all", "a": None}, {"a": "anything"}, True),
        ({"x-match": "all", "a": None}, {"b": 1}, False),
        ({"x-match": "all", "x-tra": 1}, {}, True),
        ({"x-match": "all-with-x", "x-tra": 1}, {}, False),
        ({"x-match": "all-with-x", "x-tra": 1}, {"x-tra": 1}, True),
        ({"x-match": "any", "x-tra": 1}, {"x-tra": 1}, False),
        ({"x-match": "any-with-x", "x-tra": 1}, {"x-tra": 1}, True),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "a": True}, {"a": True}, True),
        ({"x-match": "all", "a": "1"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, None, False),
    ],
    ids=repr,
)
def test_headers(
    channel: BlockingChannel, name: str, arguments: dict[str, Any], headers: dict[str, Any] | None, routed: bool
) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(
        name,
        "amq.headers",
        "",
        {**arguments, "only-this-test": name}
        if arguments.get("x-match") != "any" and arguments.get("x-match") != "any-with-x"
        else arguments,
    )
    if headers is not None:
        headers = {**headers, "only-this-test": name}
    channel.basic_publish("amq.headers", "ignored", b"", pika.BasicProperties(headers=headers))
    assert (not empty(channel, name)) is routed


def test_bad_x_match(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 406):
        channel.queue_bind(name, "amq.headers", "", {"x-match": "some"})


def test_consistent_hash(channel: BlockingChannel, name: str) -> None:
    one, two = queues(channel, name, "one", "two")
    channel.exchange_declare(name, "x-consistent-hash", auto_delete=True)
    channel.queue_bind(one, name, "1")
    channel.queue_bind(two, name, "3")
    for number in range(400):
        channel.basic_publish(name, f"key-{number}", b"%d" % number)
    first, second = arrived(channel, one, two)
    assert len(first) + len(second) == 400
    assert 40 < len(first) < 180
    for _ in range(3):
        channel.basic_publish(name, "key-7", b"same")
    assert sorted(map(len, arrived(channel, one, two))) == [0, 3]


def test_random(channel: BlockingChannel, name: str) -> None:
    one, two = queues(channel, name, "one", "two")
    channel.exchange_declare(name, "x-random", auto_delete=True)
    channel.queue_bind(one, name, "ignored")
    channel.queue_bind(two, name, "")
    for number in range(200):
        channel.basic_publish(name, "key", b"%d" % number)
    first, second = arrived(channel, one, two)
    assert len(first) + len(second) == 200
    assert 60 < len(first) < 140


def test_modulus_hash(channel: BlockingChannel, name: str) -> None:
    one, two = queues(channel, name, "one", "two")
    channel.exchange_declare(name, "x-modulus-hash", auto_delete=True)
    channel.queue_bind(one, name, "ignored")
    channel.queue_bind(two, name, "")
    for number in range(200):
        channel.basic_publish(name, f"key-{number}", b"%d" % number)
    first, second = arrived(channel, one, two)
    assert len(first) + len(second) == 200
    assert 60 < len(first) < 140
    for _ in range(3):
        channel.basic_publish(name, "key-7", b"same")
    assert sorted(map(len, arrived(channel, one, two))) == [0, 3]


def test_recent_history(channel: BlockingChannel, name: str) -> None:
    leveret_only("RabbitMQ does not enable its plugin by default")
    one, two = queues(channel, name, "one", "two")
    channel.exchange_declare(name, "x-recent-history", arguments={"x-recent-history-length": 2})
    for body in (b"a", b"b", b"c"):
        channel.basic_publish(name, "key", body)
    channel.basic_publish(name, "key", b"not kept", pika.BasicProperties(headers={"x-recent-history-no-store": True}))
    channel.queue_bind(one, name)
    channel.basic_publish(name, "key", b"d")
    channel.queue_bind(two, name)
    assert arrived(channel, one, two) == [[b"b", b"c", b"d"], [b"c", b"d"]]
    channel.exchange_delete(name)
    with channel_error(channel, 406):
        channel.exchange_declare(name, "x-recent-history", arguments={"x-recent-history-length": 0})


def test_consistent_hash_bad_weight(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.exchange_declare(name, "x-consistent-hash", auto_delete=True)
    with channel_error(channel, 406):
        channel.queue_bind(name, name, "heavy")


def test_exchange_to_exchange(channel: BlockingChannel, name: str) -> None:
    first, second = f"{name}.first", f"{name}.second"
    (queue,) = queues(channel, name, "queue")
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "direct")
    channel.exchange_bind(second, first, "a.#")
    channel.queue_bind(queue, second, "a.b")
    channel.basic_publish(first, "a.b", b"through")
    channel.basic_publish(first, "a.c", b"not further")
    got = get(channel, queue)
    assert (got.body, got.method.exchange, got.method.routing_key) == (b"through", first, "a.b")
    assert empty(channel, queue)
    channel.exchange_unbind(second, first, "a.#")
    channel.basic_publish(first, "a.b", b"")
    assert empty(channel, queue)
    channel.exchange_delete(first)
    channel.exchange_delete(second)


def test_exchange_cycle(channel: BlockingChannel, name: str) -> None:
    """Each queue gets it once, however the exchanges are bound to each other."""
    first, second = f"{name}.first", f"{name}.second"
    (queue,) = queues(channel, name, "queue")
    for exchange in (first, second):
        channel.exchange_declare(exchange, "fanout")
        channel.queue_bind(queue, exchange)
    channel.exchange_bind(first, second)
    channel.exchange_bind(second, first)
    channel.basic_publish(first, "", b"once")
    assert drain(channel, queue) == [b"once"]
    channel.exchange_delete(first)
    channel.exchange_delete(second)


def test_internal_exchange_accepts_from_exchanges(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", internal=True)
    (queue,) = queues(channel, name, "queue")
    channel.queue_bind(queue, name)
    channel.exchange_bind(name, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"inside")
    assert drain(channel, queue) == [b"inside"]
    channel.exchange_delete(name)


def test_alternate_exchange(channel: BlockingChannel, name: str) -> None:
    unrouted, routed = queues(channel, name, "unrouted", "routed")
    channel.exchange_declare(f"{name}.alternate", "fanout", auto_delete=True)
    channel.queue_bind(unrouted, f"{name}.alternate")
    channel.exchange_declare(name, "direct", auto_delete=True, arguments={"alternate-exchange": f"{name}.alternate"})
    channel.queue_bind(routed, name, "known")
    channel.confirm_delivery()
    channel.basic_publish(name, "known", b"1", mandatory=True)
    channel.basic_publish(name, "unknown", b"2", mandatory=True)
    got = get(channel, unrouted)
    assert (got.body, got.method.exchange, got.method.routing_key) == (b"2", name, "unknown")
    assert drain(channel, routed) == [b"1"]


def test_missing_alternate_exchange(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True, arguments={"alternate-exchange": f"{name}.missing"})
    returned: list[Got] = []
    channel.add_on_return_callback(lambda _, method, properties, body: returned.append(Got(method, properties, body)))
    channel.basic_publish(name, "nowhere", b"", mandatory=True)
    pump(channel.connection, lambda: returned)
    assert returned[0].method.reply_code == 312


def test_carbon_copies(channel: BlockingChannel, name: str) -> None:
    main, cc, bcc = queues(channel, name, "main", "cc", "bcc")
    channel.basic_publish("", main, b"x", pika.BasicProperties(headers={"CC": [cc, cc, main], "BCC": [bcc], "own": 1}))
    for queue in (main, cc, bcc):
        got = get(channel, queue)
        # CC stays visible to all, BCC to none; all see the routing key of the publish.
        assert got.properties.headers == {"CC": [cc, cc, main], "own": 1}
        assert got.method.routing_key == main
        assert empty(channel, queue)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_bad_carbon_copies(channel: BlockingChannel, name: str, header: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 406):
        channel.basic_publish("", name, b"", pika.BasicProperties(headers={header: "no list"}))


def test_carbon_copies_count_for_mandatory(channel: BlockingChannel, name: str) -> None:
    (cc,) = queues(channel, name, "cc")
    channel.confirm_delivery()
    channel.basic_publish("", f"{name}.nowhere", b"x", pika.BasicProperties(headers={"CC": [cc]}), mandatory=True)
    assert drain(channel, cc) == [b"x"]


REPLY = "amq.rabbitmq.reply-to"


def test_direct_reply_to(connect: Connect, name: str) -> None:
    client, server = connect().channel(), connect().channel()
    server.queue_declare(name, exclusive=True)
    replies = Collector(client, REPLY, auto_ack=True)
    for number in range(3):
        client.basic_publish("", name, b"%d" % number, pika.BasicProperties(reply_to=REPLY, correlation_id=str(number)))
    for _ in range(3):
        request = get(server, name)
        address = request.properties.reply_to
        assert address.startswith(REPLY + ".")
        server.basic_publish(
            "", address, b"re: " + request.body, pika.BasicProperties(correlation_id=request.properties.correlation_id)
        )
    answers = replies.wait(3)
    assert [(answer.body, answer.properties.correlation_id) for answer in answers] == [
        (b"re: 0", "0"),
        (b"re: 1", "1"),
        (b"re: 2", "2"),
    ]
    assert answers[0].method.exchange == ""


def test_direct_reply_to_can_be_declared(channel: BlockingChannel) -> None:
    """Before and after the channel consumes from it, as FastStream does; it counts as a queue with a consumer."""

    def declare(passive: bool) -> tuple[str, int, int]:
        ok = channel.queue_declare(REPLY, passive=passive).method
        return ok.queue, ok.message_count, ok.consumer_count

    assert [declare(passive=True), declare(passive=False)] == [(REPLY, 0, 1)] * 2
    Collector(channel, REPLY, auto_ack=True)
    assert [declare(passive=True), declare(passive=False)] == [(REPLY, 0, 1)] * 2


def test_direct_reply_to_needs_no_ack(channel: BlockingChannel) -> None:
    with channel_error(channel, 406):
        channel.basic_consume(REPLY, lambda *_: None, auto_ack=False)


def test_direct_reply_to_needs_a_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 406):
        channel.basic_publish("", name, b"", pika.BasicProperties(reply_to=REPLY))


def test_direct_reply_to_is_one_consumer_a_channel(channel: BlockingChannel) -> None:
    Collector(channel, REPLY, auto_ack=True)
    with channel_error(channel, 406):
        channel.basic_consume(REPLY, lambda *_: None, auto_ack=True)


def test_direct_reply_to_checks_that_the_client_is_connected(connect: Connect, name: str) -> None:
    client, server = connect().channel(), connect().channel()
    server.queue_declare(name, exclusive=True)
    Collector(client, REPLY, auto_ack=True)
    client.basic_publish("", name, b"", pika.BasicProperties(reply_to=REPLY))
    address = get(server, name).properties.reply_to
    ok = server.queue_declare(address, passive=True).method
    assert (ok.queue, ok.message_count) == (address, 0)
    client.connection.close()

    def mandatory_comes_back() -> bool:
        returned: list[int] = []
        other = server.connection.channel()
        other.add_on_return_callback(lambda _, method, *__: returned.append(method.reply_code))
        other.basic_publish("", address, b"too late", mandatory=True)
        other.queue_declare("", exclusive=True)
        server.connection.process_data_events(0.05)
        other.close()
        return returned == [312]

    pump(server.connection, mandatory_comes_back)


def test_reply_to_an_own_queue(connect: Connect, name: str) -> None:
    """The older way: an exclusive server-named queue."""
    client, server = connect().channel(), connect().channel()
    server.queue_declare(name, exclusive=True)
    queue = client.queue_declare("", exclusive=True).method.queue
    client.basic_publish("", name, b"ping", pika.BasicProperties(reply_to=queue))
    server.basic_publish("", get(server, name).properties.reply_to, b"pong")
    assert get(client, queue).body == b"pong"
    assert count(client, queue) == 0
