"""Answers of hostile servers to the clients of the HTTP API."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from leveret.cli.failed import Failed
from leveret.cli.migration.source import Source
from leveret.management import http_endpoint
from leveret.management.control_client import CallFailed, NoBroker
from leveret.management.http_client import HttpControl

# Bytes that the client takes, in place of many.
LIMIT = 1 << 20
OK = b"HTTP/1.1 200 OK\r\n"


def endless(head: bytes, part: bytes) -> Iterator[bytes]:
    yield head
    while True:
        yield part


@contextmanager
def server(parts: Callable[[], Iterator[bytes]], waits: bool = True) -> Iterator[str]:
    """Serve an answer to each request, or connection, until the client closes it. Yield the URL."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    if waits:
                        connection.recv(1 << 16)
                    for part in parts():
                        connection.sendall(part)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # data that is not read would reset the connection
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


@pytest.mark.parametrize(
    ("head", "part", "reason"),
    [
        (OK + b"\r\n", b"x" * 65536, "more than 1 MiB"),
        (OK + b"Content-Length: 99999999999\r\n\r\n", b"x" * 65536, "more than 1 MiB"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n", "more than 1 MiB"),
        (OK, b"x: y\r\n", "more than 100 headers"),
        (OK + b"x: ", b"y" * 65536, "more than 65536 bytes"),
        (b"HTTP/1.1 200 ", b"y" * 65536, "more than 65536 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1" * 65536, "more than 65536 bytes"),
    ],
)
def test_endless_answers(monkeypatch: pytest.MonkeyPatch, head: bytes, part: bytes, reason: str) -> None:
    monkeypatch.setattr(http_endpoint, "MAX_ANSWER", LIMIT)
    with server(lambda: endless(head, part)) as url:
        with pytest.raises(NoBroker, match=reason):
            HttpControl(url).call("status", {}, timeout=60)
        with pytest.raises(Failed, match=reason):
            Source(url, None).definitions()


@pytest.mark.parametrize(
    ("sent", "spoken"),
    [(b"AMQP\x00\x00\x09\x01", "AMQP"), (b"SSH-2.0-x\r\n", "another protocol than HTTP"), (b"", "")],
)
def test_other_protocols(sent: bytes, spoken: str) -> None:
    with server(lambda: iter([sent])) as url:
        with pytest.raises(NoBroker, match=f"the server speaks {spoken};" if spoken else "without response") as caught:
            HttpControl(url).call("status", {}, timeout=60)
        assert "SSH" not in str(caught.value) and "\0" not in str(caught.value)
        with pytest.raises(Failed, match=spoken or "without response"):
            Source(url, None).definitions()


def test_broken_answers() -> None:
    short = OK + b"Content-Length: 9\r\n\r\n{}"
    with server(lambda: iter([short])) as url, pytest.raises(NoBroker, match="IncompleteRead"):
        HttpControl(url).call("status", {}, timeout=60)
    deep = b"[" * 100_000 + b"]" * 100_000
    with server(lambda: iter([OK + b"Content-Length: %d\r\n\r\n" % len(deep) + deep])) as url:
        with pytest.raises(CallFailed, match="answers with status 200"):
            HttpControl(url).call("status", {}, timeout=60)
        with pytest.raises(Failed, match="is not a management API"):
            Source(url, None).plugins()


def test_endless_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = b'{"items":[],"page_count":1000000000}'
    with server(lambda: iter([OK + b"Content-Length: %d\r\n\r\n" % len(empty) + empty])) as url:
        assert Source(url, None).queues() == []
    monkeypatch.setattr("leveret.cli.migration.source._MAX_QUEUES", 1)
    full = b'{"items":[{"vhost":"/","name":"a"},{"vhost":"/","name":"b"}],"page_count":1000000000}'
    answer = OK + b"Content-Length: %d\r\n\r\n" % len(full) + full
    with server(lambda: iter([answer])) as url, pytest.raises(Failed, match="more than 1 queues, the maximum"):
        Source(url, None).queues()


@pytest.mark.parametrize("head", [OK + b"\r\n", OK + b"Content-Encoding: gzip\r\n\r\n"])
def test_endless_answers_of_a_collector(head: bytes) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from leveret.management.telemetry.collector import MAX_ANSWER, make_session

    with server(lambda: endless(head, b"x" * 65536)) as url:
        assert len(make_session().post(url, b"", timeout=60).content) == MAX_ANSWER


def test_endless_answers_of_a_mail_server() -> None:
    aiosmtplib = pytest.importorskip("aiosmtplib")
    with server(lambda: endless(b"220-a\r\n", b"220-b\r\n" * 1000), waits=False) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(aiosmtplib.SMTPException, match="too long"):
            asyncio.run(aiosmtplib.SMTP(hostname="127.0.0.1", port=port, timeout=60).connect())
