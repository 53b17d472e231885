"""Dead-lettering with RabbitMQ's `x-death` headers, field by field."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.helpers import Got, count, drain, empty, get, pass_time
from tests.support.polling import wait_until


def declare(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    """Declare a queue `name` that dead-letters through an exchange to `name.dead`, with its own name as routing key."""
    dead = f"{name}.dead"
    channel.exchange_declare(f"{name}.dlx", "topic", auto_delete=True)
    channel.queue_declare(dead, exclusive=True)
    channel.queue_bind(dead, f"{name}.dlx", "#")
    channel.queue_declare(name, exclusive=True, arguments={"x-dead-letter-exchange": f"{name}.dlx", **arguments})
    return dead


def death(got: Got) -> dict[str, Any]:
    deaths = got.properties.headers["x-death"]
    assert len(deaths) == 1
    return dict(deaths[0])


def refuse(channel: BlockingChannel, queue: str) -> None:
    channel.basic_reject(get(channel, queue, auto_ack=False).method.delivery_tag, requeue=False)


def test_rejected(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name)
    channel.basic_publish("", name, b"body", pika.BasicProperties(headers={"mine": 1}, message_id="m", delivery_mode=1))
    refuse(channel, name)
    got = get(channel, dead)
    assert (got.body, got.method.exchange, got.method.routing_key, got.method.redelivered) == (
        b"body",
        f"{name}.dlx",
        name,
        False,
    )
    assert got.properties.message_id == "m"
    headers = dict(got.properties.headers)
    (entry,) = headers.pop("x-death")
    assert headers == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": name,
        "x-first-death-reason": "rejected",
    }
    moment = entry.pop("time")
    assert isinstance(moment, datetime)
    assert abs(moment.timestamp() - time.time()) < 60
    assert entry == {"count": 1, "reason": "rejected", "queue": name, "exchange": "", "routing-keys": [name]}


def test_nacked_many(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name)
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    for _ in range(5):
        tag = get(channel, name, auto_ack=False).method.delivery_tag
    channel.basic_nack(tag, multiple=True, requeue=False)
    assert [get(channel, dead).body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_expired_by_the_message(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name)
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="50"))
    got = get(channel, dead)
    # With its time to live, the message would expire repeatedly.
    assert got.properties.expiration is None
    entry = death(got)
    assert (entry["reason"], entry["original-expiration"], entry["count"]) == ("expired", "50", 1)


def test_expired_by_the_queue(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name, **{"x-message-ttl": 50})
    channel.basic_publish("", name, b"")
    entry = death(get(channel, dead))
    assert entry["reason"] == "expired"
    assert "original-expiration" not in entry


def test_expired_by_the_queue_keeps_no_expiration(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name, **{"x-message-ttl": 50})
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="60000"))
    got = get(channel, dead)
    assert got.properties.expiration is None
    assert death(got)["original-expiration"] == "60000"


def test_rejected_loses_its_expiration(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name)
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="60000"))
    refuse(channel, name)
    got = get(channel, dead)
    assert (got.properties.expiration, death(got)["original-expiration"]) == (None, "60000")


def test_maxlen(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name, **{"x-max-length": 1})
    channel.basic_publish("", name, b"0")
    channel.basic_publish("", name, b"1")
    got = get(channel, dead)
    assert (got.body, death(got)["reason"]) == (b"0", "maxlen")
    assert get(channel, name).body == b"1"


def test_routing_key_argument(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name, **{"x-dead-letter-routing-key": "other.key"})
    channel.basic_publish("", name, b"")
    refuse(channel, name)
    got = get(channel, dead)
    assert got.method.routing_key == "other.key"
    assert death(got)["routing-keys"] == [name]


def test_through_an_exchange(channel: BlockingChannel, name: str) -> None:
    """`exchange` and `routing-keys` are those of the publish, not of the dead-lettering."""
    dead = declare(channel, name)
    channel.exchange_declare(f"{name}.in", "topic", auto_delete=True)
    channel.queue_bind(name, f"{name}.in", "a.*")
    channel.basic_publish(f"{name}.in", "a.b", b"")
    refuse(channel, name)
    got = get(channel, dead)
    entry = death(got)
    assert (entry["exchange"], entry["routing-keys"], got.method.routing_key) == (f"{name}.in", ["a.b"], "a.b")
    assert got.properties.headers["x-first-death-exchange"] == f"{name}.in"


def test_carbon_copies_are_routing_keys(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name)
    channel.basic_publish("", name, b"", pika.BasicProperties(headers={"CC": ["copy.one", "copy.two"]}))
    refuse(channel, name)
    got = get(channel, dead)
    assert death(got)["routing-keys"] == [name, "copy.one", "copy.two"]


def test_routing_key_argument_removes_carbon_copies(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name, **{"x-dead-letter-routing-key": "single"})
    channel.queue_declare(f"{name}.copy", exclusive=True)
    channel.basic_publish("", name, b"", pika.BasicProperties(headers={"CC": ["unbound"]}))
    refuse(channel, name)
    assert "CC" not in get(channel, dead).properties.headers


def test_the_same_death_again_counts(channel: BlockingChannel, name: str) -> None:
    """Back and forth between a work queue and a delay queue, the pattern of delayed retries."""
    work, delay = name, f"{name}.delay"
    channel.queue_declare(
        work, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": delay}
    )
    channel.queue_declare(
        delay,
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 30},
    )
    channel.basic_publish("", work, b"retry me")
    for attempt in range(4):
        got = get(channel, work, auto_ack=False)
        deaths = got.properties.headers["x-death"] if attempt else []
        assert {entry["queue"]: (entry["reason"], entry["count"]) for entry in deaths} == (
            {} if not attempt else {delay: ("expired", attempt), work: ("rejected", attempt)}
        )
        if attempt:
            # The latest death is first.
            assert [entry["queue"] for entry in deaths] == [delay, work]
            assert got.properties.headers["x-first-death-queue"] == work
            assert got.properties.headers["x-first-death-reason"] == "rejected"
        channel.basic_reject(got.method.delivery_tag, requeue=False)


def test_automatic_cycles_are_dropped(channel: BlockingChannel, name: str) -> None:
    """A message in a cycle of expiry is dropped when it reaches the same queue again."""
    channel.queue_declare(
        name,
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, "x-message-ttl": 50},
    )
    channel.basic_publish("", name, b"round and round")
    wait_until(lambda: count(channel, name) == 0)
    pass_time(channel, 150)
    assert empty(channel, name)


def test_to_several_queues(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name)
    channel.queue_declare(f"{name}.second", exclusive=True)
    channel.queue_bind(f"{name}.second", f"{name}.dlx", name)
    channel.basic_publish("", name, b"body")
    refuse(channel, name)
    assert get(channel, dead).body == get(channel, f"{name}.second").body == b"body"


def test_missing_dead_letter_exchange(channel: BlockingChannel, name: str) -> None:
    """The message is dropped; no client gets an error."""
    channel.queue_declare(name, exclusive=True, arguments={"x-dead-letter-exchange": f"{name}.missing"})
    channel.basic_publish("", name, b"")
    refuse(channel, name)
    assert empty(channel, name)
    assert channel.is_open


@pytest.mark.parametrize("end", ["purge", "delete", "ack"])
def test_invalid_x_death_headers(channel: BlockingChannel, name: str, end: str) -> None:
    dead = declare(channel, name)
    channel.basic_publish("", name, b"")
    if end == "purge":
        channel.queue_purge(name)
    elif end == "delete":
        channel.queue_delete(name)
    else:
        get(channel, name)
    assert drain(channel, dead) == []


def test_delivery_limit(channel: BlockingChannel, name: str) -> None:
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    channel.queue_declare(
        name,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    channel.basic_publish("", name, b"poison")
    for _ in range(2):
        channel.basic_nack(get(channel, name, auto_ack=False).method.delivery_tag, requeue=True)
    got = get(channel, dead)
    assert death(got)["reason"] == "delivery_limit"
    channel.queue_delete(name)


def test_headers_exchange_sees_the_death(channel: BlockingChannel, name: str) -> None:
    """Routing of a dead letter can use the headers that the broker added."""
    channel.exchange_declare(f"{name}.dlx", "headers", auto_delete=True)
    for reason in ("rejected", "expired"):
        channel.queue_declare(f"{name}.{reason}", exclusive=True)
        channel.queue_bind(f"{name}.{reason}", f"{name}.dlx", "", {"x-match": "all-with-x", "x-first-death-reason": reason})
    channel.queue_declare(name, exclusive=True, arguments={"x-dead-letter-exchange": f"{name}.dlx"})
    channel.basic_publish("", name, b"r")
    refuse(channel, name)
    channel.basic_publish("", name, b"e", pika.BasicProperties(expiration="20"))
    assert get(channel, f"{name}.expired").body == b"e"
    assert drain(channel, f"{name}.rejected") == [b"r"]
