"""Operations on many links, termini and deliveries of AMQP 1.0 at once."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Client10, Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import deep, new_client
from bench.turns_amqp10 import LINKS, RECEIVED, SESSION_LINKS, UNSETTLED, attach_links, receiver
from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Accepted, Rejected, Released, Source, Target
from leveret.wire.amqp10.transactions import Coordinator, Declare, Declared, TransactionalState
from leveret.wire.amqp10.transport import Attach, Close, Detach, Disposition, End, Flow, Transfer

# Default limit of links of a user that outlive their sessions.
KEPT = 10_000
TRANSACTIONS = 250


def kept_links(lab: Lab, count: int, policy: str) -> Client10:
    """Return a connection with the maximum number of suspended links; their sessions have ended, except the last."""
    new_client(lab).declare("q")
    client = lab.connect10()
    many = min(count, KEPT)
    for first in range(0, many, SESSION_LINKS):
        if first:
            client.send(End())
            client.take(End)
        client.begin()
        for number in range(first, min(first + SESSION_LINKS, many)):
            source = Source("/queues/q", expiry_policy=policy)
            client.send(Attach(f"l{number}", number - first, True, source=source, target=Target("t")))
        client.sync()
    client.send(End())
    client.take(End)
    return client


@operation
def close_kept_links(lab: Lab, count: int) -> Callable[[], None]:
    client = kept_links(lab, count, "connection-close")

    def act() -> None:
        client.send(Close())
        client.take(Close)

    return act


@operation
def drop_kept_links(lab: Lab, count: int) -> Callable[[], None]:
    return kept_links(lab, count, "connection-close").drop


@operation
def expire_kept_links(lab: Lab, count: int) -> Callable[[], None]:
    """Suspend links that end without a timeout when their session ends."""
    return kept_links(lab, count, "never").drop


@operation
def attach_batch(lab: Lab, count: int) -> Callable[[], None]:
    new_client(lab).declare("q")
    client = lab.connect10()
    client.begin()

    def act() -> None:
        for number in range(min(count, SESSION_LINKS)):
            client.send(Attach(f"l{number}", number, True, source=Source("/queues/q"), target=Target("t")))
        client.sync()

    return act


@operation
def detach_batch(lab: Lab, count: int) -> Callable[[], None]:
    new_client(lab).declare("q")
    client = attach_links(lab, SESSION_LINKS, Source("/queues/q"))

    def act() -> None:
        for number in range(SESSION_LINKS):
            client.send(Detach(number, True))
        client.sync()

    return act


@operation
def drain_links(lab: Lab, count: int) -> Callable[[], None]:
    new_client(lab).declare("q")
    client = attach_links(lab, SESSION_LINKS, Source("/queues/q"))

    def act() -> None:
        for number in range(SESSION_LINKS):
            client.send(Flow(1 << 30, 0, 1 << 30, 0, number, 0, 10, drain=True))
        client.sync()

    return act


@operation
def huge_flows(lab: Lab, count: int) -> Callable[[], None]:
    """Grant the maximum credit and window, many times, over a deep queue."""
    deep(lab, count)
    client = lab.connect10()
    client.begin()
    client.attach("r", 0, receives=True, source=Source("/queues/q"), target=Target("t"))

    def act() -> None:
        for _ in range(2000):
            client.send(Flow(0, 0, 1 << 30, 0, 0, 0, (1 << 32) - 1))
        client.send(Flow((1 << 32) - 1, 0, 1 << 30, 0, 0, 0, (1 << 32) - 1))
        client.wait_delivered(min(count, UNSETTLED))

    return act


def _scattered(lab: Lab, count: int, state: Composite) -> Callable[[], None]:
    """Settle every second delivery by itself, then all of the largest range."""
    client = receiver(lab, count)

    def act() -> None:
        for number in range(0, client.last, 2):
            client.send(Disposition(True, number, None, True, state))
        client.send(Disposition(True, 1, (1 << 31) - 1, True, state))
        client.sync()

    return act


@operation
def accept_scattered(lab: Lab, count: int) -> Callable[[], None]:
    return _scattered(lab, count, Accepted())


@operation
def release_scattered(lab: Lab, count: int) -> Callable[[], None]:
    return _scattered(lab, count, Released())


@operation
def empty_ranges(lab: Lab, count: int) -> Callable[[], None]:
    """Settle large ranges without deliveries, many times."""
    client = receiver(lab, count)

    def act() -> None:
        for _ in range(100):
            client.send(Disposition(True, client.last + 1, client.last + (1 << 30), True, Accepted()))
        client.sync()

    return act


@operation
def close_transactions(lab: Lab, count: int) -> Callable[[], None]:
    """Close a connection with many open transactions, each with a message."""
    new_client(lab).declare("q")
    client = lab.connect10()
    client.begin()
    client.attach("t", 1, receives=False, source=Source("t"), target=Coordinator())
    client.attach("s", 0, receives=False, source=Source("s"), target=Target("/queues/q"), snd_settle_mode=1)
    for number in range(min(count, TRANSACTIONS)):
        client.output.send_message(
            Transfer(1, 2 * number, b"%d" % number, 0, False), b"\x00\x53\x77" + encode_composite(Declare())
        )
        declared = client.take(Disposition).state
        assert isinstance(declared, Declared)
        client.output.send_message(
            Transfer(0, 2 * number + 1, b"", 0, True, state=TransactionalState(declared.txn_id)),
            sections_of.encode_data(b""),
        )
    client.sync()
    return client.drop


@operation
def reject_range(lab: Lab, count: int) -> Callable[[], None]:
    client = receiver(lab, count)

    def act() -> None:
        client.send(Disposition(True, 0, (1 << 31) - 1, True, Rejected()))
        client.sync()

    return act


@operation
def accept_range_unsettled(lab: Lab, count: int) -> Callable[[], None]:
    """Accept deliveries, of which every second one is settled already, so that the broker's answers are many."""
    client = receiver(lab, count)
    for number in range(0, client.last, 2):
        client.send(Disposition(True, number, None, True, Accepted()))
    client.sync()

    def act() -> None:
        client.send(Disposition(True, 0, client.last, False, Accepted()))
        client.sync()

    return act


