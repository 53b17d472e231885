"""Exactly-once sinks by requests: stages are opened, published to, sealed and promoted, over both protocols."""

from __future__ import annotations

import uuid
from typing import Any
from zlib import crc32

import pytest

from leveret.client import AccessRefused, Error, LinkClosed
from leveret.sync import BaseChannel
from tests.management.conftest import Open
from tests.management.test_requests import run
from tests.support.broker import Broker, LeveretProcess
from tests.support.requests import Refused, ask


@pytest.fixture
def channel(dial: Open, protocol: str) -> BaseChannel:
    return dial.over(protocol)


@pytest.fixture
def queue(dial: Open, name: str) -> Any:
    own = dial()
    queue = own.declare_queue(name, durable=True)
    yield queue
    queue.delete()


def stage_name() -> str:
    return str(uuid.uuid4())


def write(
    channel: BaseChannel, app: str, exchange: str, key: str, *bodies: str, seal: bool = True, **properties: Any
) -> str:
    """Publish these messages like a writer, in a sink transaction."""
    stage = stage_name()
    ask(channel, "stage.open", stage=stage, app=app, exchanges=[exchange])
    for body in bodies:
        channel.publish(body, key, f"leveret.stage:{stage}:{exchange}", **{"persistent": True, **properties})
    if seal:
        ask(channel, "stage.seal", stage=stage, count=len(bodies), crc32=crc32("".join(bodies).encode()))
    return stage


def test_from_writers_to_the_queue(channel: BaseChannel, queue: Any, name: str) -> None:
    app = "app." + name
    assert ask(channel, "stage.last", app=app)["batch"] is None
    stages = [write(channel, app, "", name, *(f"{writer}.{number}" for number in range(5))) for writer in range(2)]
    listed = ask(channel, "stage.list", app=app)
    assert {item["stage"]: (item["state"], item["messages"]) for item in listed["stages"]} == dict.fromkeys(
        stages, ("sealed", 5)
    )
    assert queue.get() is None
    answer = ask(channel, "stage.promote", app=app, batch=0, stages=stages)
    assert (answer["promoted"], answer["already"], answer["unroutable"]) == (10, False, 0)
    again = write(channel, app, "", name, "again")
    answer = ask(channel, "stage.promote", app=app, batch=0, stages=[again], on_unroutable="drop")
    assert (answer["promoted"], answer["already"], answer["unroutable"]) == (0, True, 0)
    with queue.consume() as consumer:
        got = [consumer.next(30) for _ in range(10)]
    assert [message.text() for message in got] == [f"{writer}.{number}" for writer in range(2) for number in range(5)]
    assert {(message.exchange, message.routing_key) for message in got} == {("", name)}
    assert ask(channel, "stage.last", app=app)["batch"] == 0
    assert ask(channel, "stage.list", app=app)["stages"] == []
    assert [item["batch"] for item in ask(channel, "stage.list", app=app)["apps"]] == [0]


def test_invalid_requests_are_refused(channel: BaseChannel, queue: Any, name: str) -> None:
    stage = write(channel, name, "", name, "a", seal=False)
    for operation, arguments, condition, part in (
        ("stage.open", {"stage": "x:y", "app": name}, "precondition-failed", "letters, digits and hyphens"),
        ("stage.open", {"stage": stage_name(), "app": name, "exchanges": ["none"]}, "not-found", "no exchange 'none'"),
        ("stage.open", {"stage": stage, "app": name}, "precondition-failed", "already exists"),
        ("stage.seal", {"stage": stage, "count": 2, "crc32": crc32(b"a")}, "precondition-failed", "expected 2"),
        ("stage.seal", {"stage": stage, "count": 1, "crc32": 1}, "precondition-failed", "CRC-32"),
        ("stage.seal", {"stage": "none", "count": 1, "crc32": 1}, "not-found", "sink transaction 'none' does not exist"),
        ("stage.promote", {"app": name, "batch": 1, "stages": [stage]}, "precondition-failed", "not prepared"),
        ("stage.promote", {"app": name, "batch": -1, "stages": []}, "command-invalid", "batch"),
        ("stage.promote", {"app": name, "batch": 1, "stages": [], "on_unroutable": "x"}, "command-invalid", "x"),
        (
            "stage.promote",
            {"app": name, "batch": 1, "stages": [], "on_unroutable": "dead-letter"},
            "precondition-failed",
            "requires dead_letter_exchange",
        ),
        (
            "stage.promote",
            {"app": name, "batch": 1, "stages": [], "dead_letter_exchange": ""},
            "precondition-failed",
            "require on_unroutable 'dead-letter'",
        ),
    ):
        with pytest.raises(Refused) as refused:
            ask(channel, operation, **arguments)
        assert refused.value.condition == condition, operation
        assert part in refused.value.message
    assert ask(channel, "stage.discard", stages=[stage, "none"])["discarded"] == 1
    assert ask(channel, "stage.list", app=name)["stages"] == []


