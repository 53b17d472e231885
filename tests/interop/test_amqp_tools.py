"""The command line tools of librabbitmq, as examples of programs that use this C library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import Broker

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

pytestmark = pytest.mark.skipif(shutil.which("amqp-publish") is None, reason="amqp-tools is not installed")


@pytest.fixture
def run(broker: Broker) -> Run:
    def run_tool(tool: str, *arguments: str, stdin: bytes = b"", code: int | None = 0, url: str | None = None,
                 timeout: float = 30) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
        done = subprocess.run(
            [f"amqp-{tool}", "--url", url or broker.url(), *arguments],
            input=stdin, capture_output=True, timeout=timeout, check=False)  # fmt: skip
        if code is not None:
            assert done.returncode == code, done.stdout + done.stderr
        return done

    return run_tool


def test_declare_publish_get_delete(run: Run, name: str) -> None:
    assert run("declare-queue", "--queue", name, "--durable").stdout.decode().strip() == name
    run("publish", "--routing-key", name, "--body", "first", "--persistent")
    run("publish", "--routing-key", name, stdin=b"from standard input")
    assert run("get", "--queue", name).stdout == b"first"
    assert run("get", "--queue", name).stdout == b"from standard input"
    assert run("get", "--queue", name, code=2).stdout == b""
    run("publish", "--routing-key", name, "--body", "left over")
    assert run("delete-queue", "--queue", name).stdout.decode().strip() == "1"


def test_publish_with_properties(run: Run, name: str) -> None:
    run("declare-queue", "--queue", name)
    run("publish", "--routing-key", name, "--body", "x", "--content-type", "text/plain", "--reply-to", "answers",
        "--header", "one: 1", "--header", "two: 2")  # fmt: skip
    assert run("get", "--queue", name).stdout == b"x"
    run("delete-queue", "--queue", name)


def test_line_by_line(run: Run, name: str) -> None:
    run("declare-queue", "--queue", name)
    run("publish", "--routing-key", name, "--line-buffered", stdin=b"a\nb\nc\n")
    assert [run("get", "--queue", name).stdout for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    run("delete-queue", "--queue", name)


def appending(out: Path) -> str:
    """A command that appends its input to a file."""
    script = out.with_name("append")
    script.write_text(f"#!/bin/sh\ncat >> '{out}'\n")
    script.chmod(0o755)
    return str(script)


def test_consume(run: Run, name: str, tmp_path: Path) -> None:
    """Runs a command for each message, which is acknowledged if the command succeeds."""
    run("declare-queue", "--queue", name)
    for number in range(5):
        run("publish", "--routing-key", name, "--body", f"{number};")
    out = tmp_path / "out"
    run("consume", "--queue", name, "--count", "5", "--prefetch-count", "2", appending(out))
    assert out.read_text() == "0;1;2;3;4;"
    assert run("delete-queue", "--queue", name).stdout.decode().strip() == "0"


def test_consume_without_acks_by_exchange(run: Run, broker: Broker, name: str, tmp_path: Path) -> None:
    """Consumes from a server-named queue that is bound to an exchange."""
    out = tmp_path / "out"
    consumer = subprocess.Popen(
        ["amqp-consume", "--url", broker.url(), "--exchange", "amq.topic", "--routing-key", f"{name}.*", "--count", "2",
         "--no-ack", appending(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        # It prints nothing when the queue is bound, so publish until it has received enough.
        for _ in range(200):
            if consumer.poll() is not None:
                break
            run("publish", "--exchange", "amq.topic", "--routing-key", f"{name}.key", "--body", "x")
            try:
                consumer.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        assert consumer.wait(10) == 0
        assert out.read_text() == "xx"
    finally:
        if consumer.poll() is None:
            consumer.kill()
        consumer.communicate()


def test_large_body(run: Run, name: str) -> None:
    body = bytes(range(256)) * 40960
    run("declare-queue", "--queue", name)
    run("publish", "--routing-key", name, stdin=body)
    assert run("get", "--queue", name).stdout == body
    run("delete-queue", "--queue", name)


def test_virtual_host(run: Run, broker: Broker, name: str) -> None:
    url = broker.url(vhost="interop")
    run("declare-queue", "--queue", name, url=url)
    run("publish", "--routing-key", name, "--body", "x", url=url)
    assert run("get", "--queue", name, url=url).stdout == b"x"
    run("delete-queue", "--queue", name, url=url)


@pytest.mark.parametrize("case", ["password", "vhost", "queue"])
def test_errors(run: Run, broker: Broker, name: str, case: str) -> None:
    if case == "password":
        done = run("get", "--queue", name, url=broker.url(password="wrong"), code=None)
    elif case == "vhost":
        done = run("get", "--queue", name, url=broker.url(vhost="missing"), code=None)
    else:
        done = run("get", "--queue", name, code=None)
        assert b"404" in done.stderr or b"no queue" in done.stderr or b"NOT_FOUND" in done.stderr
    assert done.returncode not in (0, None)
