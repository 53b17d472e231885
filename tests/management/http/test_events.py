"""Live events: what is published, to whom, bounded buffers and resumption."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from leveret import sync
from leveret.management.http.events import MAX_PENDING, Events, Subscriber
from leveret.management.http.identity import Identity
from tests.management.http.client import HttpBroker
from tests.management.http.test_process import make
from tests.support.polling import DEADLINE, wait_until

ADMIN = Identity("admin", frozenset({"administrator"}), frozenset({"/"}))
MONITOR = Identity("monitor", frozenset({"monitoring"}), frozenset())
USER = Identity("user", frozenset({"management"}), frozenset({"/"}))
MAKER = Identity("maker", frozenset({"policymaker"}), frozenset({"/"}))


# The keys of connections that events lack: those that change, and those of any size.
UNSENT = {
    "channels",
    "client_properties",
    "container_id",
    "garbage_collection",
    "node",
    "recv_cnt",
    "recv_cnt_details",
    "recv_oct",
    "recv_oct_details",
    "reductions",
    "reductions_details",
    "send_cnt",
    "send_cnt_details",
    "send_oct",
    "send_oct_details",
    "send_pend",
    "state",
    "user_provided_name",
    "websocket_path",
}


class Ended(AssertionError):
    """The stream has ended."""


class Stream:
    """A stream of server-sent events."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.last_id = ""
        self.deadline = time.monotonic() + DEADLINE

    def next(self) -> tuple[str, Any]:
        """Return the name and the data of the next event."""
        name = ""
        data: Any = None
        while read := self.response.readline():
            line = read.decode().rstrip("\n")
            if not line:
                break
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "id":
                self.last_id = value
            elif key == "data":
                data = json.loads(value)
        if name:
            return name, data
        if not read:
            raise Ended
        assert time.monotonic() < self.deadline, "no event"  # a comment, which is sent when there are no events
        return self.next()

    def until(self, wanted: str, **fields: Any) -> dict[str, Any]:
        """Return the data of the next event with a name and these fields."""
        while True:
            name, data = self.next()
            if name == wanted and fields.items() <= data.items():
                found: dict[str, Any] = data
                return found


@contextmanager
def subscribe(api: HttpBroker, query: str = "", user: str = "guest", **headers: str) -> Iterator[Stream]:
    api.get("/queues?page=1", user=user)  # the process has copies of the objects, whose changes are events
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    token = base64.b64encode(f"{user}:{user}".encode()).decode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", f"/api/leveret/events{query}", headers={"Authorization": f"Basic {token}", **names})
    response = connection.getresponse()
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")
    try:
        yield Stream(response)
    finally:
        response.close()
        connection.close()


def test_objects_that_come_change_and_go(api: HttpBroker) -> None:
    with subscribe(api) as stream:
        assert stream.next()[0] == "hello"
        api("PUT", "/queues/%2F/events-queue", {"durable": True})
        flags = {"durable": True, "auto_delete": False}
        stream.until(
            "queue.created", name="events-queue", vhost="/", state="running", type="classic", exclusive=False, **flags
        )
        api("PUT", "/exchanges/%2F/events-exchange", {"type": "topic"})
        stream.until("exchange.created", name="events-exchange", vhost="/", type="topic", internal=False, durable=False)
        api("POST", "/leveret/queues/%2F/events-queue/pause")
        stream.until("queue.changed", name="events-queue", state="paused")
        api("DELETE", "/queues/%2F/events-queue")
        stream.until("queue.deleted", name="events-queue")
        api("DELETE", "/exchanges/%2F/events-exchange")
        stream.until("exchange.deleted", name="events-exchange", type="topic")


def test_definitions_that_only_the_audit_log_reports(api: HttpBroker) -> None:
    with subscribe(api, "?kinds=policy,user") as stream:
        api("PUT", "/policies/%2F/events", {"pattern": "x", "definition": {"max-length": 1}})
        assert stream.until("policy.created")["user"] == "guest"
        api("DELETE", "/policies/%2F/events")
        stream.until("policy.deleted", name="events")
        api("PUT", "/users/events", {"password": "x", "tags": ""})
        stream.until("user.created", name="events")
        api("DELETE", "/users/events")


def test_connections_and_statistics(api: HttpBroker) -> None:
    with subscribe(api, "?kinds=connection,statistics") as stream:
        with sync.connect(api.process.url()) as connection:
            opened = stream.until("connection.opened", user="guest")
            assert opened["auth_mechanism"] == "PLAIN"
            # All keys that do not change and have a limited size have the values of the list.
            row = api.get(f"/connections/{quote(opened['name'], safe='')}")
            assert {key: row[key] for key in opened} == opened
            assert row.keys() - opened.keys() == UNSENT
            connection.channel().declare_queue("events-statistics")
            while "channel" not in stream.until("statistics")["kinds"]:
                pass
        assert stream.until("connection.closed", name=opened["name"]) == opened
    api("DELETE", "/queues/%2F/events-statistics")


