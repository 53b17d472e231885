"""Publishing with pika: properties, confirms, returns, transactions, sizes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import NackError, UnroutableError

from tests.interop.conftest import Connect
from tests.interop.helpers import Got, channel_error, count, empty, get, pump
from tests.support.polling import wait_until


def test_properties_are_delivered_as_sent(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    headers = {
        "text": "grüße",
        "number": 5,
        "big": 2**40,
        "negative": -(2**40),
        "flag": True,
        "off": False,
        "none": None,
        "bytes": b"\x00\xff",
        "list": [1, "two", None, [3]],
        "table": {"deep": {"deeper": [{}]}},
        "decimal": Decimal("3.14"),
        "time": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        "empty": {},
        "": "empty key",
    }
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="somewhere",
        expiration="60000",
        message_id="m-1",
        timestamp=1700000000,
        type="event",
        user_id="guest",
        app_id="app",
        cluster_id="cl",
    )
    channel.basic_publish("", name, b"body", properties)
    got = get(channel, name).properties
    assert got.__dict__ == properties.__dict__


def test_no_properties(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"bare")
    assert get(channel, name).properties.__dict__ == pika.BasicProperties().__dict__


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 131064, 131065, 1 << 20])
@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_sizes(connect: Connect, name: str, size: int, frame_max: int) -> None:
    channel = connect(frame_max=frame_max).channel()
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
    got = get(channel, name)
    assert got.body == body


def test_ten_megabytes(connect: Connect, name: str) -> None:
    """Published in large frames and delivered in small ones, durable."""
    body = hashlib.sha256(b"seed").digest() * (10 * 1024 * 1024 // 32)
    sender = connect(frame_max=131072).channel()
    sender.queue_declare(name, durable=True)
    sender.confirm_delivery()
    for _ in range(2):
        sender.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2, headers={"n": 1}))
    receiver = connect(frame_max=4096).channel()
    for _ in range(2):
        got = get(receiver, name)
        assert got.body == body
        assert got.properties.headers == {"n": 1}
    sender.queue_delete(name)


def test_user_id_is_checked(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 406):
        channel.basic_publish("", name, b"forged", pika.BasicProperties(user_id="other"))


def test_no_such_exchange(channel: BlockingChannel, name: str) -> None:
    with channel_error(channel, 404):
        channel.basic_publish(name, "key", b"lost")


def test_internal_exchange(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", internal=True, auto_delete=True)
    with channel_error(channel, 403):
        channel.basic_publish(name, "", b"refused")


def test_confirms(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    assert count(channel, name) == 50
    channel.queue_delete(name)


def test_unroutable_is_confirmed(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", name + ".missing", b"dropped")


def test_mandatory_return_precedes_its_confirm(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", name, b"body", pika.BasicProperties(message_id="x"), mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key, returned.body) == ("", name, b"body")
    assert returned.properties.message_id == "x"


def test_mandatory_return_without_confirms(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    returned: list[Got] = []
    channel.add_on_return_callback(lambda _, method, properties, body: returned.append(Got(method, properties, body)))
    channel.basic_publish(name, "nowhere", b"", mandatory=True)
    pump(channel.connection, lambda: returned)
    assert (returned[0].method.exchange, returned[0].method.routing_key, returned[0].body) == (name, "nowhere", b"")
    assert channel.is_open


def test_mandatory_that_is_routed(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"arrives", mandatory=True)
    assert get(channel, name).body == b"arrives"


def test_nack_of_a_full_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"1")
    channel.basic_publish("", name, b"2")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"3")
    assert [get(channel, name).body, get(channel, name).body] == [b"1", b"2"]
    channel.basic_publish("", name, b"4")
    assert get(channel, name).body == b"4"


def test_transaction_of_publishes(connection: BlockingConnection, name: str) -> None:
    channel, watcher = connection.channel(), connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.tx_select()
    channel.basic_publish("", name, b"1")
    channel.basic_publish("", name, b"2")
    assert count(watcher, name) == 0
    channel.tx_commit()
    assert count(watcher, name) == 2
    channel.basic_publish("", name, b"3")
    channel.tx_rollback()
    channel.tx_commit()
    assert [get(watcher, name).body for _ in range(2)] == [b"1", b"2"]
    assert empty(watcher, name)


def test_transaction_of_acks(connection: BlockingConnection, name: str) -> None:
    channel, watcher = connection.channel(), connection.channel()
    channel.queue_declare(name, exclusive=True)
    for number in range(4):
        channel.basic_publish("", name, b"%d" % number)
    channel.tx_select()
    tags = [get(channel, name, auto_ack=False).method.delivery_tag for _ in range(4)]
    channel.basic_ack(tags[0])
    channel.basic_ack(tags[1])
    channel.tx_rollback()
    channel.basic_ack(tags[0])
    channel.tx_commit()
    channel.basic_ack(tags[2])
    channel.close()
    # Without a commit the acknowledgement of 2 never happened.
    wait_until(lambda: count(watcher, name) == 3)
    assert [get(watcher, name).body for _ in range(3)] == [b"1", b"2", b"3"]


def test_transaction_that_is_not_committed(connection: BlockingConnection, name: str) -> None:
    channel, watcher = connection.channel(), connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.tx_select()
    channel.basic_publish("", name, b"never")
    channel.close()
    assert empty(watcher, name)


@pytest.mark.parametrize("first", ["tx", "confirm"])
def test_tx_and_confirm_exclude_each_other(channel: BlockingChannel, first: str) -> None:
    if first == "tx":
        channel.tx_select()
        with channel_error(channel, 406):
            channel.confirm_delivery()
    else:
        channel.confirm_delivery()
        with channel_error(channel, 406):
            channel.tx_select()


@pytest.mark.parametrize("method", ["tx_commit", "tx_rollback"])
def test_tx_without_select(channel: BlockingChannel, method: str) -> None:
    with channel_error(channel, 406):
        getattr(channel, method)()


@pytest.mark.parametrize("expiration", ["-1", "abc", "", "1.5"])
def test_bad_expiration(channel: BlockingChannel, name: str, expiration: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 406):
        channel.basic_publish("", name, b"", pika.BasicProperties(expiration=expiration))
