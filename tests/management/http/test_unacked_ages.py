"""Ages of unacked messages over the HTTP API, from a broker that consumers of all protocols use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from leveret import sync
from leveret.client.message import Message
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import Samples, scrape
from tests.support.polling import wait_until

QUEUES = "/leveret/queues/%2F"
NAMES = ("ages-0-9", "ages-0-9-1", "ages-1.0", "ages-got")


@pytest.fixture
def held(api: HttpBroker) -> Iterator[list[Message]]:
    """The first of two unacked messages of each queue of `NAMES`. Three messages are ready."""
    with ExitStack() as stack:
        channel = stack.enter_context(sync.connect(api.process.url())).channel()
        for name in NAMES:
            assert api("PUT", f"/queues/%2F/{name}", {}).status == 201
            stack.callback(api, "DELETE", f"/queues/%2F/{name}")
            for number in range(5):
                channel.publish(str(number).encode(), name)
        amqp09 = stack.enter_context(sync.connect(api.process.url(), protocol="0-9")).channel()
        amqp10 = stack.enter_context(sync.connect(api.process.url(), protocol="1.0")).session()
        consumers: list[sync.Consumer] = [
            stack.enter_context(amqp09.consume(NAMES[0], prefetch=2)),
            stack.enter_context(channel.consume(NAMES[1], prefetch=2)),
            stack.enter_context(amqp10.receiver(NAMES[2], prefetch=2)),
        ]
        found = [[consumer.next(10), consumer.next(10)][0] for consumer in consumers]
        got = channel.get(NAMES[3])
        assert got is not None
        yield [*found, got]


def ages(api: HttpBroker) -> list[int | None]:
    return [api.get(f"{QUEUES}/{name}/unacked")["oldest_unacked_age"] for name in NAMES]


def messages(api: HttpBroker, name: str) -> list[int | None]:
    found: list[dict[str, Any]] = api.get(f"{QUEUES}/{name}/messages?state=unacked")["messages"]
    return [message["unacked_age"] for message in found]


def test_ages_of_unacked_messages(api: HttpBroker, held: list[Message]) -> None:
    wait_until(lambda: all(age is not None and age >= 1 for age in ages(api)), "the messages to be older")
    for name in NAMES[:3]:
        (consumer,) = api.get(f"{QUEUES}/{name}/consumers")
        assert consumer["unacked"] == 2
        assert consumer["oldest_unacked_age"] >= 1 and consumer["channel"]["oldest_unacked_age"] >= 1
        assert len(messages(api, name)) == 2 and all(age is not None and age >= 1 for age in messages(api, name))
    assert all(age is not None and age >= 1 for age in messages(api, NAMES[3]))
    assert [item["unacked_age"] for item in api.get(f"{QUEUES}/{NAMES[0]}/messages")["messages"]] == [None] * 3
    queues = {row["name"]: row for row in api.get("/leveret/unacked/queues?sort=oldest_unacked_age")}
    assert queues.keys() >= set(NAMES) and all(queues[name]["oldest_unacked_age"] >= 1 for name in NAMES)
    channels = api.get("/leveret/unacked/channels?columns=name,user,oldest_unacked_age")
    assert len(channels) >= 3 and all(row["oldest_unacked_age"] >= 1 for row in channels if row["user"] == "guest")
    samples = Samples(scrape(api.process, "/detailed?family=queue_metrics"))
    for name in NAMES:
        assert samples.value("leveret_queue_oldest_unacked_seconds", queue=name, vhost="/") >= 1
    # A later message is younger than the oldest one.
    with sync.connect(api.process.url()) as connection:
        later = connection.channel().get(NAMES[3])
        assert later is not None
        oldest, latest = messages(api, NAMES[3])
        assert oldest is not None and latest is not None and latest < oldest
    for delivery in held:
        delivery.ack()
    wait_until(lambda: ages(api)[3] is None, "the acknowledgement")
    assert messages(api, NAMES[3]) == []


def test_users_see_ages_of_their_own_objects(api: HttpBroker, held: list[Message]) -> None:
    wait_until(lambda: api.get("/leveret/unacked/queues"), "a queue with unacked messages")
    assert {row["name"] for row in api.get("/leveret/unacked/queues", user="manager")} >= set(NAMES)
    assert api.get("/leveret/unacked/channels", user="manager") == []
    assert len(api.get("/leveret/unacked/channels", user="monitor")) >= 3
    assert api("GET", f"{QUEUES}/unknown/unacked").status == 404
    assert api("GET", "/leveret/unacked/queues", user="plain").status == 401
