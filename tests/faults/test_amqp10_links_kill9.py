"""SIGKILL of a broker process under links with durable unsettled state.

Nothing confirmed is lost, and with receiver settle mode second nothing is delivered twice.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.wire.amqp10.messaging import Accepted, Source, Target
from leveret.wire.amqp10.transport import Disposition, Flow, Transfer
from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.peers.amqp10 import Peer, Receiver, Sender, Session, body_of, message
from tests.support.peers.connection import Closed
from tests.support.polling import wait_until

TOTAL = 1500
MANY = 1_000_000
KEPT: dict[str, Any] = {"durable": 2, "expiry_policy": "never"}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it is killed and started")
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


def connect(process: Broker, container: str = "client") -> Session:
    peer = Peer(process.host, process.port)
    peer.login()
    peer.output.max_frame_size = peer.open(container).max_frame_size
    return peer.begin(incoming_window=100_000)


def kill_after(process: LeveretProcess, seconds: float) -> threading.Thread:
    """Kill the broker after this time, at whatever point that is."""

    def kill() -> None:
        time.sleep(seconds)
        process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


class Sending:
    """A client that sends numbered messages with settle mode second, and remembers its unsettled deliveries."""

    def __init__(self) -> None:
        self.next = 0
        self.unsettled: dict[bytes, bytes] = {}
        self.settled: list[int] = []

    def attach(self, session: Session, **options: Any) -> Sender:
        return session.sender(name="sending", target=Target("/queue/kept", **KEPT), rcv_settle_mode=1, **options)

    def run(self, process: Broker, most: int) -> None:
        """Resume unsettled deliveries, then send new messages until the broker dies, or `most` are sent."""
        with contextlib.suppress(Closed, ConnectionError):
            session = connect(process)
            link = self.attach(session, unsettled=dict.fromkeys(self.unsettled))
            told = link.attached.unsettled or {}
            numbers: dict[int, bytes] = {}
            for tag, payload in list(self.unsettled.items()):
                resumed = tag in told
                # The broker has not stored deliveries that it does not know, so they are sent as new ones.
                number = link.send(b"" if resumed and told[tag] is not None else payload, delivery_tag=tag, resume=resumed)
                numbers[number] = tag
            while self.next < most or numbers:
                while self.next < most and len(numbers) < 50:
                    tag = b"%08d" % self.next
                    payload = message(tag, durable=True)
                    self.unsettled[tag] = payload
                    self.next += 1
                    numbers[link.send(payload, delivery_tag=tag)] = tag
                answer = session.take(Disposition)
                last = answer.first if answer.last is None else answer.last
                assert isinstance(answer.state, Accepted)
                for number in range(answer.first, last + 1):
                    tag = numbers.pop(number)
                    # The sender settles first, and then sends the settlement.
                    del self.unsettled[tag]
                    self.settled.append(int(tag))
                session.dispose(answer.first, last, Accepted(), role=False)
            session.peer.close()


def drain(process: Broker) -> list[bytes]:
    """Consume all messages of the queue."""
    session = connect(process, "drain")
    link = session.receiver("/queue/kept", snd_settle_mode=1)
    session.flow(handle=link.handle, delivery_count=0, link_credit=MANY, drain=True, incoming_window=MANY)
    # The drain has used up the credit.
    session.take(Flow, lambda frame: frame.handle == link.attached.handle and frame.link_credit == 0)
    found = [body_of(frame.payload) for frame in session.peer.kept(Transfer)]
    session.peer.close()
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_sent_once(process: LeveretProcess, seed: int) -> None:
    """Each message arrives once, however often the broker is killed while they are sent."""
    chance = random.Random(seed)
    sending = Sending()
    for _ in range(4):
        thread = kill_after(process, chance.uniform(0.02, 0.3))
        sending.run(process, sending.next + MANY)
        thread.join()
        process.start()
    sending.run(process, sending.next + 10)
    assert not sending.unsettled
    assert sending.settled
    found = [int(body) for body in drain(process)]
    assert sorted(found) == list(range(sending.next))


class Taking:
    """A client that receives messages with settle mode second, and remembers its unsettled deliveries."""

    def __init__(self) -> None:
        self.unsettled: dict[bytes, Accepted | None] = {}
        self.bodies: dict[bytes, int] = {}
        self.done: list[int] = []

    def finish(self, tag: bytes) -> None:
        """The broker has settled or forgotten the delivery: there is no redelivery."""
        self.done.append(self.bodies.pop(tag))
        del self.unsettled[tag]

    def run(self, process: Broker, chance: random.Random, total: int | None = None) -> None:
        """Receive messages until the broker dies, or this many are done."""
        with contextlib.suppress(Closed, ConnectionError):
            session = connect(process)
            link: Receiver = session.receiver(
                name="taking", source=Source("/queue/kept", **KEPT), rcv_settle_mode=1, unsettled=dict(self.unsettled)
            )
            told = link.attached.unsettled or {}
            for tag in [tag for tag in self.unsettled if tag not in told]:
                if isinstance(self.unsettled[tag], Accepted):
                    self.finish(tag)  # unknown to the broker, so the outcome took effect
                else:
                    del self.unsettled[tag], self.bodies[tag]
            numbers: dict[int, bytes] = {}
            link.flow(100)
            while total is None or len(self.done) < total:
                frame = session.peer.read()
                if isinstance(frame, Transfer):
                    link.count += 1
                    self.delivered(session, frame, numbers, chance)
                    link.flow(100)
                elif isinstance(frame, Disposition) and not frame.role:
                    last = frame.first if frame.last is None else frame.last
                    for number in range(frame.first, last + 1):
                        self.finish(numbers.pop(number))
            session.sync()
            assert not session.peer.kept(Transfer)
            assert not self.unsettled
            session.peer.close()

    def delivered(self, session: Session, frame: Transfer, numbers: dict[int, bytes], chance: random.Random) -> None:
        assert frame.delivery_tag is not None and frame.delivery_id is not None
        assert not frame.more
        tag = frame.delivery_tag
        session.next_incoming += 1
        if frame.settled:
            assert frame.resume and isinstance(frame.state, Accepted)
            self.finish(tag)
            return
        if frame.resume:
            assert self.bodies[tag] == int(body_of(frame.payload))
        else:
            assert tag not in self.unsettled
            self.bodies[tag] = int(body_of(frame.payload))
        self.unsettled[tag] = None
        numbers[frame.delivery_id] = tag
        if chance.random() < 0.9:
            self.unsettled[tag] = Accepted()
            session.dispose(frame.delivery_id, state=Accepted(), settled=False)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_taken_once(process: LeveretProcess, seed: int) -> None:
    """Each message is settled once by one client, however often the broker is killed meanwhile."""
    chance = random.Random(seed)
    session = connect(process, "filling")
    filling = session.sender("/queue/kept")
    for number in range(TOTAL):
        filling.send(message(b"%d" % number, durable=True))
    for number in range(TOTAL):
        assert isinstance(session.outcome(number).state, Accepted)
    session.peer.close()
    taking = Taking()
    for _ in range(4):
        thread = kill_after(process, chance.uniform(0.02, 0.2))
        taking.run(process, chance)
        thread.join()
        process.start()
    # Other consumers see only messages that the link does not hold.
    sure = random.Random(0)
    sure.random = lambda: 0.0  # type: ignore[method-assign]
    taking.run(process, sure, TOTAL)
    assert sorted(taking.done) == list(range(TOTAL))
    assert drain(process) == []


def test_interrupted_large_message_resumes(process: LeveretProcess) -> None:
    """An interrupted client resumes at the position that the broker reports, also after a kill."""
    whole = message(bytes(range(256)) * 20_000, durable=True)
    session = connect(process)
    link = session.sender(name="large", target=Target("/queue/kept", **KEPT), rcv_settle_mode=1)
    link.transfer(whole[:2_000_000], delivery_id=0, delivery_tag=b"large", message_format=0, more=True)
    session.sync()
    session.peer.drop()
    # The broker notices the end of the connection, and writes the received part.
    link = resumed(process, b"large")
    state = link.attached.unsettled[b"large"]
    assert (state.section_number, state.section_offset) == (1, 2_000_000 - len(whole) + 8 + len(bytes(range(256)) * 20_000))
    link.session.peer.drop()
    process.kill()
    process.start()
    link = resumed(process, b"large")
    again = link.attached.unsettled[b"large"]
    assert (again.section_number, again.section_offset) == (state.section_number, state.section_offset)
    number = link.send(whole[2_000_000:], delivery_tag=b"large", resume=True, state=again)
    assert isinstance(link.session.outcome(number).state, Accepted)
    link.session.dispose(number, state=Accepted(), role=False)
    link.session.peer.close()
    session = connect(process, "drain")
    delivery = session.receiver("/queue/kept", credit=1).get()
    assert body_of(delivery.payload) == bytes(range(256)) * 20_000
    session.peer.close()


def resumed(process: LeveretProcess, tag: bytes) -> Sender:
    """Attach the link again, repeatedly if necessary, until the broker reports the state of the delivery."""

    def attached() -> Sender | None:
        session = connect(process)
        link = session.sender(name="large", target=Target("/queue/kept", **KEPT), rcv_settle_mode=1, unsettled={tag: None})
        if (link.attached.unsettled or {}).get(tag) is not None:
            return link
        session.peer.drop()
        return None

    return wait_until(attached, "the state of the delivery")
