"""The log of `leveret serve` as JSON."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pika
import pika.credentials
import pika.exceptions
import pytest

from leveret import sync
from leveret.client import ConnectionLost
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("the log")
    directory = tmp_path_factory.mktemp("log")
    with LeveretProcess(directory, environment={"LEVERET_SERVER__LOG_FORMAT": "json"}).start() as process:
        yield process


def events(process: LeveretProcess) -> list[dict[str, Any]]:
    """Return all events. Every complete line is one."""
    return [json.loads(line) for line in process.log().splitlines(keepends=True) if line.endswith("\n")]


def wait_for(process: LeveretProcess, text: str, **fields: object) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next(
            (event for event in events(process) if text in event["message"] and fields.items() <= event.items()),
            None,
        )

    return wait_until(found, lambda: f"no event with {text!r} and {fields} in {process.log()}")


def test_every_line_is_an_event(process: LeveretProcess) -> None:
    ready = wait_for(process, "ready in")
    assert set(ready) == {"time", "level", "logger", "message"}
    assert (ready["level"], ready["logger"]) == ("info", "leveret.serve")


@pytest.mark.parametrize("protocol", ["0-9-1", "0-9", "1.0"])
def test_a_lost_connection_has_its_fields(process: LeveretProcess, protocol: str) -> None:
    before = len(events(process))
    proxy = Proxy(process)
    connection = sync.connect(proxy.url(vhost="interop"), protocol=protocol)
    address, port = proxy.pairs[0].server.getsockname()[:2]
    proxy.stop()

    def lost() -> dict[str, Any] | None:
        return next((event for event in events(process)[before:] if "connection lost" in event["message"]), None)

    event = wait_until(lost, "the lost connection")
    with contextlib.suppress(ConnectionLost):
        connection.close()
    assert (event["user"], event["vhost"], event["level"]) == ("guest", "interop", "warning")
    assert event["peer"] == f"{address}:{port}" and isinstance(event["connection"], int)
    assert event["message"].startswith(event["peer"])


def test_a_refused_login_has_no_vhost(process: LeveretProcess) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        credentials = pika.credentials.PlainCredentials("guest", "wrong")
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.port, credentials=credentials))
    event = wait_for(process, "login refused")
    assert event["connection"] != 0 and event["peer"].startswith("127.0.0.1:") and "vhost" not in event


def test_input_that_is_no_protocol(process: LeveretProcess) -> None:
    with socket.create_connection(("127.0.0.1", process.port)) as client:
        client.sendall(b"nonsense")
        host, port = client.getsockname()[:2]
        event = wait_for(process, "not a protocol header", peer=f"{host}:{port}")
    assert event["logger"] == "leveret.server" and "connection" not in event
