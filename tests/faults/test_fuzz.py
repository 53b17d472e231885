"""Fuzzing of the live connection state machine: any sequence of methods, valid or not, and any bytes.

One invariant: the broker's output is well-formed and ends in a reply or a protocol close; the broker lives; other clients
are not affected; no exception is logged. LEVERET_FUZZ_EXAMPLES sets the number of sequences per test.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands
from pamqp.heartbeat import Heartbeat

from tests.faults.neighbour import Neighbour
from tests.support.broker import Broker
from tests.support.peers.framing import content, decode, encode, frame_bytes, header_frame
from tests.support.peers.rude import RudePeer

EXAMPLES = int(os.environ.get("LEVERET_FUZZ_EXAMPLES", "80"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

# Most steps use one of a few open channels; channel 9 checks that the others have been served.
OPEN = range(1, 5)
SYNC = 9
CHANNELS = st.sampled_from([*OPEN] * 25 + [0, 7, 2048, 65535])
LONG = "x" * 255
OWN = ["", "fuzz.a", "fuzz.b", "fuzz.ü"]
NAMES = st.sampled_from(
    [*["fuzz.a", "fuzz.b"] * 12, *OWN, "amq.direct", "amq.headers", "amq.mine", "amq.rabbitmq.reply-to", LONG]
)
EXCHANGES = st.sampled_from(
    [*["", "fuzz.a"] * 6, *OWN, "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.mine", "missing"]
)
KEYS = st.sampled_from(["", "fuzz.a", "fuzz.b", "#", "a.*.#", "3", "é" * 100])
TAGS = st.sampled_from(["", "tag-1", "tag-2"])
SMALL = st.sampled_from([0, 1, 2, 65535])
RARELY = st.sampled_from([False] * 7 + [True])
BOOLEANS = st.booleans()
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False), st.text(max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
ARGUMENTS = [
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-overflow",
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-single-active-consumer", "x-queue-type",
    "x-delivery-limit", "x-match", "x-priority", "alternate-exchange", "hash-header", "CC", "BCC", "other",
]  # fmt: skip
SENSIBLE = st.sampled_from([
    {}, {}, {}, {}, {}, {}, {"x-max-length": 2}, {"x-message-ttl": 5}, {"x-max-length": 1, "x-overflow": "reject-publish"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "fuzz.b"}, {"x-max-priority": 4}, {"x-expires": 50},
    {"x-dead-letter-exchange": "fuzz.a", "x-max-length": 1}, {"x-single-active-consumer": True}, {"x-max-length-bytes": 50},
    {"x-dead-letter-exchange": "", "x-message-ttl": 1, "x-dead-letter-routing-key": "fuzz.a"}, {"x-priority": 3},
    {"x-match": "any", "n": 1}, {"alternate-exchange": "amq.fanout"}, {"x-queue-type": "quorum", "x-delivery-limit": 1},
])  # fmt: skip
STRANGE = st.dictionaries(
    st.sampled_from(ARGUMENTS),
    st.one_of(VALUES, NAMES, st.sampled_from(["quorum", "drop-head", "reject-publish", "all", "any", 1, 5, 100])),
    max_size=3,
)
TABLES = st.one_of(SENSIBLE, SENSIBLE, SENSIBLE, SENSIBLE, STRANGE)
PROPERTIES = st.builds(
    commands.Basic.Properties,
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.sampled_from([None, 0, 5, 255]),
    expiration=st.sampled_from([None] * 8 + ["0", "10", "60000", "-1", "x"]),
    headers=st.one_of(st.none(), st.just({"n": 1}), st.just({"CC": ["fuzz.a", "fuzz.b"]}), TABLES),
    reply_to=st.sampled_from([None, None, None, "fuzz.a", "amq.rabbitmq.reply-to"]),
    user_id=st.sampled_from([None] * 8 + ["guest", "other"]),
    message_id=st.sampled_from([None, "m"]),
)
TYPES = st.sampled_from(["direct", "fanout", "topic", "headers", "x-consistent-hash"] * 3 + ["", "nonsense"])

METHODS = st.one_of(
    st.builds(commands.Queue.Declare, queue=NAMES, exclusive=BOOLEANS),
    st.builds(commands.Queue.Declare, queue=NAMES, durable=BOOLEANS, exclusive=BOOLEANS, nowait=RARELY, arguments=TABLES),
    st.builds(commands.Queue.Declare, queue=NAMES, passive=BOOLEANS, auto_delete=BOOLEANS, nowait=RARELY, arguments=TABLES),
    st.builds(commands.Queue.Bind, queue=NAMES, exchange=EXCHANGES, routing_key=KEYS, nowait=RARELY, arguments=TABLES),
    st.builds(commands.Queue.Unbind, queue=NAMES, exchange=EXCHANGES, routing_key=KEYS, arguments=TABLES),
    st.builds(commands.Queue.Purge, queue=NAMES, nowait=RARELY),
    st.builds(commands.Queue.Delete, queue=NAMES, if_unused=BOOLEANS, if_empty=BOOLEANS, nowait=RARELY),
    st.builds(commands.Exchange.Declare, exchange=EXCHANGES, exchange_type=TYPES, passive=RARELY, durable=BOOLEANS,
              auto_delete=BOOLEANS, internal=RARELY, nowait=RARELY, arguments=TABLES),
    st.builds(commands.Exchange.Delete, exchange=EXCHANGES, if_unused=BOOLEANS, nowait=RARELY),
    st.builds(commands.Exchange.Bind, destination=EXCHANGES, source=EXCHANGES, routing_key=KEYS, arguments=TABLES),
    st.builds(commands.Exchange.Unbind, destination=EXCHANGES, source=EXCHANGES, routing_key=KEYS, arguments=TABLES),
    st.builds(commands.Basic.Qos, prefetch_size=SMALL, prefetch_count=SMALL, global_=BOOLEANS),
    st.builds(commands.Basic.Consume, queue=NAMES, consumer_tag=st.just(""), no_ack=BOOLEANS, arguments=TABLES),
    st.builds(commands.Basic.Consume, queue=NAMES, consumer_tag=TAGS, no_local=BOOLEANS, no_ack=BOOLEANS, exclusive=RARELY,
              nowait=RARELY, arguments=TABLES),
    st.builds(commands.Basic.Cancel, consumer_tag=TAGS, nowait=RARELY),
    st.builds(commands.Basic.Get, queue=NAMES, no_ack=BOOLEANS),
    st.builds(commands.Basic.Recover, requeue=BOOLEANS),
    st.builds(commands.Basic.Recover, requeue=BOOLEANS),
    st.builds(commands.Confirm.Select, nowait=RARELY),
    st.builds(commands.Tx.Select),
    st.builds(commands.Tx.Commit),
    st.builds(commands.Tx.Rollback),
    st.builds(commands.Channel.Flow, active=BOOLEANS),
    st.just(commands.Channel.Close(200, "", 0, 0)),
    st.sampled_from([
        *[commands.Tx.Commit()] * 20,
        commands.Connection.Open("/"), commands.Connection.TuneOk(1, 1, 1), commands.Connection.Blocked("x"),
        commands.Queue.DeclareOk("q", 0, 0), commands.Basic.GetEmpty(), commands.Channel.Open(), commands.Channel.CloseOk(),
        commands.Channel.FlowOk(True), commands.Connection.UpdateSecret("guest", ""), commands.Connection.CloseOk(),
    ]),
)  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, int, Any]:
    """One step: its kind, its channel and its argument.

    `octets`  a method, a complete publish, or a misplaced piece of one
    settle   ack, nack or reject of a received delivery, by its distance from the last; or of none
    """
    kind = draw(st.integers(0, 99))
    channel = draw(CHANNELS)
    if kind < 45:
        return "octets", channel, encode_or_nothing(draw(METHODS), channel)
    if kind < 75:
        publish = commands.Basic.Publish(
            exchange=draw(EXCHANGES), routing_key=draw(KEYS), mandatory=draw(BOOLEANS), immediate=draw(RARELY)
        )
        return "octets", channel, whole_publish(channel, publish, draw(PROPERTIES), draw(st.binary(max_size=60)))
    if kind < 97:
        verb = draw(st.sampled_from(["ack", "nack", "reject"]))
        return "settle", channel, (verb, draw(st.sampled_from([0, 0, 0, 0, 1, 2, 5])), draw(BOOLEANS), draw(BOOLEANS))
    if kind == 97:
        return "octets", channel, header_frame(channel, draw(st.integers(0, 100)))
    if kind == 98:
        return "octets", channel, frame_bytes(3, channel, draw(st.binary(max_size=50)))
    return "octets", 0, encode(Heartbeat(), 0)


class Session:
    """Performs steps on an open connection, and reopens channels that the broker closes."""

    def __init__(self, peer: RudePeer) -> None:
        self.peer = peer
        self.last = dict.fromkeys([*OPEN, SYNC], 0)
        self.ended = False
        peer.reach("opened")
        for channel in (*OPEN, SYNC):
            peer.send_method(commands.Channel.Open(), channel)
            peer.expect_method("Channel.OpenOk")
        # Initially there are two queues with messages, one of them consumed, and an exchange.
        for queue in ("fuzz.a", "fuzz.b"):
            self._ask(commands.Queue.Delete(queue=queue))
            self._ask(commands.Queue.Declare(queue=queue, exclusive=True))
            for _ in range(3):
                peer.send_bytes(content(SYNC, commands.Basic.Publish(routing_key=queue), b"there"))
        self._ask(commands.Exchange.Delete(exchange="fuzz.a"))
        self._ask(commands.Exchange.Declare(exchange="fuzz.a", exchange_type="fanout", auto_delete=True))
        self._ask(commands.Queue.Bind(queue="fuzz.b", exchange="fuzz.a", routing_key=""))
        peer.send_method(commands.Confirm.Select(), 3)
        peer.send_method(commands.Tx.Select(), 4)
        peer.send_method(commands.Basic.Consume(queue="fuzz.a"), 2)

    def _ask(self, method: Any) -> None:
        self.peer.send_method(method, SYNC)
        assert self.peer.next_method().name.endswith("Ok")

    def do(self, step: tuple[str, int, Any]) -> None:
        kind, channel, what = step
        if kind == "octets":
            self.peer.send_bytes(what)
        else:
            verb, back, multiple, requeue = what
            tag = self.last.get(channel, 0) - back
            if tag <= 0 and back < 5:
                return
            if verb == "ack":
                method: Any = commands.Basic.Ack(max(tag, 0), multiple)
            elif verb == "nack":
                method = commands.Basic.Nack(max(tag, 0), multiple, requeue)
            else:
                method = commands.Basic.Reject(max(tag, 0), requeue)
            self.peer.send_method(method, channel)
        self.serve()

    def serve(self) -> None:
        """Read input until the reply on the channel that only checks."""
        self.peer.send_method(commands.Basic.Qos(), SYNC)
        while not self.ended:
            frame = self.peer.next_frame(timeout=60)
            if frame is None:
                self.ended = True
            elif frame[0] == 1:
                method = decode(*frame)
                seen[method.name] += 1
                channel = frame[1]
                if method.name in ("Basic.Deliver", "Basic.GetOk"):
                    self.last[channel] = method.delivery_tag
                elif method.name == "Basic.QosOk" and channel == SYNC:
                    return
                elif method.name in ("Channel.Close", "Channel.CloseOk"):
                    if method.name == "Channel.Close":
                        assert method.reply_code in CHANNEL_CODES, f"{method.reply_code} {method.reply_text}"
                        self.peer.send_method(commands.Channel.CloseOk(), channel)
                    self.peer.send_method(commands.Channel.Open(), channel)
                    self.last[channel] = 0
                elif method.name in ("Connection.Close", "Connection.CloseOk"):
                    if method.name == "Connection.Close":
                        assert method.reply_code in CONNECTION_CODES, f"{method.reply_code} {method.reply_text}"
                    self.ended = True


CHANNEL_CODES = (311, 313, 403, 404, 405, 406, 505)
CONNECTION_CODES = (320, 402, 501, 502, 503, 504, 505, 506, 530, 540)
seen: Counter[str] = Counter()


def encode_or_nothing(value: Any, channel: int) -> bytes:
    """Encode a step, or skip it: pamqp refuses some values that it cannot encode."""
    try:
        return encode(value, channel)
    except (ValueError, TypeError, OverflowError, struct.error):
        return b""


def whole_publish(channel: int, publish: Any, properties: Any, body: bytes) -> bytes:
    try:
        return content(channel, publish, body, properties)
    except (ValueError, TypeError, OverflowError, struct.error):
        return b""


def ends_well(peer: RudePeer) -> None:
    """After any input, a clean close is answered, or the broker has closed the connection with well-formed frames."""
    peer.send_method(commands.Connection.Close(200, "", 0, 0))
    peer.half_close()
    while True:
        frame = peer.next_frame(timeout=60)
        if frame is None:
            return
        kind, channel, payload = frame
        if kind == 1:
            class_id, method_id = struct.unpack_from(">HH", payload)
            if (class_id, method_id) in ((10, 50), (10, 51)):
                assert channel == 0
                if method_id == 50:
                    code = struct.unpack_from(">H", payload, 4)[0]
                    assert code in CONNECTION_CODES, f"closed with {code}: {payload!r}"


@pytest.fixture(scope="module")
def beside(shared_broker: Broker) -> Any:
    neighbour = Neighbour(shared_broker)
    yield neighbour
    neighbour.close()


@FUZZ
@given(st.lists(steps(), min_size=5, max_size=60))
def test_methods(broker: Broker, beside: Neighbour, sequence: list[tuple[str, int, Any]]) -> None:
    """One step at a time on an open connection."""
    with RudePeer(broker) as peer:
        session = Session(peer)
        for step in sequence:
            session.do(step)
            if session.ended:
                break
        else:
            ends_well(peer)
    beside.check()
    assert broker.alive()
    broker.check_log()


@pytest.mark.slow
@FUZZ
@given(st.lists(steps(), min_size=5, max_size=60))
def test_in_one_piece(broker: Broker, beside: Neighbour, sequence: list[tuple[str, int, Any]]) -> None:
    """All steps at once: the broker drops everything after an error."""
    with RudePeer(broker) as peer:
        Session(peer)
        peer.send_bytes(octets(sequence))
        ends_well(peer)
    beside.check()
    assert broker.alive()
    broker.check_log()


@FUZZ
@given(
    st.lists(st.one_of(steps().map(lambda step: octets([step])), st.binary(max_size=20)), min_size=1, max_size=6),
    st.sampled_from(["started", "authenticated", "tuned"]),
)
def test_handshake(broker: Broker, beside: Neighbour, sequence: list[bytes], stage: str) -> None:
    """Anything in place of the next step of the handshake."""
    with RudePeer(broker) as peer:
        peer.reach(stage)
        peer.send_bytes(b"".join(sequence))
        ends_well(peer)
    beside.check()
    assert broker.alive()
    broker.check_log()


@pytest.mark.slow
@FUZZ
@given(
    st.lists(steps(), min_size=3, max_size=30),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 1 << 20),
)
def test_mutated_bytes(broker: Broker, beside: Neighbour, sequence: list[tuple[str, int, Any]],
                        changes: list[tuple[int, int]], cut: int) -> None:  # fmt: skip
    """A session with some bytes changed, split into two pieces anywhere."""
    data = bytearray(octets(sequence))
    if not data:
        return
    for position, value in changes:
        data[position % len(data)] = value
    cut %= len(data)
    with RudePeer(broker) as peer:
        Session(peer)
        peer.send_bytes(bytes(data[:cut]))
        peer.send_bytes(bytes(data[cut:]))
        ends_well(peer)
    beside.check()
    assert broker.alive()
    broker.check_log()


def test_the_fuzzer_reached_most_methods(broker: Broker, beside: Neighbour) -> None:
    """The fuzzer goes deep: most methods were answered. Also delete what it left."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None and EXAMPLES >= 300:
        missing = DEEP - set(seen)
        assert not missing, f"never answered: {missing}; answered: {seen}"
    with RudePeer(broker) as peer:
        peer.reach("channel")
        for name in ("fuzz.a", "fuzz.b", "fuzz.ü", LONG):
            peer.send_method(commands.Queue.Delete(queue=name), 1)
            peer.expect_method("Queue.DeleteOk")
            peer.send_method(commands.Exchange.Delete(exchange=name), 1)
            peer.expect_method("Exchange.DeleteOk")


DEEP = {
    "Queue.DeclareOk", "Queue.BindOk", "Exchange.DeclareOk", "Basic.ConsumeOk", "Basic.Deliver", "Basic.GetOk", "Basic.Ack",
    "Basic.Return", "Tx.SelectOk", "Tx.CommitOk", "Channel.Close", "Basic.RecoverOk", "Confirm.SelectOk",
}  # fmt: skip


def octets(sequence: list[tuple[str, int, Any]]) -> bytes:
    return b"".join(what if kind == "octets" else encode(commands.Basic.Ack(what[1] + 1, what[2]), channel)
                    for kind, channel, what in sequence)  # fmt: skip
