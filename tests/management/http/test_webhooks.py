"""Webhooks of alerts: what is delivered to a real server, and what is not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from leveret.management.http.webhooks import MAX_ATTEMPTS, MAX_PENDING, Webhooks
from tests.management.http.client import HttpBroker
from tests.management.http.conftest import USERS
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until


class Receiver(ThreadingHTTPServer):
    """A server that keeps the requests it gets.

    Attributes:
        answers: The next answers, as status and headers; without one it is 204.
        received: The paths and bodies of the requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alerts?team=a"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.headers["content-type"] == "application/json"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.received.append((self.path, body))
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[Callable[[], Receiver]]:
    """Returns a function that starts a receiver."""
    started: list[Receiver] = []

    def start() -> Receiver:
        receiver = Receiver()
        started.append(receiver)
        threading.Thread(target=receiver.serve_forever, args=(0.01,), daemon=True).start()
        return receiver

    yield start
    for receiver in started:
        receiver.shutdown()
        receiver.server_close()


def deliver(webhooks: Webhooks, is_done: Callable[[], bool]) -> None:
    """Run deliveries until a condition holds."""

    async def run() -> None:
        task = asyncio.create_task(webhooks.run())
        async with asyncio.timeout(30):
            while not is_done():
                await asyncio.sleep(0.005)
        task.cancel()

    asyncio.run(run())


def test_an_alert_is_sent_as_json(servers: Callable[[], Receiver]) -> None:
    receiver = servers()
    webhooks = Webhooks([receiver.url])
    webhooks.put(receiver.url, {"action": "raised"})
    webhooks.put(receiver.url, {"action": "cleared"})
    deliver(webhooks, lambda: len(receiver.received) == 2)
    assert receiver.received == [("/alerts?team=a", {"action": "raised"}), ("/alerts?team=a", {"action": "cleared"})]


def test_a_failed_delivery_is_repeated(servers: Callable[[], Receiver]) -> None:
    receiver = servers()
    receiver.answers = [(500, {}), (429, {}), (200, {})]
    webhooks = Webhooks([receiver.url], 0.01)
    webhooks.put(receiver.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == 4)
    assert [body["number"] for _, body in receiver.received] == [1, 1, 1, 2]


def test_attempts_end(servers: Callable[[], Receiver], caplog: pytest.LogCaptureFixture) -> None:
    receiver = servers()
    receiver.answers = [(503, {})] * MAX_ATTEMPTS
    webhooks = Webhooks([receiver.url], 0.001)
    webhooks.put(receiver.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == MAX_ATTEMPTS + 1)
    assert [body["number"] for _, body in receiver.received] == [1] * MAX_ATTEMPTS + [2]
    assert "status 503" in caplog.text and "team=a" not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(servers: Callable[[], Receiver], status: int) -> None:
    receiver, internal = servers(), servers()
    receiver.answers = [(status, {"Location": internal.url})]
    webhooks = Webhooks([receiver.url, internal.url], 0.001)
    webhooks.put(receiver.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == 2)
    assert [body["number"] for _, body in receiver.received] == [1, 2]
    assert internal.received == []


def test_a_url_that_is_not_allowed_is_not_called(servers: Callable[[], Receiver], caplog: pytest.LogCaptureFixture) -> None:
    receiver, internal = servers(), servers()
    webhooks = Webhooks([receiver.url])
    webhooks.put(internal.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == 1)
    assert internal.received == [] and "management.alert_webhooks" in caplog.text


def test_a_receiver_that_does_not_answer_delays_no_other(servers: Callable[[], Receiver]) -> None:
    receiver = servers()
    with Receiver() as silent:  # it accepts connections, but does not serve them
        webhooks = Webhooks([silent.url, receiver.url])
        webhooks.put(silent.url, {"number": 1})
        webhooks.put(receiver.url, {"number": 2})
        deliver(webhooks, lambda: len(receiver.received) == 1)


def test_the_number_of_deliveries_that_wait_is_limited(servers: Callable[[], Receiver]) -> None:
    receiver = servers()
    webhooks = Webhooks([receiver.url])
    for number in range(MAX_PENDING + 3):
        webhooks.put(receiver.url, {"number": number})
    deliver(webhooks, lambda: len(receiver.received) == MAX_PENDING)
    assert [body["number"] for _, body in receiver.received] == list(range(3, MAX_PENDING + 3))


def test_a_rule_with_a_webhook(servers: Callable[[], Receiver], tmp_path: Path) -> None:
    receiver, internal = servers(), servers()
    config = f'{basic_config()}{USERS}[management]\nport = 0\nalert_webhooks = ["{receiver.url}"]\n'
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        api = HttpBroker(process)
        assert api.get("/leveret/alert-webhooks", "maker") == [receiver.url]
        assert api("GET", "/leveret/alert-webhooks", user="monitor").status == 401
        rule = {"kind": "depth", "pattern": "^hooked$"}
        refused = api("PUT", "/leveret/alert-rules/hook", rule | {"webhook": internal.url})
        assert refused.status == 400 and "management.alert_webhooks" in refused.json["reason"]
        # The parameter of a rule can be set without the rule's checks.
        value = {"value": rule | {"webhook": internal.url}}
        assert api("PUT", "/global-parameters/alert.bypass", value, user="maker").status == 201
        assert api("PUT", "/leveret/alert-rules/hook", rule | {"webhook": receiver.url}, user="maker").status == 201
        for user, shown in (("monitor", {""}), ("maker", {receiver.url, internal.url})):
            assert {row["webhook"] for row in api.get("/leveret/alert-rules", user)} == shown
        assert api("PUT", "/queues/%2F/hooked", {"durable": True}).status == 201
        message = {"routing_key": "hooked", "payload": "x", "payload_encoding": "string", "properties": {}}
        api("POST", "/exchanges/%2F/amq.default/publish", message)
        wait_until(lambda: receiver.received, "the alert to be delivered")
        api("DELETE", "/queues/%2F/hooked")
        wait_until(lambda: len(receiver.received) == 2, "the end of the alert to be delivered")
    (_, raised), (_, cleared) = receiver.received
    assert (raised["action"], raised["rule"], raised["queue"], raised["value"]) == ("raised", "hook", "hooked", 1)
    assert (cleared["action"], cleared["rule"], cleared["queue"]) == ("cleared", "hook", "hooked")
    assert internal.received == []
