"""publish, consume, get and purge as processes with pipes, against real brokers."""

from __future__ import annotations

import array
import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.cli.program import LIMIT, Program, on_terminal
from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.polling import wait_until
from tests.support.proxy import Proxy


def ready(channel: BlockingChannel, queue: str) -> int:
    """Return the number of messages in a queue."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def wait_ready(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait for this many messages: those of a channel are requeued when the broker notices its end."""
    wait_until(
        lambda: ready(channel, queue) == count,
        lambda: f"{ready(channel, queue)} messages wait in the queue, {count} are expected",
    )


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Remove all messages of the queue."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def fill(channel: BlockingChannel, queue: str, count: int, size: int = 0) -> list[bytes]:
    """Messages with numbers in them."""
    made = [b"%d" % number + b"." * size for number in range(count)]
    channel.confirm_delivery()
    for body in made:
        channel.basic_publish("", queue, body)
    return made


def until_readable(process: subprocess.Popen[bytes], octets: int) -> None:
    """Wait until the output pipe has this many bytes."""
    assert process.stdout is not None
    output, waiting = process.stdout.fileno(), array.array("i", [0])

    def readable() -> bool:
        assert process.poll() is None
        fcntl.ioctl(output, termios.FIONREAD, waiting)
        return waiting[0] >= octets

    wait_until(readable, lambda: f"{waiting[0]} octets wait")


# Publishing


def test_lines_of_standard_input(program: Program, channel: BlockingChannel, queue: str) -> None:
    done = program.run("publish", queue, input=b"one\n\n\xff\x00 three\r\nlast")
    assert done.code == 0, done.err
    assert done.err.startswith("4 messages confirmed in ")
    assert (done.out, bodies(channel, queue)) == (b"", [b"one", b"", b"\xff\x00 three\r", b"last"])