def test_a_batch_of_more_than_a_thousand_stages(dial: Open, queue: Any, name: str) -> None:
    """A writer is a partition of a DataFrame, and these may be many."""
    channel = dial()
    stages = [write(channel, name, "", name, str(number)) for number in range(2)]
    stages += [stage_name() for _ in range(1000)]
    with pytest.raises(Refused, match=r"sink transaction .* does not exist"):
        ask(channel, "stage.promote", app=name, batch=0, stages=stages)
    for stage in stages[2:]:
        ask(channel, "stage.open", stage=stage, app=name)
        ask(channel, "stage.seal", stage=stage, count=0, crc32=0)
    assert ask(channel, "stage.promote", app=name, batch=0, stages=stages)["promoted"] == 2
    assert [queue.get().text(), queue.get().text()] == ["0", "1"]
    assert ask(channel, "stage.list", app=name)["stages"] == []
    with pytest.raises(Refused) as refused:
        ask(channel, "stage.promote", app=name, batch=1, stages=[stage_name() for _ in range(10_001)])
    assert (refused.value.condition, "10000" in refused.value.message) == ("command-invalid", True)


def test_unroutable_rows_are_named(channel: BaseChannel, queue: Any, name: str) -> None:
    good = write(channel, name, "", name, "a")
    bad = write(channel, name, "amq.direct", "no.way", "b", "c")
    with pytest.raises(Refused) as refused:
        ask(channel, "stage.promote", app=name, batch=1, stages=[good, bad])
    assert refused.value.condition == "precondition-failed"
    assert (
        "2 messages are unroutable: the first was published to exchange 'amq.direct' with routing key 'no.way'"
    ) in refused.value.message
    assert queue.get() is None
    answer = ask(
        channel,
        "stage.promote",
        app=name,
        batch=1,
        stages=[good, bad],
        on_unroutable="dead-letter",
        dead_letter_exchange="",
        dead_letter_routing_key=name,
    )
    assert (answer["promoted"], answer["unroutable"]) == (3, 2)
    with queue.consume() as consumer:
        assert sorted(consumer.next(30).text() for _ in range(3)) == ["a", "b", "c"]


def test_publishing_to_a_prepared_sink_transaction(dial: Open, protocol: str, name: str, queue: Any) -> None:
    channel = dial.over(protocol)
    sealed = write(channel, name, "", name, "a")
    for stage, part in ((sealed, "prepared"), (stage_name(), "does not exist")):
        with pytest.raises(Error, match=part):
            dial.over(protocol).publish("b", name, f"leveret.stage:{stage}:", persistent=True)


def test_time_to_live_begins_when_it_is_promoted(channel: BaseChannel, queue: Any, name: str) -> None:
    stage = write(channel, name, "", name, "a", expiration=600_000)
    ask(channel, "stage.promote", app=name, batch=1, stages=[stage])
    message = queue.get()
    assert message is not None and message.text() == "a"


def test_copies(dial: Open, queue: Any, name: str) -> None:
    """CC and BCC apply at the commit, and consumers do not see BCC."""
    channel = dial()
    other = channel.declare_queue(exclusive=True)
    stage = write(channel, name, "", "no queue", "a", headers={"CC": [name], "BCC": [other.name], "x": 1})
    assert ask(channel, "stage.promote", app=name, batch=1, stages=[stage])["promoted"] == 1
    for one in (queue, other):
        with one.consume() as consumer:
            assert consumer.next(30).properties.headers == {"CC": [name], "x": 1}


