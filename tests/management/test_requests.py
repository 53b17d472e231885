"""Requests of clients to `leveret.control`: both protocols, errors, operations on queues and streams."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.broker import Broker as MemoryBroker
from leveret.broker.broker import VhostSettings
from leveret.client import AccessRefused, Error, LinkClosed
from leveret.management.operations import streams
from leveret.management.operations.operation import Later, VhostContext
from leveret.management.operations.operation import User as Principal
from leveret.security.accounts import UserAccount
from leveret.security.patterns import Pattern
from leveret.security.users import DeclaredUser, User, UserStore
from leveret.storage.memory import MemoryLog
from leveret.sync import BaseChannel
from tests.management.conftest import Open
from tests.support.broker import Broker, LeveretProcess
from tests.support.requests import CONTROL, Refused, ask, ask_raw


def run(*arguments: str, input: str = "") -> None:
    """A command of the command line."""
    subprocess.run(
        [sys.executable, "-m", "leveret", *arguments], input=input, text=True, check=True, timeout=120, capture_output=True
    )


@pytest.fixture
def channel(dial: Open, protocol: str) -> BaseChannel:
    return dial.over(protocol)


@pytest.fixture
def stream(dial: Open, name: str) -> Any:
    """A stream of ten messages."""
    channel = dial()
    channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(10):
        channel.publish(b"%d" % number, name)
    yield name
    channel.delete_queue(name)


def test_the_description_of_a_queue(channel: BaseChannel, dial: Open, name: str, stream: str) -> None:
    own = dial()
    own.declare_queue(name + ".classic", durable=True)
    own.publish(b"x", name + ".classic")
    own.declare_queue(name + ".quorum", durable=True, arguments={"x-queue-type": "quorum"})
    found = [ask(channel, "queue.describe", queue=queue) for queue in (name + ".classic", name + ".quorum", stream)]
    assert [(item["type"], item["durable"], item["messages"]) for item in found] == [
        ("classic", True, 1),
        ("quorum", True, 0),
        ("stream", True, 10),
    ]
    with pytest.raises(Refused) as refused:
        ask(channel, "queue.describe", queue="none")
    assert refused.value.condition == "not-found"
    assert "no queue 'none'" in refused.value.message


def test_invalid_requests(channel: BaseChannel, stream: str) -> None:
    """The replies contain the error, and the connection stays open."""
    for operation, body, condition, part in (
        ("queue.descripe", b'{"version": 1}', "not-implemented", "queue.describe, "),
        ("queue.describe", b'{"version": 2, "queue": "q"}', "not-implemented", "version 2"),
        ("queue.describe", b'{"queue": "q"}', "not-implemented", "version None"),
        ("queue.describe", b"[1]", "command-invalid", "not a JSON object"),
        ("queue.describe", b"\xff{", "command-invalid", "not a JSON object"),
        ("queue.describe", b'{"version": 1}', "command-invalid", "the field 'queue' is missing"),
        ("queue.describe", b'{"version": 1, "queue": 5}', "command-invalid", "$.queue"),
        ("queue.describe", b'{"version": 1, "queue": "q", "more": 1}', "command-invalid", "`more`"),
        ("queue.describe", b'{"version": 1, "queue": "' + b"q" * 1_050_000 + b'"}', "content-too-large", "1048576"),
    ):
        answer = ask_raw(channel, operation, body)
        assert not answer["ok"]
        assert answer["error"]["condition"] == condition, answer
        assert part in answer["error"]["message"]
    assert ask(channel, "queue.describe", queue=stream)["messages"] == 10


def test_replies_name_the_request(dial: Open, stream: str) -> None:
    """Over 0-9-1 to any queue of the client's, with the correlation id as it was."""
    channel = dial()
    queue = channel.declare_queue(exclusive=True)
    channel.publish(
        json.dumps({"version": 1, "queue": stream}), "queue.describe", CONTROL, reply_to=queue.name, correlation_id="ü-7"
    )
    with channel.consume(queue) as consumer:
        reply = consumer.next(30)
    assert reply.properties.correlation_id == "ü-7"
    assert reply.properties.content_type == "application/json"
    assert json.loads(reply.body)["messages"] == 10