def test_a_connection_is_opened_when_the_client_has_logged_in(api: HttpBroker) -> None:
    with subscribe(api, "?kinds=connection") as stream:
        assert stream.next()[0] == "hello"
        with socket.create_connection((api.process.host, api.process.port)) as client:
            client.sendall(b"AMQP\0\0\x09\x01")
            wait_until(lambda: any(row["user"] == "" for row in api.get("/connections")))
        wait_until(lambda: not any(row["user"] == "" for row in api.get("/connections")))
        with sync.connect(api.process.url()):
            name, opened = stream.next()
            assert (name, opened["user"], opened["auth_mechanism"]) == ("connection.opened", "guest", "PLAIN")


def test_a_client_that_reconnects_misses_nothing(api: HttpBroker) -> None:
    with subscribe(api, "?kinds=queue") as stream:
        stream.next()
        api("PUT", "/queues/%2F/events-first", {})
        stream.until("queue.created", name="events-first")
        last = stream.last_id
    with subscribe(api, "?kinds=queue") as other:
        api("PUT", "/queues/%2F/events-second", {})
        other.until("queue.created", name="events-second")
    with subscribe(api, "?kinds=queue", Last_Event_ID=last) as stream:
        stream.until("queue.created", name="events-second")
    with subscribe(api, "?kinds=queue", Last_Event_ID="other-1") as stream:
        assert stream.next()[0] == "reset"
    for name in ("events-first", "events-second"):
        api("DELETE", f"/queues/%2F/{name}")


def test_a_restart_of_the_broker_ends_the_streams(tmp_path: Path) -> None:
    with make(tmp_path).start() as process:
        api = HttpBroker(process)
        with subscribe(api) as stream:
            stream.next()
            process.stop()
            assert stream.until("dropped") == {"reason": "the broker stops"}


def test_a_user_whose_permissions_change_must_connect_again(api: HttpBroker) -> None:
    api("PUT", "/users/listener", {"password": "listener", "tags": "management"})
    api("PUT", "/permissions/%2F/listener", {"configure": "", "write": "", "read": ""})
    with subscribe(api, user="listener") as stream:
        stream.next()
        api("DELETE", "/permissions/%2F/listener")
        assert "have changed" in stream.until("dropped")["reason"]
    api("DELETE", "/users/listener")


def test_head_and_credentials(api: HttpBroker) -> None:
    assert api("GET", "/leveret/events", user=None).status == 401
    assert api("HEAD", "/leveret/events").status == 200
    assert api("GET", "/leveret/events?last_event_id=x").status == 400


# The hub


def received(subscriber: Subscriber) -> str:
    return asyncio.run(subscriber.next()).decode()


@pytest.mark.parametrize(
    ("kind", "vhost", "owner", "seen_by"),
    [
        ("queue", "/", "", [ADMIN, MONITOR, USER, MAKER]),
        ("queue", "other", "", [ADMIN, MONITOR]),
        ("vhost", "other", "", [ADMIN, MONITOR]),
        ("policy", "/", "", [ADMIN, MONITOR, USER, MAKER]),
        ("parameter", "/", "", [ADMIN, MAKER]),
        ("parameter", "other", "", [ADMIN]),
        ("connection", "/", "user", [ADMIN, MONITOR, USER]),
        ("connection", "/", "admin", [ADMIN, MONITOR]),
        ("user", "", "", [ADMIN]),
        ("permission", "/", "", [ADMIN]),
        ("alarm", "", "", [ADMIN, MONITOR, USER, MAKER]),
    ],
)
def test_events_are_for_those_who_see_the_object(kind: str, vhost: str, owner: str, seen_by: list[Identity]) -> None:
    events = Events()
    subscribers = {identity.name: events.subscribe(identity, (), "") for identity in (ADMIN, MONITOR, USER, MAKER)}
    events.publish(kind, "changed", {"name": "x"}, vhost, owner)
    seen = [name for name, subscriber in subscribers.items() if f"event: {kind}.changed" in received(subscriber)]
    assert seen == [identity.name for identity in seen_by]


def test_a_slow_client_is_dropped_with_a_reason() -> None:
    events = Events()
    subscriber = events.subscribe(ADMIN, (), "")
    for _ in range(MAX_PENDING + 10):
        events.publish("queue", "changed", {"name": "x"}, "/")
    content = received(subscriber)
    assert content.count("event:") == 1
    assert f"the client is too slow: {MAX_PENDING} events were waiting" in content
    assert received(subscriber) == ""


def test_missed_events_that_are_not_kept_cause_a_reset() -> None:
    events = Events()
    events.publish("queue", "changed", {"name": "first"}, "/")
    first = received(events.subscribe(ADMIN, (), "")).partition("id: ")[2].partition("\n")[0]
    for _ in range(3000):
        events.publish("queue", "changed", {"name": "x"}, "/")
    assert "event: reset" in received(events.subscribe(ADMIN, (), first))
