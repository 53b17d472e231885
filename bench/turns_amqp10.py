"""Operations over AMQP 1.0."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.turn_lab import Client10, Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import deep, new_client
from leveret.broker.message import make_address
from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import (
    Accepted,
    DeleteOnClose,
    Modified,
    Properties,
    Released,
    Source,
    Target,
)
from leveret.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from leveret.wire.amqp10.transport import Attach, Close, Detach, Disposition, End, Flow, Transfer
from leveret.wire.amqp10.values import Described, Symbol
from leveret.wire.record_batches import ADDRESS, MAX_BYTES, encode

# Default limits of a connection: unsettled deliveries, links of a session, and of all sessions.
UNSETTLED = 65_000
SESSION_LINKS = 1024
LINKS = 4096
# Deliveries in the largest unsettled map of a client, and unsettled deliveries from a client.
KNOWN = 10_000
RECEIVED = 20_000
# Values in the properties of a message: the maximum.
VALUES = 4096
SELECTOR = Symbol("apache.org:selector-filter:string")


def receiver(lab: Lab, count: int) -> Client10:
    """Return a client with unsettled messages of a deep queue."""
    deep(lab, count)
    client = lab.connect10()
    client.begin()
    client.attach("r", 0, receives=True, source=Source("/queues/q"), target=Target("t"))
    held = min(count, UNSETTLED)
    client.credit(0, held)
    client.wait_delivered(held)
    return client


def settling(lab: Lab, count: int, state: Composite) -> Callable[[], None]:
    client = receiver(lab, count)

    def act() -> None:
        client.send(Disposition(True, 0, client.last, True, state))
        client.sync()

    return act


@operation
def accept_range(lab: Lab, count: int) -> Callable[[], None]:
    return settling(lab, count, Accepted())


@operation
def release_range(lab: Lab, count: int) -> Callable[[], None]:
    return settling(lab, count, Released())


@operation
def modify_range(lab: Lab, count: int) -> Callable[[], None]:
    return settling(lab, count, Modified(True, True))


@operation
def end_session_unsettled(lab: Lab, count: int) -> Callable[[], None]:
    client = receiver(lab, count)

    def act() -> None:
        client.send(End())
        client.take(End)

    return act


@operation
def detach_unsettled(lab: Lab, count: int) -> Callable[[], None]:
    client = receiver(lab, count)

    def act() -> None:
        client.send(Detach(0, True))
        client.take(Detach)

    return act


@operation
def close_unsettled_10(lab: Lab, count: int) -> Callable[[], None]:
    client = receiver(lab, count)

    def act() -> None:
        client.send(Close())
        client.take(Close)

    return act


def _transaction(lab: Lab, count: int, fail: bool) -> Callable[[], None]:
    """Discharge a transaction that accepts messages of a deep queue and posts as many."""
    client = receiver(lab, count)
    held = min(count, UNSETTLED)
    client.attach("t", 1, receives=False, source=Source("t"), target=Coordinator())
    client.attach("s", 2, receives=False, source=Source("s"), target=Target("/queues/q"), snd_settle_mode=1)

    def control(number: int, body: Composite) -> Disposition:
        client.output.send_message(Transfer(1, number, b"%d" % number, 0, False), b"\x00\x53\x77" + encode_composite(body))
        return client.take(Disposition)

    declared = control(0, Declare()).state
    assert isinstance(declared, Declared)
    state = TransactionalState(declared.txn_id)
    payload = sections_of.encode_data(b"")
    for number in range(1, held + 1):
        client.output.send_message(Transfer(2, number, b"", 0, True, state=state), payload)
        client.send()
        if number % 1000 == 999:
            client.sync()
    client.send(Disposition(True, 0, client.last, True, TransactionalState(declared.txn_id, Accepted())))
    client.sync()
    return lambda: (control(held + 1, Discharge(declared.txn_id, fail)), None)[1]


@operation
def discharge_commit(lab: Lab, count: int) -> Callable[[], None]:
    return _transaction(lab, count, False)


@operation
def discharge_rollback(lab: Lab, count: int) -> Callable[[], None]:
    return _transaction(lab, count, True)


class Acquiring:
    """A client that has acquired messages of a deep queue under a transaction."""

    def __init__(self, lab: Lab, count: int, *, settled: bool = False) -> None:
        deep(lab, count)
        client = self.client = lab.connect10()
        client.begin()
        client.attach("t", 1, receives=False, source=Source("t"), target=Coordinator())
        self.number = 0
        declared = self.control(Declare()).state
        assert isinstance(declared, Declared)
        self.id = declared.txn_id
        client.attach("r", 0, receives=True, source=Source("/queues/q"), target=Target("t"), snd_settle_mode=int(settled))
        held = min(count, UNSETTLED)
        client.send(Flow(1 << 30, 0, 1 << 30, 0, 0, 0, held, properties={Symbol("txn-id"): self.id}))
        client.wait_delivered(held)

    def control(self, body: Composite) -> Disposition:
        number = self.number
        self.number += 1
        self.client.output.send_message(
            Transfer(1, number, b"%d" % number, 0, False), b"\x00\x53\x77" + encode_composite(body)
        )
        return self.client.take(Disposition)

    def discharge(self, fail: bool) -> None:
        self.control(Discharge(self.id, fail))

    def end(self) -> None:
        self.client.send(End())
        self.client.take(End)


@operation
def discharge_acquired(lab: Lab, count: int) -> Callable[[], None]:
    return partial(Acquiring(lab, count).discharge, False)


@operation
def discharge_acquired_settled(lab: Lab, count: int) -> Callable[[], None]:
    return partial(Acquiring(lab, count, settled=True).discharge, False)


@operation
def discharge_acquired_rollback(lab: Lab, count: int) -> Callable[[], None]:
    return partial(Acquiring(lab, count).discharge, True)


@operation
def end_session_acquired(lab: Lab, count: int) -> Callable[[], None]:
    return Acquiring(lab, count).end


@operation
def end_session_surviving(lab: Lab, count: int) -> Callable[[], None]:
    """End a session with the maximum number of unsettled deliveries, on as many links that outlive it."""
    deep(lab, count)
    client = attach_links(lab, SESSION_LINKS, Source("/queues/q", expiry_policy="never"))
    each = min(count, UNSETTLED) // SESSION_LINKS
    for handle in range(SESSION_LINKS):
        client.credit(handle, each)
    client.wait_delivered(each * SESSION_LINKS)

    def act() -> None:
        client.send(End())
        client.take(End)

    return act


@operation
def release_suspended(lab: Lab, count: int) -> Callable[[], None]:
    deep(lab, count)
    client = lab.connect10()
    client.begin()
    client.attach("r", 0, receives=True, source=Source("/queues/q", expiry_policy="never"), target=Target("t"))
    held = min(count, UNSETTLED)
    client.credit(0, held)
    client.wait_delivered(held)
    client.drop()
    return lambda: (lab.control("links.release", name="r"), None)[1]


def _suspended(lab: Lab, count: int, source: Source) -> Client10:
    """Return a client with a detached link whose unsettled deliveries are in the session."""
    deep(lab, count)
    client = lab.connect10()
    client.begin()
    client.attach("r", 0, receives=True, source=source, target=Target("t"))
    held = min(count, UNSETTLED)
    client.credit(0, held)
    client.wait_delivered(held)
    client.send(Detach(0, False))
    client.take(Detach)
    return client


@operation
def expire_suspended(lab: Lab, count: int) -> Callable[[], None]:
    _suspended(lab, count, Source("/queues/q", expiry_policy="link-detach", timeout=2))

    def act() -> None:
        while lab.control("links.list"):
            time.sleep(0.02)

    return act


@operation
def delete_suspended(lab: Lab, count: int) -> Callable[[], None]:
    _suspended(lab, count, Source("/queues/q", expiry_policy="never"))
    return lambda: (lab.control("links.delete", name="r"), None)[1]


@operation
def replace_suspended(lab: Lab, count: int) -> Callable[[], None]:
    client = _suspended(lab, count, Source("/queues/q", expiry_policy="never"))
    new_client(lab).declare("other")
    return lambda: (client.attach("r", 0, receives=True, source=Source("/queues/other"), target=Target("t")), None)[1]


@operation
def reattach_suspended(lab: Lab, count: int) -> Callable[[], None]:
    source = Source("/queues/q", expiry_policy="never")
    client = _suspended(lab, count, source)
    return lambda: (client.attach("r", 0, receives=True, source=source, target=Target("t")), None)[1]


@operation
def resume_suspended(lab: Lab, count: int) -> Callable[[], None]:
    source = Source("/queues/q", expiry_policy="never")
    _suspended(lab, count, source)
    client = lab.connect10()
    client.begin()
    return lambda: (client.attach("r", 0, receives=True, source=source, target=Target("t"), unsettled={}), None)[1]


def _resuming(lab: Lab, count: int, state: Composite | None, known: int) -> Callable[[], None]:
    """Resume a link on another connection with credit. The client knows this many deliveries, in this state."""
    source = Source("/queues/q", expiry_policy="never")
    _suspended(lab, count, source)
    client = lab.connect10()
    client.begin()
    client.output.max_frame_size = 1 << 17
    unsettled = dict.fromkeys([number.to_bytes(4, "big") for number in range(min(count, known))], state)

    def act() -> None:
        client.send(Attach("r", 0, True, source=source, target=Target("t"), unsettled=unsettled))
        client.take(Attach)
        client.credit(0, known)
        client.wait_delivered(min(count, known))

    return act


@operation
def resume_known(lab: Lab, count: int) -> Callable[[], None]:
    return _resuming(lab, count, None, KNOWN)


@operation
def resume_accepted(lab: Lab, count: int) -> Callable[[], None]:
    return _resuming(lab, count, Accepted(), KNOWN // 2)


@operation
def resume_released(lab: Lab, count: int) -> Callable[[], None]:
    return _resuming(lab, count, Released(), KNOWN // 2)


@operation
def batch_values(lab: Lab, count: int) -> Callable[[], None]:
    """Publish record batches whose rows have as many values as possible."""
    new_client(lab).declare("q")
    client = lab.connect10()
    client.begin()
    client.attach("s", 0, receives=False, source=Source("s"), target=Target(ADDRESS))
    message = b"\x00\x53\x74" + encode_pairs([(str(number), None) for number in range(VALUES // 2)])
    message += sections_of.encode_data(b"")
    rows = MAX_BYTES // (len(message) + 100)
    batch = encode([make_address("", "q")] * rows, [b""] * rows, [message] * rows)

    def act() -> None:
        for number in range(4):
            client.output.send_message(Transfer(0, number, b"%d" % number, 0, False), sections_of.encode_data(batch))
            client.take(Disposition)

    return act


@operation
def resume_sender(lab: Lab, count: int) -> Callable[[], None]:
    """Resume a sending link whose client has not settled its deliveries."""
    new_client(lab).declare("q")
    options: dict[str, Any] = {
        "receives": False,
        "source": Source("s"),
        "target": Target("/queues/q", expiry_policy="never"),
        "rcv_settle_mode": 1,
    }
    client = lab.connect10()
    client.begin()
    client.attach("s", 0, **options)
    for number in range(min(count, RECEIVED)):
        client.output.send_message(Transfer(0, number, number.to_bytes(4, "big"), 0, False), sections_of.encode_data(b""))
        client.send()
        if number % 1000 == 999:
            client.sync()
    client.sync()
    client.drop()
    client = lab.connect10()
    client.begin()
    return lambda: (client.attach("s", 0, **options), None)[1]


def attach_links(lab: Lab, count: int, source: Source) -> Client10:
    """Return a connection with the maximum number of links, on as many sessions as necessary."""
    client = lab.connect10()
    many = min(count, LINKS)
    for channel in range((many + SESSION_LINKS - 1) // SESSION_LINKS):
        client.begin(channel)
        for number in range(min(SESSION_LINKS, many - channel * SESSION_LINKS)):
            client.send(Attach(f"l{channel}-{number}", number, True, source=source, target=Target("t"), channel=channel))
        client.sync(channel)
    return client


def _dynamic_nodes(lab: Lab, count: int) -> Client10:
    return attach_links(
        lab, count, Source(dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnClose()})
    )


def _links(lab: Lab, count: int) -> Client10:
    deep(lab, 0)
    return attach_links(lab, count, Source("/queues/q"))


@operation
def end_session_dynamic_nodes(lab: Lab, count: int) -> Callable[[], None]:
    client = _dynamic_nodes(lab, count)

    def act() -> None:
        client.send(End())
        client.take(End)

    return act


@operation
def drop_dynamic_nodes(lab: Lab, count: int) -> Callable[[], None]:
    return _dynamic_nodes(lab, count).drop


@operation
def end_session_links(lab: Lab, count: int) -> Callable[[], None]:
    client = _links(lab, count)

    def act() -> None:
        client.send(End())
        client.take(End)

    return act


@operation
def close_sessions_10(lab: Lab, count: int) -> Callable[[], None]:
    client = _links(lab, count)

    def act() -> None:
        client.send(Close())
        client.take(Close)

    return act


@operation
def drop_links(lab: Lab, count: int) -> Callable[[], None]:
    return _links(lab, count).drop


@operation
def filtered_consumers(lab: Lab, count: int) -> Callable[[], None]:
    """Publish one message to a queue with many receivers whose filters do not match."""
    publisher = new_client(lab)
    publisher.declare("q")
    many = min(count, 40 * SESSION_LINKS)
    client = lab.connect10()
    client.begin()
    for number in range(many):
        if number and number % SESSION_LINKS == 0:
            client.sync()
            client = lab.connect10()
            client.begin()
        handle = number % SESSION_LINKS
        wanted = {Symbol("s"): Described(SELECTOR, f"color = 'c{number}'")}
        client.send(Attach(f"f{number}", handle, True, source=Source("/queues/q", filter=wanted), target=Target("t")))
        client.send(Flow(1 << 30, 0, 1 << 30, 0, handle, 0, 10))
    client.sync()

    def act() -> None:
        for _ in range(3):
            publisher.publish("q", headers={"color": "none"})
        publisher.publish("q", headers={"color": f"c{many - 1}"})
        publisher.flush()
        client.wait_delivered(1)

    return act


def _delayed(lab: Lab, count: int, *, durable: bool = False) -> tuple[Client10, float]:
    """Fill a queue with delayed messages, all due at the same moment."""
    new_client(lab).declare("q", durable=durable)
    client = lab.connect10()
    client.begin()
    client.attach("s", 0, receives=False, source=Source("s"), target=Target("/queues/q"), snd_settle_mode=1)
    due = time.time() + 5 + count / 25_000
    payload = (
        sections_of.encode_header(durable, -1, -1, False, 0)
        + sections_of.encode_message_annotations({Symbol("x-opt-delivery-time"): int(due * 1000)})
        + sections_of.encode_data(b"")
    )
    for number in range(count):
        client.output.send_message(Transfer(0, number, b"", 0, True), payload)
        client.send()
        if number % 1000 == 999:
            client.sync()
    client.sync()
    return client, due


@operation
def delayed_due(lab: Lab, count: int) -> Callable[[], None]:
    _, due = _delayed(lab, count)
    return lambda: time.sleep(max(0.0, due - time.time()) + 1)


@operation
def delayed_durable_due(lab: Lab, count: int) -> Callable[[], None]:
    _, due = _delayed(lab, count // 2, durable=True)
    return lambda: time.sleep(max(0.0, due - time.time()) + 2)


@operation
def delayed_purge(lab: Lab, count: int) -> Callable[[], None]:
    _delayed(lab, count)
    client = new_client(lab)
    return lambda: (client.call(1, "queue.purge", "queue.purge-ok", queue="q"), None)[1]


@operation
def delayed_delete(lab: Lab, count: int) -> Callable[[], None]:
    _delayed(lab, count)
    client = new_client(lab)
    return lambda: (client.call(1, "queue.delete", "queue.delete-ok", queue="q"), None)[1]


class Node:
    """The management node: one request at a time."""

    def __init__(self, client: Client10) -> None:
        self.client = client
        paired: Any = {Symbol("paired"): True}
        client.attach(
            "m", 0, receives=False, source=Source("m"), target=Target("/management"), snd_settle_mode=1, properties=paired
        )
        client.attach(
            "m", 1, receives=True, source=Source("/management"), target=Target("m"), snd_settle_mode=1, properties=paired
        )
        client.credit(1, 1000)
        client.sync()
        self.number = 0

    def request(self, method: str, path: str, body: Any = None) -> None:
        before = self.client.delivered
        payload = sections_of.encode_properties(
            Properties(str(self.number), to=path, subject=method, reply_to="$me")
        ) + sections_of.encode_body_value(body)
        self.client.output.send_message(Transfer(0, self.number, b"%d" % self.number, 0, True), payload)
        self.number += 1
        self.client.wait_delivered(before + 1)


def _node(lab: Lab) -> Node:
    client = lab.connect10()
    client.begin()
    return Node(client)


@operation
def node_list_bindings(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    client.call(1, "exchange.declare", "exchange.declare-ok", exchange="x", type="headers")
    for number in range(min(count, 1000)):
        client.send(1, "queue.bind", queue="q", exchange="x", routing_key="", no_wait=True, arguments={"n": number})
    client.sync()
    node = _node(lab)
    return lambda: node.request("GET", "/bindings?src=x&dstq=q&key=")


@operation
def node_unbind(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    client.call(1, "exchange.declare", "exchange.declare-ok", exchange="x", type="headers")
    for number in range(min(count, 5000)):
        client.send(1, "queue.bind", queue="q", exchange="x", routing_key="", no_wait=True, arguments={"n": number})
    client.sync()
    node = _node(lab)
    return lambda: node.request("DELETE", "/bindings/src=x;dstq=q;key=;args=AAAAAAAAAAAAAAAA")


@operation
def node_delete_queue(lab: Lab, count: int) -> Callable[[], None]:
    deep(lab, count)
    node = _node(lab)
    return lambda: node.request("DELETE", "/queues/q")


@operation
def node_purge_queue(lab: Lab, count: int) -> Callable[[], None]:
    deep(lab, count)
    node = _node(lab)
    return lambda: node.request("DELETE", "/queues/q/messages")
