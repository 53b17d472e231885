"""Distributed transactions and uploads over AMQP 0-9."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Client, Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import call, deep
from leveret.wire.amqp0.specs import V0_9


def _dtx(lab: Lab, count: int) -> Client:
    client = lab.connect(version=V0_9)
    client.open_channel()
    client.declare("q", durable=True)
    client.call(1, "dtx.select", "dtx.select-ok")
    client.call(1, "dtx.start", "dtx.start-ok", dtx_identifier="b")
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return client


@operation
def dtx_prepare(lab: Lab, count: int) -> Callable[[], None]:
    _dtx(lab, min(count, 100_000))
    return lambda: (lab.control("dtx.prepare", name="b"), None)[1]


def _work(lab: Lab, count: int) -> Client:
    """Return a client with a branch of class dtx-demarcation, with this many acknowledgements and publishes."""
    deep(lab, count, durable=True, delivery_mode=2)
    client = lab.connect(version=V0_9)
    client.open_channel()
    client.call(1, "dtx-demarcation.select", "dtx-demarcation.select-ok")
    client.call(1, "dtx-demarcation.start", "dtx-demarcation.start-ok", xid="b")
    client.send(1, "basic.consume", queue="q", consumer_tag="c")
    client.wait_delivered(count)
    client.engine.send_ack(1, 0, True)
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return client


@operation
def dtx_end(lab: Lab, count: int) -> Callable[[], None]:
    client = _work(lab, min(count, 100_000))
    return lambda: call(client, "dtx-demarcation.end", xid="b")


@operation
def dtx_end_failed(lab: Lab, count: int) -> Callable[[], None]:
    client = _work(lab, min(count, 100_000))
    return lambda: call(client, "dtx-demarcation.end", xid="b", fail=True)


def _ended(lab: Lab, count: int) -> Client:
    client = _work(lab, min(count, 100_000))
    call(client, "dtx-demarcation.end", xid="b")
    return client


@operation
def dtx_prepare_acks(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    return lambda: call(client, "dtx-coordination.prepare", xid="b")


@operation
def dtx_commit(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    return lambda: call(client, "dtx-coordination.commit", xid="b", one_phase=True)


@operation
def dtx_rollback_ended(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    return lambda: call(client, "dtx-coordination.rollback", xid="b")


@operation
def dtx_rollback_prepared(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    call(client, "dtx-coordination.prepare", xid="b")
    return lambda: call(client, "dtx-coordination.rollback", xid="b")


@operation
def dtx_rollback(lab: Lab, count: int) -> Callable[[], None]:
    _dtx(lab, min(count, 100_000))
    return lambda: (lab.control("dtx.rollback", name="b"), None)[1]


@operation
def dtx_rollback_acks(lab: Lab, count: int) -> Callable[[], None]:
    many = min(count, 100_000)
    deep(lab, many)
    client = lab.connect(version=V0_9)
    client.open_channel()
    client.call(1, "dtx.select", "dtx.select-ok")
    client.call(1, "dtx.start", "dtx.start-ok", dtx_identifier="b")
    client.send(1, "basic.consume", queue="q", consumer_tag="c")
    client.wait_delivered(many)
    client.engine.send_ack(1, 0, True)
    client.sync()
    return lambda: (lab.control("dtx.rollback", name="b"), None)[1]


@operation
def staged_uploads(lab: Lab, count: int) -> Callable[[], None]:
    """Open the maximum number of uploads of a user, list them, and close their connection."""
    client = lab.connect(version=V0_9)
    client.open_channel()
    for number in range(min(count, 1000)):
        client.call(1, "file.open", "file.open-ok", identifier=f"f{number}", content_size=1000)

    def act() -> None:
        lab.control("staged.list")
        client.drop()

    return act