def test_ids_of_amqp_1_0_keep_their_types(dial: Open, broker: Broker, stream: str, name: str) -> None:
    from leveret.client import amqp10

    connection = dial.amqp10()
    dial().declare_queue(name + ".replies", durable=True)
    for id in (uuid.uuid4(), b"\x00\x01", 7, "text"):
        with (
            connection.receiver(f"/queues/{name}.replies") as receiver,
            connection.sender(f"/exchanges/{CONTROL}/queue.describe") as sender,
        ):
            body = json.dumps({"version": 1, "queue": stream}).encode()
            sender.send(amqp10.Message(body=body, message_id=id, reply_to=f"/queues/{name}.replies"))
            reply = receiver.next(30)
            assert reply.message.correlation_id == id
            assert json.loads(reply.body)["messages"] == 10
            reply.ack()


def test_a_request_in_a_transaction_is_carried_out_with_it(dial: Open, stream: str) -> None:
    channel = dial(transactional=True, confirms=False)
    replies = dial().declare_queue(stream + ".replies")
    with channel.transaction():
        channel.publish(json.dumps({"version": 1, "queue": stream}), "queue.describe", CONTROL, reply_to=replies.name)
        assert replies.get() is None
    with replies.consume() as consumer:
        assert json.loads(consumer.next(30).body)["ok"]


@pytest.fixture
def asker(broker: Broker, dial: Open) -> Iterator[str]:
    """A user who may send requests, read objects whose names begin with mine-, and publish nothing else."""
    assert isinstance(broker, LeveretProcess)
    data_dir = ["--data-dir", str(broker.data_dir)]
    run("users", "add", "asker", *data_dir, "--password-file", "-", input="secret\n")
    run("permissions", "set", "asker", *data_dir, "--configure", ".*", "--write", r"^leveret\.control$", "--read", "^mine-")
    yield "asker"
    run("users", "delete", "asker", *data_dir)


def test_permissions(dial: Open, asker: str, protocol: str) -> None:
    with pytest.raises((AccessRefused, LinkClosed)):
        ask(dial.over(protocol, "limited", "secret", "interop"), "queue.describe", queue="mine-1", timeout=10)
    own = dial()
    own.declare_queue("mine-1")
    own.declare_queue("others-1")
    channel = dial.over(protocol, asker, "secret")
    assert ask(channel, "queue.describe", queue="mine-1")["messages"] == 0
    for queue in ("others-1", "others-none"):
        with pytest.raises(Refused) as refused:
            ask(channel, "queue.describe", queue=queue)
        assert refused.value.condition == "access-refused"
        assert "read access to 'others-" in refused.value.message
    for queue in ("mine-1", "others-1"):
        own.delete_queue(queue)


def test_replies_are_no_way_around_permissions(dial: Open, asker: str, name: str) -> None:
    """A user who may not publish to queues by name gets replies only in queues of the same connection."""
    own = dial()
    theirs = own.declare_queue(name)
    own.declare_queue("mine-2")
    channel = dial(user=asker, password="secret")
    body = json.dumps({"version": 1, "queue": "mine-2"})
    channel.publish(body, "queue.describe", CONTROL, reply_to=name)
    assert ask(channel, "queue.describe", queue="mine-2")["ok"]  # performed after the previous one
    assert theirs.get() is None
    own.publish(body, "queue.describe", CONTROL, reply_to=name)
    with theirs.consume() as consumer:
        assert json.loads(consumer.next(30).body)["ok"]
    private = channel.declare_queue("mine-3", exclusive=True)
    channel.publish(body, "queue.describe", CONTROL, reply_to="mine-3")
    with private.consume() as consumer:
        assert json.loads(consumer.next(30).body)["ok"]
    own.delete_queue("mine-2")