def test_bodies_of_amqp_1_0_count_as_applications_see_them(dial: Open, queue: Any, name: str) -> None:
    from leveret.client import amqp10

    connection = dial.amqp10()
    channel = dial()
    stage = stage_name()
    ask(channel, "stage.open", stage=stage, app=name)
    with connection.sender(f"/exchanges/leveret.stage:{stage}:/{name}") as sender:
        sender.send(amqp10.Message(body=b"one", durable=True))
        sender.send(amqp10.Message(body=[b"t", b"wo"], durable=True))
        sender.send(amqp10.Message(body=amqp10.Value("three"), durable=True))
    ask(channel, "stage.seal", stage=stage, count=3, crc32=crc32(b"onetwothree"))
    ask(channel, "stage.promote", app=name, batch=1, stages=[stage])
    with queue.consume() as consumer:
        assert [consumer.next(30).text() for _ in range(3)] == ["one", "two", "three"]


def test_large_bodies(dial: Open, queue: Any, name: str) -> None:
    """Including bodies that are never completely in memory."""
    channel = dial()
    body = "x" * 3_000_000
    stage = write(channel, name, "", name, body, "small")
    assert ask(channel, "stage.promote", app=name, batch=1, stages=[stage])["promoted"] == 2
    with queue.consume() as consumer:
        assert consumer.next(30).text() == body
        assert consumer.next(30).text() == "small"


def test_into_a_stream(dial: Open, name: str) -> None:
    channel = dial(prefetch=100)
    channel.declare_queue(name + ".stream", durable=True, arguments={"x-queue-type": "stream"})
    stage = write(channel, name, "", name + ".stream", *(f"{number}" for number in range(100)))
    assert ask(channel, "stage.promote", app=name, batch=1, stages=[stage])["promoted"] == 100
    described = ask(channel, "stream.describe", stream=name + ".stream")
    assert (described["first_offset"], described["next_offset"]) == (0, 100)
    channel.delete_queue(name + ".stream")


def test_other_users(broker: Broker, dial: Open, queue: Any, name: str) -> None:
    """Other users can neither publish to a sink transaction nor prepare, commit, abort or list it, and the publisher needs
    permission for the target exchange."""
    assert isinstance(broker, LeveretProcess)
    data_dir = ["--data-dir", str(broker.data_dir)]
    run("users", "add", "writer", *data_dir, "--password-file", "-", input="secret\n")
    run(
        "permissions",
        "set",
        "writer",
        *data_dir,
        "--configure",
        "",
        "--write",
        r"^(leveret\.control|amq\.topic)$",
        "--read",
        "",
    )
    own = dial()
    theirs = dial(user="writer", password="secret")
    stage = write(own, name, "", name, "a", seal=False)
    for operation, arguments in (
        ("stage.seal", {"stage": stage, "count": 1, "crc32": crc32(b"a")}),
        ("stage.discard", {"stages": [stage]}),
        ("stage.open", {"stage": stage, "app": name}),
        ("stage.open", {"stage": stage_name(), "app": name, "exchanges": ["amq.direct"]}),
    ):
        with pytest.raises(Refused) as refused:
            ask(theirs, operation, **arguments)
        assert refused.value.condition == "access-refused", operation
    assert ask(theirs, "stage.list")["stages"] == []
    for protocol in ("0-9-1", "1.0"):
        publisher = dial.over(protocol, "writer", "secret")
        with pytest.raises((AccessRefused, LinkClosed, Error)) as failed:
            publisher.publish("b", name, f"leveret.stage:{stage}:amq.topic", persistent=True)
        assert "belongs to another user" in str(failed.value)
    ask(theirs, "stage.open", stage="of-writer", app="theirs")
    with pytest.raises(AccessRefused, match="write access to 'amq"):
        dial(user="writer", password="secret").publish("b", name, "leveret.stage:of-writer:", persistent=True)
    ask(own, "stage.seal", stage=stage, count=1, crc32=crc32(b"a"))
    ask(own, "stage.promote", app=name, batch=1, stages=[stage])
    for operation, arguments in (("stage.last", {"app": name}), ("stage.promote", {"app": name, "batch": 2, "stages": []})):
        with pytest.raises(Refused) as refused:
            ask(theirs, operation, **arguments)
        assert refused.value.condition == "access-refused"
    with pytest.raises(Refused) as refused:
        ask(
            theirs,
            "stage.promote",
            app="theirs",
            batch=1,
            stages=["of-writer"],
            on_unroutable="dead-letter",
            dead_letter_exchange="",
        )
    assert refused.value.condition == "access-refused"
    run("users", "delete", "writer", *data_dir)
