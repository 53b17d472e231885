"""Requests for other hosts than the broker, as pages with a name that resolves to its address send them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.management.http.hosts import REPORT_INTERVAL, Refusals
from tests.management.http.client import HttpBroker, send
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until

MACHINE = socket.gethostname()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    leveret_only("the HTTP API")
    settings = '[management]\nport = 0\nmetrics_port = 0\nhosts = ["Console.example.com"]\n'
    directory = tmp_path_factory.mktemp("hosts")
    process = LeveretProcess(
        directory, config=basic_config() + settings, environment={"LEVERET_MANAGEMENT__ENABLED": "true"}
    )
    with process.start():
        yield HttpBroker(process)


@pytest.fixture(scope="module")
def metrics_port(broker: HttpBroker) -> int:
    ready = json.loads((broker.process.directory / "ready.json").read_text("utf-8"))
    found = re.search(r":(\d+)/metrics", ready["metrics"][0])
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:1", "localhost.", "a.localhost:80", "127.0.0.1", "127.0.0.1:99", "10.1.2.3", "[::1]",
        "[2001:db8::1]:15672", "console.example.com", "CONSOLE.example.com:8443", "console.example.com.", MACHINE,
        MACHINE.partition(".")[0].upper(), "",
    ],
)  # fmt: skip
def test_hosts_of_the_broker(broker: HttpBroker, metrics_port: int, host: str) -> None:
    headers = {"Host": host}
    assert broker("GET", "/whoami", headers=headers).status == 200
    assert send(broker.port, "GET", "/", headers=headers).status == 200
    assert send(metrics_port, "GET", "/metrics", headers=headers).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:1234", "localhost.evil.example", "127.0.0.1.evil.example", "console.example.com.evil.example",
        "xconsole.example.com", "notlocalhost", f"{MACHINE}.evil.example", "[evil.example]", "[::1].evil.example", "0x7f.1",
        "evil.example:127.0.0.1", "\xe4",
    ],
)  # fmt: skip
def test_other_hosts(broker: HttpBroker, metrics_port: int, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}", "X-Forwarded-Host": "localhost"}
    reply = broker("PUT", "/queues/%2F/evil", {}, headers=headers)
    assert (reply.status, reply.json["error"]) == (421, "misdirected_request")
    assert "is not a known name of this broker" in reply.json["reason"] and "management.hosts" in reply.json["reason"]
    for port, path in ((broker.port, "/"), (broker.port, "/api/auth"), (metrics_port, "/metrics")):
        assert send(port, "GET", path, headers=headers).status == 421
    assert broker("GET", "/queues/%2F/evil").status == 404


def test_requests_without_a_host(broker: HttpBroker) -> None:
    """Health checks of load balancers send HTTP/1.0."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
        connection.sendall(b"GET /api/auth HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_all_hosts(tmp_path: Path) -> None:
    leveret_only("the HTTP API")
    settings = '[management]\nport = 0\nhosts = ["*"]\n'
    process = LeveretProcess(
        tmp_path, config=basic_config() + settings, environment={"LEVERET_MANAGEMENT__ENABLED": "true"}
    )
    with process.start():
        assert HttpBroker(process)("GET", "/whoami", headers={"Host": "any.example"}).status == 200


def test_malformed_requests_are_logged_with_their_address(broker: HttpBroker) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
            connection.sendall(b"\x16\x03\x01\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 400"
    log = broker.process.log_path
    wait_until(lambda: "refused requests: invalid HTTP from 127.0.0.1" in log.read_text("utf-8"))
    assert "Invalid HTTP request received" not in log.read_text("utf-8")


def test_refusals_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(3):
        refusals.note(("10.0.0.1", 1), "reason")
    now[0] += REPORT_INTERVAL
    refusals.note(("10.0.0.2", 1), "reason")
    assert [record.getMessage() for record in caplog.records] == [
        "refused requests: reason from 10.0.0.1, 1 times since the last report",
        "refused requests: reason from 10.0.0.2, 3 times since the last report",
    ]
