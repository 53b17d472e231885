"""Clients that close the connection while they receive a large answer."""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leveret.management.control_client import call
from tests.management.http.client import HttpBroker, send
from tests.management.http.scrapes import metrics_port
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

QUEUES = 1500
PATHS = ("/metrics/per-object", "/api/queues")


@contextmanager
def start(directory: Path) -> Iterator[LeveretProcess]:
    """Run a broker with so many queues that lists exceed the buffers of sockets."""
    process = LeveretProcess(
        directory,
        config=basic_config() + "[management]\nport = 0\nmetrics_port = 0\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        for number in range(QUEUES):
            call(process.data_dir, "queues.add", {"name": f"cut-off-{number:060}"})
        assert send(metrics_port(process), "GET", "/metrics").status == 200
        yield process


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    with start(tmp_path_factory.mktemp("cut-off")) as running:
        yield running


def port_of(process: LeveretProcess, path: str) -> int:
    return metrics_port(process) if path.startswith("/metrics") else HttpBroker(process).port


def opened(process: LeveretProcess, path: str, encoding: str) -> socket.socket:
    """Return a connection on which an answer to a request begins to arrive."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port_of(process, path)))
    authorization = base64.b64encode(b"guest:guest").decode()
    headers = f"Host: localhost\r\nAuthorization: Basic {authorization}\r\nAccept-Encoding: {encoding}"
    head = f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_causes_no_error(process: LeveretProcess, path: str, encoding: str, resets: bool) -> None:
    before = len(process.log())
    for _ in range(3):
        with opened(process, path, encoding) as connection:
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: connections_to(port_of(process, path)) == 0, "the connections stay open")
    check_log(process, before)


def connections_to(port: int) -> int:
    """Return the number of connections to a port that the server has not closed: established, or closed by the client."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return sum(row[1].endswith(f":{port:04X}") and row[3] in ("01", "08") for row in rows)


def test_a_stop_does_not_wait_for_a_client_that_reads_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        before = len(process.log())
        connections = [opened(process, path, encoding) for path in PATHS for encoding in ("identity", "gzip")]
    for connection in connections:
        connection.close()
    check_log(process, before)


def check_log(process: LeveretProcess, before: int) -> None:
    process.check_log()
    assert [line for line in process.log()[before:].splitlines() if " error " in line or "uvicorn" in line] == []
