"""Streams with their segments, and the durations of turns and commits, over the HTTP API."""

from __future__ import annotations

import pytest

from leveret import sync
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

PATH = "/leveret/streams/%2F/sealed-stream"


def test_a_stream_with_its_segments(api: HttpBroker) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    body = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert api("PUT", "/queues/%2F/sealed-stream", body).status == 201
    with sync.connect(api.process.url()) as connection, connection.channel().publisher("", "sealed-stream") as publisher:
        for number in range(20):
            publisher.publish(b"%d" % number, persistent=True)
    found = api.get(PATH, user="monitor")
    assert (found["messages"], found["next_offset"], found["sealed"], found["table"]) == (20, 20, [], None)
    seal = {"vhost": "/", "name": "sealed-stream"}
    assert api("POST", "/leveret/operations/streams.seal", seal).status == 200
    [segment] = wait_until(lambda: api.get(PATH)["sealed"], "the segment")
    assert (segment["first"], segment["last"], segment["count"]) == (0, 19, 20)
    assert api("GET", PATH, user="manager").status == 401
    assert api("DELETE", "/queues/%2F/sealed-stream").status == 204
    assert api("GET", PATH).status == 404


def test_durations_of_turns_and_commits(api: HttpBroker) -> None:
    before = api.get("/leveret/performance", user="monitor")
    assert api("PUT", "/queues/%2F/durations", {"durable": True}).status == 201

    def commits() -> int:
        return sum(api.get("/leveret/performance")["commits"]["counts"])

    wait_until(lambda: commits() > sum(before["commits"]["counts"]), "the commit")
    assert len(before["turns"]["counts"]) == len(before["bounds"]) + 1
    assert api("GET", "/leveret/performance", user="manager").status == 401
    assert api("DELETE", "/queues/%2F/durations").status == 204