@operation
def change_durability(lab: Lab, count: int) -> Callable[[], None]:
    """Attach a link again whose unsettled deliveries were not stored before."""
    _durable_queue(lab, count)
    held = min(count, UNSETTLED)
    client = lab.connect10()
    client.begin()
    client.attach("r", 0, receives=True, source=Source("/queues/q", expiry_policy="never"), target=Target("t"))
    client.credit(0, held)
    client.wait_delivered(held)
    client.drop()
    client = lab.connect10()
    client.begin()
    source = Source("/queues/q", expiry_policy="never", durable=2)
    return lambda: (client.attach("r", 0, receives=True, source=source, target=Target("t")), None)[1]


def _durable_queue(lab: Lab, count: int) -> None:
    client = new_client(lab)
    client.declare("q", durable=True)
    client.fill("q", min(count, UNSETTLED), delivery_mode=2)


@operation
def settle_received(lab: Lab, count: int) -> Callable[[], None]:
    """Settle deliveries of receiver settle mode second, all at once."""
    client = _sender(lab, count)

    def act() -> None:
        client.send(Disposition(False, 0, (1 << 31) - 1, True))
        client.sync()

    return act


@operation
def end_session_received(lab: Lab, count: int) -> Callable[[], None]:
    client = _sender(lab, count)

    def act() -> None:
        client.send(End())
        client.take(End)

    return act


@operation
def delete_received(lab: Lab, count: int) -> Callable[[], None]:
    _sender(lab, count)
    return lambda: (lab.control("links.delete", name="s"), None)[1]


def _sender(lab: Lab, count: int) -> Client10:
    """Return a client that has not settled its deliveries on a link that outlives the session."""
    new_client(lab).declare("q")
    client = lab.connect10()
    client.begin()
    target = Target("/queues/q", expiry_policy="never")
    client.attach("s", 0, receives=False, source=Source("s"), target=target, rcv_settle_mode=1)
    for number in range(min(count, RECEIVED)):
        client.output.send_message(Transfer(0, number, number.to_bytes(4, "big"), 0, False), sections_of.encode_data(b""))
        client.send()
        if number % 1000 == 999:
            client.sync()
    client.sync()
    return client


@operation
def delete_queue_of_links(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    attach_links(lab, LINKS, Source("/queues/q"))
    return lambda: (client.call(1, "queue.delete", "queue.delete-ok", queue="q"), None)[1]