def test_reserved_names(dial: Open) -> None:
    def refused(call: Any) -> str:
        channel = dial()
        with pytest.raises(AccessRefused) as error:
            call(channel)
        return str(error.value)

    assert "reserved prefix" in refused(lambda channel: channel.declare_exchange("leveret.mine"))
    assert "cannot be bound or deleted" in refused(lambda channel: channel.delete_exchange(CONTROL))

    def bind(channel: BaseChannel) -> None:
        queue = channel.declare_queue(exclusive=True)
        channel.bind_queue(queue, CONTROL, "#")

    assert "cannot be bound" in refused(bind)
    assert "cannot be bound" in refused(lambda channel: channel.bind_exchange(CONTROL, "amq.topic", "#"))
    assert dial().declare_queue("leveret.is-a-fine-queue", exclusive=True).name == "leveret.is-a-fine-queue"


def test_a_message_through_another_exchange_is_not_a_request(dial: Open, stream: str, name: str) -> None:
    channel = dial()
    channel.declare_exchange(name, "direct", arguments={"alternate-exchange": CONTROL})
    queue = channel.declare_queue(exclusive=True)
    body = json.dumps({"version": 1, "queue": stream})
    channel.publish(body, "queue.describe", name, reply_to=queue.name, correlation_id="through another")
    channel.publish(body, "queue.describe", CONTROL, reply_to=queue.name, correlation_id="direct")
    with channel.consume(queue) as consumer:
        assert consumer.next(30).properties.correlation_id == "direct"
    assert queue.get() is None
    channel.delete_exchange(name)


def test_too_many_at_once(dial: Open, stream: str) -> None:
    """Requests in one turn above the limit of waiting ones are refused; the next one is not."""
    channel = dial(confirms=False)
    queue = channel.declare_queue(exclusive=True)
    body = json.dumps({"version": 1, "queue": stream})
    for _ in range(1000):
        channel.publish(body, "queue.describe", CONTROL, reply_to=queue.name)
    with channel.consume(queue, no_ack=True) as consumer:
        answers = [json.loads(consumer.next(30).body) for _ in range(1000)]
    assert {answer["error"]["condition"] for answer in answers if not answer["ok"]} <= {"resource-error"}
    assert sum(answer["ok"] for answer in answers) >= 100
    assert ask(channel, "queue.describe", queue=stream)["ok"]


# Streams


def test_streams_of_a_super_stream_in_order(channel: BaseChannel, dial: Open, name: str) -> None:
    own = dial()
    own.declare_exchange(name, "x-consistent-hash", durable=True)
    names = [f"{name}-{number}" for number in range(12)]
    for partition in reversed(names):
        own.declare_queue(partition, durable=True, arguments={"x-queue-type": "stream"})
        own.bind_queue(partition, name, "1")
    assert ask(channel, "superstream.describe", name=name)["partitions"] == names
    with pytest.raises(Refused) as refused:
        ask(channel, "superstream.describe", name="amq.topic")
    assert refused.value.condition == "not-found"
    own.declare_queue(name + "-7-not", durable=True)
    assert ask(channel, "stream.match", pattern=name.replace(".", r"\.") + "-[6-8]")["streams"] == names[6:9]
    assert ask(channel, "stream.match", pattern="^(a|a)*$")["streams"] == []
    for pattern in ("(?>a+)b", "["):
        with pytest.raises(Refused) as refused:
            ask(channel, "stream.match", pattern=pattern)
        assert refused.value.condition == "precondition-failed"
    for partition in names:
        own.delete_queue(partition)
    own.delete_exchange(name)


def test_a_stream_and_its_successor(channel: BaseChannel, dial: Open, name: str) -> None:
    own = dial()
    described = []
    for _ in range(2):
        own.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
        own.publish(b"one", name)
        described.append(ask(channel, "stream.describe", stream=name, segments=True))
        own.delete_queue(name)
    assert [(item["first_offset"], item["next_offset"], item["segments"]) for item in described] == [(0, 1, [])] * 2
    assert described[0]["id"] != described[1]["id"]
    own.declare_queue(name)
    with pytest.raises(Refused) as refused:
        ask(channel, "stream.describe", stream=name)
    assert refused.value.condition == "precondition-failed"
    assert "is not a stream, but a classic queue" in refused.value.message


