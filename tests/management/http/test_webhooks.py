"""Webhooks of alerts: what is delivered to a real server, and what is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest

from leveret.config import WebhookConfig
from leveret.management.http.webhooks import MAX_ATTEMPTS, MAX_PENDING, RETRY_DELAY, Webhooks
from tests.management.http.brokers import USERS
from tests.management.http.client import HttpBroker
from tests.management.http.test_process import child_of
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until


class Receiver(ThreadingHTTPServer):
    """A server that keeps the requests it gets.

    Attributes:
        answers: The next answers, as status and headers; without one it is 204.
        received: The paths and bodies of the requests.
        tokens: The header `x-token` of each of them.
    """

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[tuple[str, Any]] = []
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_port}/alerts?team=a"


class Start(Protocol):
    """Starts a receiver."""

    def __call__(self, context: ssl.SSLContext | None = None) -> Receiver: ...


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.headers["content-type"] == "application/json"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.received.append((self.path, body))
        self.server.tokens.append(self.headers["x-token"])
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[Start]:
    """Returns a function that starts a receiver."""
    started: list[Receiver] = []

    def start(context: ssl.SSLContext | None = None) -> Receiver:
        receiver = Receiver(context)
        started.append(receiver)
        threading.Thread(target=receiver.serve_forever, args=(0.01,), daemon=True).start()
        return receiver

    yield start
    for receiver in started:
        receiver.shutdown()
        receiver.server_close()


def allowing(*receivers: Receiver, delay: float = RETRY_DELAY) -> Webhooks:
    return Webhooks([WebhookConfig(url=receiver.url) for receiver in receivers], retry_delay=delay)


def deliver(webhooks: Webhooks, is_done: Callable[[], bool]) -> None:
    """Run deliveries until a condition holds."""

    async def run() -> None:
        await webhooks.open()
        task = asyncio.create_task(webhooks.run())
        async with asyncio.timeout(60):
            while not is_done():
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await webhooks.close()

    asyncio.run(run())


def test_an_alert_is_sent_as_json(servers: Start) -> None:
    receiver = servers()
    webhooks = allowing(receiver)
    webhooks.put(receiver.url, {"action": "raised"})
    webhooks.put(receiver.url, {"action": "cleared"})
    deliver(webhooks, lambda: len(receiver.received) == 2)
    assert receiver.received == [("/alerts?team=a", {"action": "raised"}), ("/alerts?team=a", {"action": "cleared"})]


def test_a_failed_delivery_is_repeated(servers: Start) -> None:
    receiver = servers()
    receiver.answers = [(500, {}), (429, {}), (200, {})]
    webhooks = allowing(receiver, delay=0.01)
    webhooks.put(receiver.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == 4)
    assert [body["number"] for _, body in receiver.received] == [1, 1, 1, 2]


def test_attempts_end(servers: Start, caplog: pytest.LogCaptureFixture) -> None:
    receiver = servers()
    receiver.answers = [(503, {})] * MAX_ATTEMPTS
    webhooks = allowing(receiver, delay=0.001)
    webhooks.put(receiver.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == MAX_ATTEMPTS + 1)
    assert [body["number"] for _, body in receiver.received] == [1] * MAX_ATTEMPTS + [2]
    assert "status 503" in caplog.text and "team=a" not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(servers: Start, status: int) -> None:
    receiver, internal = servers(), servers()
    receiver.answers = [(status, {"Location": internal.url})]
    webhooks = allowing(receiver, internal, delay=0.001)
    webhooks.put(receiver.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == 2)
    assert [body["number"] for _, body in receiver.received] == [1, 2]
    assert internal.received == []


def test_a_url_that_is_not_allowed_is_not_called(servers: Start, caplog: pytest.LogCaptureFixture) -> None:
    receiver, internal = servers(), servers()
    webhooks = allowing(receiver)
    webhooks.put(internal.url, {"number": 1})
    webhooks.put(receiver.url, {"number": 2})
    deliver(webhooks, lambda: len(receiver.received) == 1)
    assert internal.received == [] and "management.alert_webhooks" in caplog.text


def test_a_receiver_that_does_not_answer_delays_no_other(servers: Start) -> None:
    receiver = servers()
    with Receiver() as silent:  # it accepts connections, but does not serve them
        webhooks = allowing(silent, receiver)
        webhooks.put(silent.url, {"number": 1})
        webhooks.put(receiver.url, {"number": 2})
        deliver(webhooks, lambda: len(receiver.received) == 1)


def test_the_number_of_deliveries_that_wait_is_limited(servers: Start) -> None:
    receiver = servers()
    webhooks = allowing(receiver)
    for number in range(MAX_PENDING + 3):
        webhooks.put(receiver.url, {"number": number})
    deliver(webhooks, lambda: len(receiver.received) == MAX_PENDING)
    assert [body["number"] for _, body in receiver.received] == list(range(3, MAX_PENDING + 3))


def test_a_receiver_with_a_ca_and_headers(servers: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    receiver = servers(context)
    untrusting = allowing(receiver, delay=0.001)
    untrusting.put(receiver.url, {"number": 1})
    deliver(untrusting, lambda: untrusting.deliveries()[0].failed == 1)
    assert "certificate" in untrusting.deliveries()[0].error.lower()
    headers = tmp_path / "headers"
    headers.write_text("# a token\nX-Token: first secret\n\n")
    config = WebhookConfig(url=receiver.url, ca=str(authority.path), headers_file=str(headers))
    webhooks = Webhooks([config], retry_delay=0.001)
    webhooks.put(receiver.url, {"number": 2})

    def is_done() -> bool:
        if receiver.tokens == ["first secret"]:
            headers.write_text("X-Token: second\n")  # read for each request
            receiver.tokens.append(None)
            webhooks.put(receiver.url, {"number": 3})
        return webhooks.deliveries()[0].delivered == 2

    deliver(webhooks, is_done)
    assert [body["number"] for _, body in receiver.received] == [2, 3]
    assert receiver.tokens == ["first secret", None, "second"]


@pytest.mark.parametrize(
    "content",
    ["X-Token secret", "X-Token: sec\x01ret", "Host: secret", "content-length: 5", ": secret", "x" * 17000],
)
def test_headers_that_are_refused(servers: Start, tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    receiver = servers()
    headers = tmp_path / "headers"
    headers.write_text(f"X-Good: yes\n{content}\n")
    webhooks = Webhooks([WebhookConfig(url=receiver.url, headers_file=str(headers))], retry_delay=0.001)
    webhooks.put(receiver.url, {"number": 1})
    deliver(webhooks, lambda: webhooks.deliveries()[0].failed == 1)
    error = webhooks.deliveries()[0].error
    assert str(headers) in error and "expected" in error and "secret" not in error + caplog.text
    assert receiver.received == []


def test_a_receiver_in_another_network_is_not_called(servers: Start) -> None:
    receiver = servers()
    url = receiver.url.replace("127.0.0.1", "localhost")
    elsewhere = Webhooks([WebhookConfig(url=url, networks=["10.0.0.0/8", "fd00::/8"])], retry_delay=0.001)
    elsewhere.put(url, {"number": 1})
    deliver(elsewhere, lambda: elsewhere.deliveries()[0].failed == 1)
    assert "127.0.0.1" in elsewhere.deliveries()[0].error and "networks" in elsewhere.deliveries()[0].error
    here = Webhooks([WebhookConfig(url=url, networks=["10.0.0.0/8", "127.0.0.0/8"])])
    here.put(url, {"number": 2})
    deliver(here, lambda: here.deliveries()[0].delivered == 1)
    assert [body["number"] for _, body in receiver.received] == [2]


def test_the_address_that_was_checked_is_the_one_that_is_called(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = servers()
    url = receiver.url.replace("127.0.0.1", "rebound.example.com")
    answers = ["127.0.0.1", "127.0.0.2", "127.0.0.2"]  # only the first is allowed

    def resolve(host: object, port: object, *arguments: object, **options: object) -> Any:
        known = host if str(host).startswith("127.") else answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    webhooks = Webhooks([WebhookConfig(url=url, networks=["127.0.0.1/32"])], retry_delay=0.001)
    webhooks.put(url, {"number": 1})
    deliver(webhooks, lambda: webhooks.deliveries()[0].delivered == 1)
    assert len(answers) == 2 and [body["number"] for _, body in receiver.received] == [1]
    answers += ["127.0.0.2"] * MAX_ATTEMPTS
    rebound = Webhooks([WebhookConfig(url=url, networks=["127.0.0.1/32"])], retry_delay=0.001)
    rebound.put(url, {"number": 2})
    deliver(rebound, lambda: rebound.deliveries()[0].failed == 1)
    assert len(receiver.received) == 1


def test_deliveries_that_wait_survive_a_restart(servers: Start, tmp_path: Path) -> None:
    receiver, other = servers(), servers()
    path = tmp_path / "webhooks.sqlite"
    configs = [WebhookConfig(url=receiver.url), WebhookConfig(url=other.url)]
    receiver.answers = [(503, {})]
    before = Webhooks(configs, path, 3600)

    async def put() -> None:
        await before.open()
        for number in range(MAX_PENDING + 2):
            before.put(receiver.url, {"number": number})
        before.put(other.url, {"number": -1})
        task = asyncio.create_task(before.run())
        while not (other.received and receiver.received):
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await before.close()

    asyncio.run(put())
    assert (path.stat().st_mode & 0o777) == 0o600
    # The other URL is no longer allowed, and its delivery was made.
    after = Webhooks(configs[:1], path)
    deliver(after, lambda: after.deliveries()[0].delivered == MAX_PENDING)
    assert [body["number"] for _, body in receiver.received] == [2, *range(2, MAX_PENDING + 2)]
    assert len(other.received) == 1
    again = Webhooks(configs, path)
    again.put(other.url, {"number": -2})
    deliver(again, lambda: again.deliveries()[1].delivered == 1)
    assert len(receiver.received) == MAX_PENDING + 1


def test_deliveries_in_a_file_of_version_1_are_made(servers: Start, tmp_path: Path) -> None:
    receiver = servers()
    path = tmp_path / "webhooks.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE deliveries (id INTEGER PRIMARY KEY, url TEXT NOT NULL, body BLOB NOT NULL)")
        database.execute("INSERT INTO deliveries VALUES (7, ?, ?)", (receiver.url, b'{"number": 7}'))
        database.execute("PRAGMA user_version = 1")
    webhooks = Webhooks([WebhookConfig(url=receiver.url)], path)
    deliver(webhooks, lambda: webhooks.deliveries()[0].delivered == 1)
    assert [body["number"] for _, body in receiver.received] == [7]


def test_deliveries_to_a_url_that_is_no_longer_allowed_are_forgotten(servers: Start, tmp_path: Path) -> None:
    receiver, other = servers(), servers()
    path = tmp_path / "webhooks.sqlite"

    async def put() -> None:
        before = Webhooks([WebhookConfig(url=receiver.url)], path)
        await before.open()
        before.put(receiver.url, {"number": 1})
        await before.close()

    asyncio.run(put())
    for allowed in (other, receiver):
        webhooks = Webhooks([WebhookConfig(url=allowed.url), WebhookConfig(url=f"{allowed.url}&end")], path)

        async def end(webhooks: Webhooks = webhooks, url: str = f"{allowed.url}&end") -> None:
            await webhooks.open()
            assert webhooks.deliveries()[0].pending == 0
            await webhooks.close()

        asyncio.run(end())


@pytest.mark.parametrize("content", [b"no database", b""])
def test_a_damaged_file_of_deliveries_is_replaced(servers: Start, tmp_path: Path, content: bytes) -> None:
    receiver = servers()
    path = tmp_path / "webhooks.sqlite"
    path.write_bytes(content * 1000)
    webhooks = Webhooks([WebhookConfig(url=receiver.url)], path)
    deliver(webhooks, lambda: True)
    webhooks = Webhooks([WebhookConfig(url=receiver.url)], path)

    async def put() -> None:
        await webhooks.open()
        webhooks.put(receiver.url, {"number": 1})
        await webhooks.close()

    asyncio.run(put())
    after = Webhooks([WebhookConfig(url=receiver.url)], path)
    deliver(after, lambda: after.deliveries()[0].delivered == 1)


def test_without_a_file_of_deliveries_alerts_are_still_sent(
    servers: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = servers()
    webhooks = Webhooks([WebhookConfig(url=receiver.url)], tmp_path / "missing" / "webhooks.sqlite")
    webhooks.put(receiver.url, {"number": 1})
    deliver(webhooks, lambda: webhooks.deliveries()[0].delivered == 1)
    assert "do not survive a restart" in caplog.text


@pytest.mark.slow
def test_an_alert_that_waits_is_sent_after_the_http_process_was_killed(servers: Start, tmp_path: Path) -> None:
    receiver = servers()
    receiver.answers = [(503, {})] * 100
    headers = tmp_path / "headers"
    headers.write_text("X-Token: secret\n")
    webhook = f'[management.webhooks.ops]\nurl = "{receiver.url}"\nheaders_file = "{headers}"\n'
    process = LeveretProcess(
        tmp_path,
        config=f"{basic_config()}[management]\nport = 0\n{webhook}",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        api = HttpBroker(process)
        assert api.get("/leveret/alert-webhooks") == [receiver.url]
        rule = {"kind": "depth", "pattern": "^hooked$", "webhook": receiver.url}
        assert api("PUT", "/leveret/alert-rules/hook", rule).status == 201
        assert api("PUT", "/queues/%2F/hooked", {"durable": True}).status == 201
        message = {"routing_key": "hooked", "payload": "x", "payload_encoding": "string", "properties": {}}
        api("POST", "/exchanges/%2F/amq.default/publish", message)
        wait_until(lambda: receiver.received, "the first attempt")
        assert api("DELETE", "/queues/%2F/hooked").status == 204
        wait_until(lambda: api.get("/leveret/alert-deliveries")[0]["pending"] == 2, "the end of the alert to wait")
        [(_, first)] = receiver.received[:1]
        os.kill(child_of(process), signal.SIGKILL)
        receiver.answers = []
        wait_until(lambda: [body for _, body in receiver.received if body["action"] == "cleared"], "the deliveries")
        assert [body["action"] for _, body in receiver.received[-2:]] == ["raised", "cleared"]
        assert receiver.received[-2][1] == first and set(receiver.tokens) == {"secret"}


def test_a_rule_with_a_webhook(servers: Start, tmp_path: Path) -> None:
    receiver, internal = servers(), servers()
    config = f'{basic_config()}{USERS}[management]\nport = 0\nalert_webhooks = ["{receiver.url}"]\n'
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        api = HttpBroker(process)
        assert api.get("/leveret/alert-webhooks", "maker") == [receiver.url]
        assert api("GET", "/leveret/alert-webhooks", user="monitor").status == 401
        rule = {"kind": "depth", "vhost": "/", "pattern": "^hooked$"}
        refused = api("PUT", "/leveret/alert-rules/hook", rule | {"webhook": internal.url})
        assert refused.status == 400 and "management.alert_webhooks" in refused.json["reason"]
        # Administrators can set the parameter of a rule without the rule's checks.
        value = {"value": rule | {"webhook": internal.url}}
        assert api("PUT", "/global-parameters/alert.bypass", value).status == 201
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
