"""The broker's log over the HTTP API: records of both processes, conditions, streams, and who may read it."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import pytest

from leveret import sync
from leveret.client.errors import Error
from leveret.management.http.places import LOGS
from tests.management.http.client import HttpBroker
from tests.management.http.test_events import Stream
from tests.support.logged import close_channel
from tests.support.polling import wait_until


def read(api: HttpBroker, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/leveret/log?{_encode(query)}")["records"]
    return found


def _encode(query: dict[str, str]) -> str:
    return "&".join(f"{key}={quote(value)}" for key, value in query.items())


@contextmanager
def follow(api: HttpBroker, user: str = "guest", last_id: str = "", **query: str) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    token = base64.b64encode(f"{user}:{user}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Accept": "text/event-stream"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    connection.request("GET", f"/api/leveret/log?{_encode(query)}", headers=headers)
    response = connection.getresponse()
    try:
        assert response.status == 200, response.read()
        assert response.getheader("content-type") == "text/event-stream"
        yield Stream(response)
    finally:
        response.close()
        connection.close()


def test_records_of_the_broker_have_their_connection_and_vhost(api: HttpBroker) -> None:
    close_channel(api.process, "log-missing-1")
    (found,) = wait_until(lambda: read(api, text="log-missing-1"))
    assert found["process"] in ("broker", "shard 0")
    assert (found["level"], found["logger"]) == ("info", "leveret.connection")
    assert (found["vhost"], found["user"], found["exception"]) == ("/", "guest", "")
    assert "closed with 404" in found["message"]
    assert found["peer"].startswith("127.0.0.1:")
    assert found in read(api, connection=str(found["connection"]), vhost="/", logger="leveret", limit="1000")
    for other in ({"connection": "0"}, {"vhost": "other"}, {"logger": "leveret.http"}, {"level": "warning"}):
        assert found not in read(api, **{"text": "log-missing-1", **other})


def test_records_of_the_http_process(api: HttpBroker) -> None:
    queue = {"name": "log-imported", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    assert api("POST", "/definitions", {"queues": [queue]}).status in (200, 204)
    found = read(api, logger="leveret.http", text="definitions imported")[-1]
    assert (found["process"], found["user"]) == ("http", "guest")
    api("DELETE", "/queues/%2F/log-imported")


def test_the_answer_has_the_last_records_in_the_order_of_their_times(api: HttpBroker) -> None:
    for number in range(3):
        close_channel(api.process, f"log-ordered-{number}")
    wait_until(lambda: len(read(api, text="log-ordered")) == 3)
    assert ["log-ordered-1" in item["message"] for item in read(api, text="log-ordered", limit="2")] == [True, False]
    times = [item["time"] for item in read(api, limit="1000")]
    assert times == sorted(times)
    assert read(api, limit="0") == []


def test_a_stream_begins_with_the_past_and_continues(api: HttpBroker) -> None:
    for number in range(2):
        close_channel(api.process, f"log-past-{number}")
    wait_until(lambda: len(read(api, text="log-past")) == 2)
    with follow(api, text="LOG-PAST", limit="1") as stream:
        assert "log-past-1" in stream.until("record")["message"]
        close_channel(api.process, "log-other")
        close_channel(api.process, "log-past-2")
        assert "log-past-2" in stream.until("record")["message"]
        assert stream.last_id
    close_channel(api.process, "log-past-3")
    with follow(api, last_id=stream.last_id, text="log-past") as stream:
        assert "log-past-3" in stream.until("record")["message"]
    with follow(api, last_id="0-0.0", text="log-past", limit="1") as stream:
        assert [stream.next()[0] for _ in range(2)] == ["hello", "reset"]
        assert "log-past-3" in stream.until("record")["message"]


def test_administrators_alone_read_the_log(api: HttpBroker) -> None:
    for user in ("monitor", "maker", "manager", "operator"):
        assert api("GET", "/leveret/log", user=user).status == 401
        assert api("GET", "/leveret/log", user=user, headers={"Accept": "text/event-stream"}).status == 401
    assert api("GET", "/leveret/log", user="viewer").status == 200
    assert api("GET", "/leveret/log", user=None).status == 401


def test_a_role_does_not_give_access(api: HttpBroker) -> None:
    api("PUT", "/users/log-role", {"password": "log-role", "tags": "management"})
    api("PUT", "/leveret/roles/log-role", {"grants": [{"role": "administrator", "vhosts": ".*", "names": ".*"}]})
    assert api("GET", "/leveret/log", user="log-role").status == 401
    assert api("POST", "/leveret/operations/log.read", {}, user="log-role").status == 401
    api("DELETE", "/users/log-role")


def test_a_stream_ends_when_its_user_is_changed(api: HttpBroker) -> None:
    api("PUT", "/users/log-reader", {"password": "log-reader", "tags": "administrator"})
    with follow(api, "log-reader") as stream:
        assert stream.next()[0] == "hello"
        api("PUT", "/users/log-reader", {"password": "log-reader", "tags": "management"})
        assert "have changed" in stream.until("dropped")["reason"]
    api("DELETE", "/users/log-reader")


def test_the_number_of_streams_is_limited(api: HttpBroker) -> None:
    opened = []
    try:
        for _ in range(LOGS.of_user):
            context = follow(api, text="never")
            context.__enter__()
            opened.append(context)
        reply = api("GET", "/leveret/log", headers={"Accept": "text/event-stream"})
        assert reply.status == 429
        assert reply.json["reason"] == f"{LOGS.of_user} streams of the log of the user 'guest' are in progress, the maximum"
        assert api("GET", "/leveret/log").status == 200
    finally:
        for context in opened:
            context.__exit__(None, None, None)

    def can_follow() -> bool:
        with suppress(AssertionError), follow(api, text="never"):
            return True
        return False

    wait_until(can_follow, "the places of ended streams stay taken")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("level=loud", "invalid value of 'level'; expected one of debug, info, warning, error, critical"),
        ("connection=x", "invalid value of 'connection'; expected a number of at most 9007199254740992"),
        ("connection=99999999999999999999", "invalid value of 'connection'; expected a number of at most 9007199254740992"),
        ("limit=1001", "invalid value of 'limit'; expected a number of at most 1000"),
        ("limit=-1", "invalid value of 'limit'; expected a number of at most 1000"),
    ],
)
def test_invalid_conditions(api: HttpBroker, query: str, reason: str) -> None:
    reply = api("GET", f"/leveret/log?{query}")
    assert (reply.status, reply.json["reason"]) == (400, reason)


def test_secrets_are_not_in_the_log(api: HttpBroker) -> None:
    """Refused logins over all interfaces, a user with a password, and URIs with one."""
    secret = "s3cret-of-log"
    for protocol in ("0-9-1", "1.0"):
        url = api.process.url().replace("guest:guest@", f"guest:{secret}@")
        assert secret in url
        with pytest.raises(Error):
            sync.connect(url, protocol=protocol).close()
    assert api("GET", "/whoami", password=secret).status == 401
    assert api("GET", f"/whoami?token={secret}", user=None, headers={"Authorization": f"Bearer {secret}"}).status == 401
    assert api("POST", "/leveret/session", {"username": "guest", "password": secret}).status == 401
    api("PUT", "/users/log-secret", {"password": secret, "tags": ""})
    api("POST", "/definitions", {"users": [{"name": "log-secret-2", "password": secret, "tags": ["x"]}]})
    value = {"src-uri": f"amqp://u:{secret}@h.invalid", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "q"}
    api("PUT", "/parameters/shovel/%2F/log", {"value": value})
    for user in ("log-secret", "log-secret-2"):
        api("DELETE", f"/users/{user}")
    api("DELETE", "/parameters/shovel/%2F/log")
    close_channel(api.process, "log-after-secrets")
    wait_until(lambda: read(api, text="log-after-secrets"))
    assert read(api, text=secret, limit="1000") == []
    assert secret not in api.process.log()