def test_the_offset_of_a_time(channel: BaseChannel, stream: str) -> None:
    now = int(time.time() * 1000)
    assert ask(channel, "stream.locate", stream=stream, timestamp=now - 3_600_000)["offset"] == 0
    assert ask(channel, "stream.locate", stream=stream, timestamp=now + 3_600_000)["offset"] == 10


def test_the_first_start_decides(channel: BaseChannel, stream: str) -> None:
    start = ask(channel, "stream.start", stream=stream, consumer="c", offset=4)
    assert (start["offset"], start["registered"]) == (4, True)
    start = ask(channel, "stream.start", stream=stream, consumer="c", offset=9)
    assert (start["offset"], start["registered"]) == (4, False)
    assert ask(channel, "stream.commit", stream=stream, consumer="c", offset=8)["offset"] == 8
    assert ask(channel, "stream.commit", stream=stream, consumer="c", offset=6)["offset"] == 8
    start = ask(channel, "stream.start", stream=stream, consumer="c", offset=0)
    assert (start["offset"], start["registered"], start["committed"]) == (4, False, 8)
    lag = ask(channel, "stream.lag", stream=stream, consumer="c")
    assert (lag["next_offset"], lag["end"], lag["lag"]) == (8, 10, 2)
    assert lag["id"] == ask(channel, "stream.describe", stream=stream)["id"]
    at = ask(channel, "stream.lag", stream=stream, offset=8)
    assert at["bytes"] == lag["bytes"] > 0 and at["seconds"] >= lag["seconds"] > 0
    whole, none = (ask(channel, "stream.lag", stream=stream, offset=offset) for offset in (0, 10))
    assert (whole["lag"], whole["bytes"]) == (10, ask(channel, "stream.describe", stream=stream)["octets"])
    assert (none["lag"], none["bytes"], none["seconds"]) == (0, 0, 0)
    both: dict[str, Any] = {"consumer": "c", "offset": 8}
    for wrong in ({}, both):
        with pytest.raises(Refused) as refused:
            ask(channel, "stream.lag", stream=stream, **wrong)
        assert refused.value.condition == "command-invalid"
    with pytest.raises(Refused) as refused:
        ask(channel, "stream.lag", stream=stream, consumer="unknown")
    assert refused.value.condition == "not-found"
    for operation in ("stream.start", "stream.commit"):
        with pytest.raises(Refused) as refused:
            ask(channel, operation, stream=stream, consumer="d", offset=11)
        assert refused.value.condition == "precondition-failed"


def test_publishing_does_not_end_with_the_error(dial: Open) -> None:
    """Not even with a request that needs no reply."""
    channel = dial()
    channel.publish(b"\x00", "no.such", CONTROL)
    with pytest.raises(Error):
        channel.publish(b"\x00", "no.such", "leveret.control2")


def test_a_match_over_many_names_yields_to_others() -> None:
    """The steps of one turn are limited, whatever the pattern and the number of streams."""
    broker = MemoryBroker(MemoryLog())
    vhost = broker.add_vhost("/", VhostSettings())
    names = [f"{'x' * 200}{number}" for number in range(500)]
    for name in names:
        vhost.declare_queue(name, None)
    users = UserStore(owner="boss")
    users.declare({"boss": DeclaredUser(user=User(name="boss"), password=b"x")})
    answers: list[Any] = []
    later = Later[streams.StreamNames]()
    later.when_resolved(answers.append)
    pattern = Pattern("(x{1,200})*[0-9]*[1-3]", whole=True)
    job = streams.Matching(VhostContext(vhost, Principal(UserAccount("boss", users)), None), pattern, names, later)
    turns = [job.at]
    while job.step():
        turns.append(job.at)
    assert answers == [streams.StreamNames(streams=sorted(name for name in names if name[-1] in "123"))]
    most = max(after - before for before, after in itertools.pairwise(turns))
    assert most * pattern.cost * 200 <= 2 * streams.MAX_MATCH_WORK