def test_arguments_and_files(program: Program, channel: BlockingChannel, queue: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2\n")
    second.write_bytes(b"3\n")
    program.ok(
        "publish",
        queue,
        "a",
        "b",
        "--file",
        str(first),
        "--file",
        "-",
        "--file",
        str(second),
        "--count",
        "2",
        input=b"in\n",
    )
    assert bodies(channel, queue) == [b"a", b"a", b"b", b"b", b"1", b"1", b"2", b"2", b"in", b"in", b"3", b"3"]
    assert program.ok("publish", queue, "--quiet", input=b"") == b""
    assert ready(channel, queue) == 0


def test_a_line_longer_than_every_buffer(program: Program, channel: BlockingChannel, queue: str) -> None:
    line = os.urandom(700_000).replace(b"\n", b"")
    program.ok("publish", queue, input=b"before\n" + line + b"\nafter")
    assert bodies(channel, queue) == [b"before", line, b"after"]


def test_raw_bodies_there_and_back(program: Program, queue: str, tmp_path: Path) -> None:
    sent = [os.urandom(300_000), b"", b"a\nb\n"]
    for number, body in enumerate(sent):
        (tmp_path / str(number)).write_bytes(body)
    files = [word for number in range(3) for word in ("--file", str(tmp_path / str(number)))]
    program.ok("publish", queue, "--format", "raw", *files)
    program.ok("publish", queue, "--format", "raw", input=b"x\ny")
    directory = tmp_path / "out"
    directory.mkdir()
    (directory / "00000004").write_bytes(b"was here")
    program.ok("consume", queue, "--count", "3", "--output-dir", str(directory))
    assert [path.name for path in sorted(directory.iterdir())] == ["00000004", "00000005", "00000006", "00000007"]
    assert [path.read_bytes() for path in sorted(directory.iterdir())] == [b"was here", *sent]
    assert program.ok("get", queue, "--format", "raw") == b"x\ny"


def test_properties_by_option(program: Program, channel: BlockingChannel, queue: str) -> None:
    program.ok(
        "publish",
        queue,
        "body",
        "--header",
        "n=7",
        "--header",
        "t=text",
        "--header",
        'l=[1, {"a": true}]',
        "--content-type",
        "text/plain",
        "--content-encoding",
        "gzip",
        "--priority",
        "3",
        "--expiration",
        "60000",
        "--correlation-id",
        "c",
        "--reply-to",
        "r",
        "--message-id",
        "m",
        "--timestamp",
        "2026-01-02T03:04:05Z",
        "--type",
        "t",
        "--user-id",
        "guest",
        "--app-id",
        "a",
        "--transient",
    )
    _, properties, _ = channel.basic_get(queue, auto_ack=True)
    assert properties.headers == {"n": 7, "t": "text", "l": [1, {"a": True}]}
    assert {name: value for name, value in vars(properties).items() if name != "headers" and value is not None} == {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "priority": 3,
        "expiration": "60000",
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1767323045,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "delivery_mode": 1,
    }


def test_messages_are_persistent_by_default(program: Program, channel: BlockingChannel, queue: str) -> None:
    program.ok("publish", queue, "a")
    program.ok("publish", queue, "--format", "json", input=b'{"properties": {"delivery_mode": 1}}\n{}\n')
    program.ok("publish", queue, "--persistent", "--format", "json", '{"properties": {"delivery_mode": 1}}')
    assert [channel.basic_get(queue, auto_ack=True)[1].delivery_mode for _ in range(4)] == [2, 1, 2, 2]


def test_json_there_and_back(program: Program, channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish(
        "",
        queue,
        b"\xff\x00",
        pika.BasicProperties(
            content_type="x/y",
            priority=5,
            timestamp=1767323045,
            expiration="60000",
            delivery_mode=1,
            headers={"octets": b"text", "table": {"a": [1, None]}, "long": 2**40},
        ),
    )
    channel.basic_publish("", queue, "ü\n".encode())
    out = program.ok("consume", queue, "--count", "2", "--format", "json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert first == {
        "exchange": "",
        "routing_key": queue,
        "redelivered": False,
        "properties": {
            "content_type": "x/y",
            "priority": 5,
            "timestamp": "2026-01-02T03:04:05+00:00",
            "expiration": 60000,
            "delivery_mode": 1,
        },
        "headers": {"octets": {"!bytes": "dGV4dA=="}, "table": {"a": [1, None]}, "long": 2**40},
        "body": base64.b64encode(b"\xff\x00").decode(),
        "encoding": "base64",
    }
    assert (second["body"], second["encoding"], second["headers"]) == ("ü\n", "text", {})
    # publish reads the output of consume.
    program.ok("publish", "--format", "json", input=out)
    again = program.ok("get", queue, "--count", "2", "--format", "json")
    records = [json.loads(line) for line in again.splitlines()]
    records[1]["properties"].pop("delivery_mode")
    assert records == [first, second]


def test_the_command_line_wins_over_the_json(program: Program, channel: BlockingChannel, queue: str) -> None:
    record = {
        "exchange": "nowhere",
        "routing_key": "nowhere",
        "body": "x",
        "headers": {"a": 1, "b": 1},
        "properties": {"type": "theirs", "app_id": "theirs"},
    }
    program.ok("publish", queue, "--format", "json", "--header", "b=2", "--type", "ours", json.dumps(record))
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (body, properties.headers, properties.type, properties.app_id) == (b"x", {"a": 1, "b": 2}, "ours", "theirs")


def test_invalid_messages(program: Program, channel: BlockingChannel, queue: str, tmp_path: Path) -> None:
    for line, said in (
        (b"{", "line 3: invalid JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"bdy": 1}', "unknown key 'bdy'"),
        (b'{"body": 1}', "body: expected a string"),
        (b'{"properties": {"x": 1}}', "properties: unknown property 'x'"),
        (b'{"body": "?", "encoding": "base64"}', "invalid base64"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"headers": {"a": {"!bytes": "?"}}}', "headers: a: !bytes"),
        (b'{"properties": {"priority": 256}}', "priority: 256"),
    ):
        done = program.run("publish", queue, "--format", "json", input=b'{"body": "1"}\n\n' + line + b'\n{"body": "4"}\n')
        assert (done.code, bodies(channel, queue)) == (2, [b"1"]), done.err
        assert said in done.err
        assert done.err.count("\n") == 1
        assert "(1 message" in done.err
    done = program.run("publish", queue, "--header", f"{'n' * 256}=1", "body")
    assert (done.code, "headers" in done.err) == (2, True)
    assert program.run("publish", queue, "--file", str(tmp_path / "none")).code == 2
    assert program.run("publish", "hello", "--exchange", "").code == 1  # nowhere: there is no routing key
    assert program.run("publish").code == 2
    assert ready(channel, queue) == 0


def test_exchanges(program: Program, channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"{queue}.#")
    program.ok("publish", "--exchange", "amq.topic", "--routing-key", f"{queue}.a", "one", "two")
    program.ok(
        "publish", "--exchange", "amq.topic", "--format", "json", json.dumps({"body": "three", "routing_key": f"{queue}.b"})
    )
    program.ok("publish", "--format", "json", json.dumps({"body": "5", "routing_key": queue}), "--count", "2")
    program.ok(
        "publish",
        "--format",
        "json",
        input=json.dumps({"body": "4", "exchange": "amq.topic", "routing_key": f"{queue}.c"}).encode(),
    )
    assert bodies(channel, queue) == [b"one", b"two", b"three", b"5", b"5", b"4"]
    done = program.run("publish", "--exchange", queue, "--routing-key", "x", "hello")
    assert (done.code, "404" in done.err, done.err.count("\n")) == (4, True, 1)


def test_messages_without_a_queue(program: Program, name: str) -> None:
    done = program.run("publish", name, "1", "2", "3")
    assert done.code == 1
    assert "NO_ROUTE" in done.err
    assert "0 messages confirmed" in done.err
    assert "3 refused" in done.err
    assert program.run("publish", name, "hello", "--no-mandatory").code == 0
    assert program.run("publish", "--routing-key", name, "hello").code == 1
    assert program.run("publish", "--exchange", "amq.topic", "hello").code == 0
    assert program.run("publish", "--exchange", "amq.topic", "--routing-key", name, "hello", "--mandatory").code == 1


def test_messages_that_are_refused(program: Program, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    done = program.run("publish", name, *"abcdefgh", "--window", "1")
    assert done.code == 1
    taken = bodies(channel, name)
    assert f"{len(taken)} messages confirmed" in done.err
    assert f"{8 - len(taken)} refused" in done.err
    assert taken[:2] == [b"a", b"b"]
    channel.queue_delete(name)


def test_typed_lines_are_published_at_once_and_ctrl_c_ends(program: Program, channel: BlockingChannel, queue: str) -> None:
    with program.begin("publish", queue) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhal")
        process.stdin.flush()
        wait_ready(channel, queue, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        assert process.stderr is not None
        assert process.stderr.read().startswith(b"interrupted: 2 messages confirmed")
    assert bodies(channel, queue) == [b"one", b"two"]


def test_a_rate(program: Program, channel: BlockingChannel, queue: str) -> None:
    begun = time.monotonic()
    program.ok("publish", queue, "x", "--count", "20", "--rate", "50")
    assert time.monotonic() - begun > 19 / 50
    assert ready(channel, queue) == 20


def test_a_lost_connection_loses_nothing(server: Broker, program: Program, channel: BlockingChannel, queue: str) -> None:
    proxy = Proxy(server)
    taken: list[bytes] = []
    with program.begin("publish", queue, url=proxy.url(query="reconnect_delay=0.01")) as process:
        assert process.stdin is not None
        for number in range(5):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            found = bodies(channel, queue)
            while b"%d" % number not in found:
                assert process.poll() is None
                found += bodies(channel, queue)
            taken += found
            assert proxy.cut() == 1
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert b"reconnecting" in err
    taken += bodies(channel, queue)
    # Duplicates are possible if the connection was lost before the confirm.
    assert {int(body) for body in taken} == {0, 1, 2, 3, 4}
    assert len(taken) <= 10


# Consuming


def test_everything_through_a_pipe(program: Program, channel: BlockingChannel, queue: str, name: str) -> None:
    lines = b"".join(b"message %d\n" % number for number in range(20_000))
    program.ok("publish", queue, input=lines)
    target = f"{name}.target"
    channel.queue_declare(target, durable=True)
    with program.begin("consume", queue, "--format", "json", "--count", "20000") as consumer:
        assert consumer.stdout is not None
        with program.begin("publish", target, "--format", "json") as publisher:
            assert publisher.stdin is not None
            while data := consumer.stdout.read(1 << 16):
                publisher.stdin.write(data)
            _, err = publisher.communicate(timeout=LIMIT)
            assert publisher.returncode == 0, err
        assert consumer.wait(LIMIT) == 0
    assert ready(channel, queue) == 0
    assert program.ok("consume", target, "--count", "20000", "--prefetch", "7") == lines
    wait_ready(channel, target, 0)
    channel.queue_delete(target)


def test_how_it_ends(program: Program, channel: BlockingChannel, queue: str) -> None:
    done = program.run("consume", queue, "--timeout", "0.2")
    assert (done.code, done.out) == (1, b"")
    fill(channel, queue, 5)
    done = program.run("consume", queue, "--count", "2")
    assert (done.code, done.lines, done.err) == (0, [b"0", b"1"], "received 2 messages\n")
    wait_ready(channel, queue, 3)
    done = program.run("consume", queue, "--count", "4", "--timeout", "0.2", "--quiet")
    assert (done.code, done.lines, done.err) == (1, [b"2", b"3", b"4"], "")
    fill(channel, queue, 1)
    assert program.run("consume", queue, "--timeout", "0.2").code == 0
    for wrong in (
        (),
        (queue, "--exchange", "x"),
        (queue, "--binding-key", "x"),
        (queue, "--output-dir", "x", "--format", "lines"),
        (queue, "--count", "0"),
    ):
        assert program.run("consume", *wrong).code == 2


def test_ctrl_c_requeues_unwritten_messages(program: Program, channel: BlockingChannel, queue: str) -> None:
    made = fill(channel, queue, 300, 1000)
    with program.begin("consume", queue) as process:
        assert process.stdout is not None
        until_readable(process, 60_000)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        written = process.stdout.read().split(b"\n")[:-1]
        assert process.stderr is not None
        assert f"received {len(written)} messages" in process.stderr.read().decode()
    assert written == made[: len(written)]
    assert 50 < len(written) < 70
    wait_ready(channel, queue, 300 - len(written))
    assert bodies(channel, queue) == made[len(written) :]


def test_sigterm_ends_it_while_it_waits(program: Program, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 1)
    with program.begin("consume", queue) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 143
    wait_ready(channel, queue, 0)


def test_a_pipe_that_is_closed(program: Program, channel: BlockingChannel, queue: str) -> None:
    made = fill(channel, queue, 300, 1000)
    with program.begin("consume", queue) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [body + b"\n" for body in made[:3]]
        # The pipe is full; its content is written.
        until_readable(process, 50_000)
        process.stdout.close()
        assert process.wait(LIMIT) == 141
        assert process.stderr is not None
        taken = int(process.stderr.read().removeprefix(b"received ").split()[0])
    wait_ready(channel, queue, 300 - taken)
    assert bodies(channel, queue) == made[taken:]


def test_a_pipe_closed_while_no_message_arrives(program: Program, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 1)
    with program.begin("consume", queue) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(LIMIT) == 141


def test_an_output_that_cannot_be_written(program: Program, channel: BlockingChannel, queue: str, tmp_path: Path) -> None:
    fill(channel, queue, 3)
    (tmp_path / "file").touch()
    done = program.run("consume", queue, "--output-dir", str(tmp_path / "file" / "inner"))
    assert (done.code, done.err) == (1, f"Error: {tmp_path}/file/inner: Not a directory\n")
    done = program.run("consume", queue, "--output-dir", str(tmp_path / "file"))
    assert (done.code, done.err.count("\n") > 0) == (2, True)
    with open("/dev/full", "wb") as full:
        failed = subprocess.run(
            [sys.executable, "-m", "leveret", "consume", queue],
            env=program.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT,
            check=False,
        )
    assert (failed.returncode, failed.stderr) == (1, b"Error: No space left on device\n")
    wait_ready(channel, queue, 3)


@pytest.mark.parametrize("command", ["consume", "get"])
def test_outcomes_of_consumed_messages(program: Program, channel: BlockingChannel, name: str, command: str) -> None:
    dead = f"{name}.dead"
    channel.queue_declare(dead, durable=True)
    channel.queue_declare(name, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    fill(channel, name, 6)
    count = ("--count", "3")
    for _ in range(2):
        assert program.ok(command, name, *count, "--requeue").splitlines() == [b"0", b"1", b"2"]
        wait_ready(channel, name, 6)
    assert program.ok(command, name, *count, "--reject").splitlines() == [b"0", b"1", b"2"]
    wait_ready(channel, dead, 3)
    assert program.ok(command, name, *count, "--no-ack").splitlines() == [b"3", b"4", b"5"]
    assert (ready(channel, name), bodies(channel, dead)) == (0, [b"0", b"1", b"2"])
    channel.queue_delete(dead)
    channel.queue_delete(name)


def test_a_queue_is_listed_and_its_messages_requeued(program: Program, channel: BlockingChannel, queue: str) -> None:
    made = fill(channel, queue, 250)
    assert program.ok("consume", queue, "--requeue", "--timeout", "0.5").splitlines() == made
    wait_ready(channel, queue, 250)


def test_an_exchange_is_listened_to(program: Program, name: str) -> None:
    publish = ("publish", "--exchange", "amq.topic", "--mandatory", "--quiet", "--routing-key")
    with program.begin(
        "consume", "--exchange", "amq.topic", "--binding-key", f"{name}.a.*", "--binding-key", f"{name}.b", "--count", "2"
    ) as process:
        assert process.stdout is not None
        while program.run(*publish, f"{name}.b", "first").code == 1:
            assert process.poll() is None
        program.run(*publish, f"{name}.c", "other")
        program.ok(*publish, f"{name}.a.x", "second")
        out, _ = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (0, b"first\nsecond\n")
    assert program.run(*publish, f"{name}.b", "late").code == 1


def test_the_queue_is_deleted_meanwhile(program: Program, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 1)
    with program.begin("consume", queue) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        channel.queue_delete(queue)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err.count(b"Error: ")) == (4, 1)
    assert b"the queue was deleted" in err


def test_bodies_do_not_control_the_terminal(program: Program, channel: BlockingChannel, queue: str) -> None:
    for form in ("lines", "json"):
        channel.basic_publish("", queue, "\x1b]0;x\x07\x9b red ü".encode() + b"\xff")
        code, shown = on_terminal(program, "consume", queue, "--count", "1", "--format", form)
        assert (code, "\x1b" in shown, "\x9b" in shown) == (0, False, False)
        assert ("red ü\\xff" in shown) == (form == "lines")


def test_messages_are_typed(program: Program, channel: BlockingChannel, queue: str) -> None:
    code, shown = on_terminal(program, "publish", queue, typed=b"one\ntwo\n\x04")
    assert (code, bodies(channel, queue)) == (0, [b"one", b"two"])
    assert "Ctrl-D ends" in shown
    assert "2 messages confirmed" in shown


def test_progress_is_shown_on_a_terminal(program: Program, channel: BlockingChannel, queue: str) -> None:
    code, shown = on_terminal(program, "publish", queue, "x", "--count", "8", "--rate", "10")
    assert (code, ready(channel, queue)) == (0, 8)
    assert "publishing " in shown
    assert "publishing" not in on_terminal(program, "publish", queue, "x", "--count", "8", "--rate", "10", "--quiet")[1]


def test_purge_asks_on_a_terminal(program: Program, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 3)
    code, shown = on_terminal(program, "purge", queue, typed=b"n\n")
    assert (code, ready(channel, queue)) == (1, 3)
    assert f"Purge 3 messages from queue '{queue}'?" in shown
    assert on_terminal(program, "purge", queue, typed=b"y\n")[0] == 0
    assert ready(channel, queue) == 0
    fill(channel, queue, 1)
    assert "Drop" not in on_terminal(program, "purge", queue, "--yes")[1]


# Single messages


def test_get(program: Program, channel: BlockingChannel, queue: str) -> None:
    assert program.run("get", queue).code == 1
    fill(channel, queue, 3)
    assert program.ok("get", queue) == b"0\n"
    done = program.run("get", queue, "--count", "5", "--quiet")
    assert (done.code, done.out, done.err) == (1, b"1\n2\n", "")
    wait_ready(channel, queue, 0)


def test_purge(program: Program, channel: BlockingChannel, queue: str, name: str) -> None:
    fill(channel, queue, 3)
    assert program.ok("purge", queue) == f"purged 3 messages from queue '{queue}'\n".encode()
    assert program.ok("purge", queue, "--yes").startswith(b"purged 0 messages")
    done = program.run("purge", f"{name}.none")
    assert (done.code, "404" in done.err, done.err.count("\n")) == (4, True, 1)


# Failures that all have in common


@pytest.mark.parametrize("command", [("publish", "q", "x"), ("consume", "q"), ("get", "q"), ("purge", "q"), ("bench",)])
def test_servers_that_cannot_be_used(server: Broker, program: Program, command: tuple[str, ...]) -> None:
    def codes(url: str) -> tuple[int, int]:
        done = program.run(*command, "--url", url)
        assert done.out == b""
        assert done.err.startswith("Error: ")
        assert "Traceback" not in done.err
        return done.code, done.err.count("\n")

    assert codes("amqp://127.0.0.1:1") == (3, 1)
    assert codes("http://127.0.0.1") == (2, 1)
    assert codes(server.url(query="prefetch=1")) == (2, 1)
    assert codes(server.url(password="wrong")) == (4, 1)
    assert codes(server.url(vhost="nowhere")) == (4, 1)


def test_the_second_url_is_tried(server: Broker, program: Program, queue: str) -> None:
    program.ok("publish", queue, "x", "--url", "amqp://127.0.0.1:1", "--url", server.url())
    done = program.run("get", queue, url=f"amqp://127.0.0.1:1 {server.url()}")
    assert (done.code, done.out) == (0, b"x\n")


def test_a_silent_broker(program: Program, server: Broker) -> None:
    proxy = Proxy(server)
    proxy.flowing.clear()
    done = program.run("get", "q", "--timeout", "0.3", url=proxy.url())
    assert (done.code, "0.3 s" in done.err) == (3, True)


def test_publishing_to_a_broker_that_stops(tmp_path: Path) -> None:
    leveret_only("it is stopped")
    broker = LeveretProcess(tmp_path).start()
    program = Program(broker)
    connection: Any = pika.BlockingConnection(pika.URLParameters(broker.url()))
    connection.channel().queue_declare("q", durable=True)
    connection.close()
    with program.begin("publish", "q", "--timeout", "1") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
        wait_ready(connection.channel(), "q", 1)
        connection.close()
        broker.stop()
        _, err = process.communicate(b"two\n", timeout=LIMIT)
    assert process.returncode == 3
    assert err.splitlines()[-1].startswith(b"Error: ")
