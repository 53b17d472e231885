"""The codec against that of Qpid Proton, if it is installed: each decodes what the other encodes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp10 import message
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.decode import decode_value
from leveret.wire.amqp10.descriptors import ACCEPTED, RELEASED
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.frames import AMQP, Failure, FrameReader
from leveret.wire.amqp10.messaging import Modified, Properties, Source, Target
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, Disposition, Error, Flow, Open, Transfer
from leveret.wire.amqp10.values import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.support.examples import examples
from tests.wire.amqp10.strategies import SCALARS, plain

proton = pytest.importorskip("proton")

# Proton's Python cannot encode a uuid out of what it decoded, and Proton miscounts the values of a list that holds a
# described described value.
TYPES = sorted(set(SCALARS) - {"uuid", "decimal32", "decimal64", "decimal128"})
simple = st.sampled_from(TYPES).flatmap(lambda name: SCALARS[name])
hashable = st.sampled_from(["string", "symbol", "long", "uint"]).flatmap(lambda name: SCALARS[name])
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4),
        st.builds(Described, SCALARS["symbol"] | SCALARS["ulong"], simple | st.lists(simple, max_size=3)),
        st.sampled_from(TYPES).flatmap(lambda name: st.builds(Array, st.just(name), st.lists(SCALARS[name], max_size=4))),
    ),
    max_leaves=8,
)


def through_proton(octets: bytes) -> bytes:
    """Decoded and encoded again by Proton."""
    data = proton.Data()
    assert data.decode(octets) == len(octets)
    copy = proton.Data()
    data.rewind()
    copy.copy(data)
    return bytes(copy.encode())


@examples(300)
@given(nested)
def test_values(value: Any) -> None:
    decoded, _ = decode_value(through_proton(encode_value(value)))
    assert plain(decoded) == plain(value)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (UByte(5), "ubyte"),
        (UShort(500), "ushort"),
        (UInt(70000), "uint"),
        (ULong(2**40), "ulong"),
        (Byte(-5), "byte"),
        (Short(-500), "short"),
        (Int(-70000), "int32"),
        (-(2**40), "int"),
        (Float(1.5), "float32"),
        (2.5, "float"),
        (Char("é"), "char"),
        (Timestamp(12345), "timestamp"),
        (Symbol("s"), "symbol"),
        ("text", "str"),
        (True, "bool"),
        (None, "NoneType"),
        ([1, "a"], "list"),
        ({"a": 1}, "dict"),
        (uuid.UUID(int=5), "UUID"),
    ],
)
def test_types_have_the_same_names(ours: Any, theirs: str) -> None:
    data = proton.Data()
    data.decode(encode_value(ours))
    data.rewind()
    data.next()
    assert type(data.get_object()).__name__ == theirs


def test_a_message_of_proton() -> None:
    theirs = proton.Message(
        body={"k": [1, proton.ulong(2), proton.symbol("s")]},
        durable=True,
        priority=7,
        ttl=5.5,
        id="id-1",
        user_id=b"guest",
        address="queue",
        subject="sub",
        reply_to="back",
        correlation_id=proton.ulong(9),
        content_type="text/plain",
        expiry_time=12,
        creation_time=11,
        group_id="g",
        group_sequence=3,
        reply_to_group_id="r",
        properties={"a": 1, "b": "x"},
        annotations={proton.symbol("x-opt-a"): 1},
        instructions={proton.symbol("x-opt-i"): True},
        first_acquirer=True,
        delivery_count=2,
    )
    sections = split(bytes(theirs.encode()))
    assert (sections.durable, sections.priority, sections.ttl, sections.first_acquirer, sections.delivery_count) == (
        True,
        7,
        5500,
        True,
        2,
    )
    assert (sections.to, sections.subject, sections.user_id, sections.absolute_expiry_time) == (
        b"queue",
        b"sub",
        b"guest",
        12_000,
    )
    properties = message.properties(sections)
    assert properties is not None
    assert (properties.message_id, properties.reply_to, properties.correlation_id, properties.content_type) == (
        "id-1",
        "back",
        ULong(9),
        "text/plain",
    )
    assert (properties.creation_time, properties.group_id, properties.group_sequence, properties.reply_to_group_id) == (
        11_000,
        "g",
        3,
        "r",
    )
    assert message.delivery_annotations(sections) == {"x-opt-i": True}
    assert message.message_annotations(sections) == {"x-opt-a": 1}
    assert message.application_properties(sections) == {"a": 1, "b": "x"}
    assert plain(message.body(sections)) == plain([{"k": [1, ULong(2), Symbol("s")]}])


def test_a_message_for_proton() -> None:
    octets = (
        message.encode_header(True, 7, 5500, True, 2)
        + message.encode_delivery_annotations({"x-opt-i": True})
        + message.encode_message_annotations({"x-opt-a": 1})
        + encode_composite(
            Properties(
                "id-1", b"guest", "queue", "sub", "back", ULong(9), "text/plain", "gzip", 12_000, 11_000, "g", 3, "r"
            )
        )
        + message.encode_application_properties({"a": 1, "b": "x"})
        + message.encode_data(b"body")
    )
    theirs = proton.Message()
    theirs.decode(octets)
    assert (theirs.durable, theirs.priority, theirs.ttl, theirs.first_acquirer, theirs.delivery_count) == (
        True,
        7,
        5.5,
        True,
        2,
    )
    assert (theirs.id, bytes(theirs.user_id), theirs.address, theirs.subject, theirs.reply_to, theirs.correlation_id) == (
        "id-1",
        b"guest",
        "queue",
        "sub",
        "back",
        9,
    )
    assert (theirs.expiry_time, theirs.creation_time, theirs.group_id, theirs.group_sequence, theirs.reply_to_group_id) == (
        12,
        11,
        "g",
        3,
        "r",
    )
    assert (theirs.content_type, theirs.content_encoding) == ("text/plain", "gzip")
    assert theirs.properties == {"a": 1, "b": "x"}
    assert bytes(theirs.body) == b"body"


class Peer:
    """Proton's engine on one side, our reader and output on the other, without sockets."""

    def __init__(self) -> None:
        self.transport = proton.Transport()
        self.connection = proton.Connection()
        self.connection.container = "proton"
        self.connection.hostname = "vhost:x"
        self.transport.bind(self.connection)
        self.reader = FrameReader(65536)
        self.output = Output(65536)

    def received(self) -> list[Any]:
        """Return Proton's output."""
        items: list[Any] = []
        while (pending := self.transport.pending()) > 0:
            octets = bytes(self.transport.peek(pending))
            self.transport.pop(len(octets))
            items += self.reader.receive(octets)
        assert not any(isinstance(item, Failure) for item in items), items[-1].text
        return items

    def sent(self) -> None:
        """Feed our output to Proton."""
        octets = self.output.to_send()
        for at in range(0, len(octets), 1000):
            self.transport.push(octets[at : at + 1000])


def test_performatives_with_protons_engine() -> None:
    peer = Peer()
    connection = peer.connection
    connection.offered_capabilities = proton.Array(proton.UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("a"))
    connection.properties = {proton.symbol("product"): "test"}
    connection.open()
    session = connection.session()
    session.open()
    sender = session.sender("link")
    sender.source.address = "from"
    sender.target.address = "to"
    sender.target.durability = proton.Terminus.DELIVERIES
    sender.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
    sender.source.outcomes.put_array(False, proton.Data.SYMBOL)
    sender.open()
    header, opened, begin, attach = peer.received()
    peer.output.send_header(AMQP)
    peer.output.send(
        Open(
            "leveret",
            max_frame_size=1000,
            idle_time_out=5000,
            offered_capabilities=("x", "y"),
            properties={"product": "Leveret"},
        )
    )
    peer.output.send(Begin(0, 1000, 1000, remote_channel=0, channel=4))
    peer.output.send(Attach("link", 9, True, source=Source("from"), target=Target("to"), channel=4))
    peer.output.send(Flow(1000, 0, 1000, 0, 9, 0, 10, channel=4))
    peer.sent()
    assert header.is_supported()
    assert (opened.container_id, opened.hostname, opened.offered_capabilities) == ("proton", "vhost:x", ("a",))
    assert opened.properties == {"product": "test"}
    assert isinstance(begin, Begin)
    assert (attach.name, attach.role, attach.source.address, attach.target.address) == ("link", False, "from", "to")
    assert (attach.source.expiry_policy, attach.target.durable) == ("never", 2)
    assert connection.remote_container == "leveret"
    assert connection.remote_properties == {"product": "Leveret"}
    assert session.state & proton.Endpoint.REMOTE_ACTIVE
    assert sender.remote_target.address == "to"
    assert sender.credit == 10

    # Deliveries, the second one in several frames, and their outcomes.
    first, second, third = sender.delivery("1"), None, None
    sender.stream(b"small")
    sender.advance()
    second = sender.delivery("2")
    sender.stream(b"x" * 3000)
    sender.advance()
    third = sender.delivery("3")
    third.update(proton.Delivery.ACCEPTED)
    third.settle()
    transfers = [item for item in peer.received() if isinstance(item, Transfer)]
    assert transfers[0].delivery_tag == b"1"
    assert transfers[0].payload == b"small"
    large = [item for item in transfers if len(item.payload) > 500 or item.payload[:1] == b"x"]
    assert b"".join(item.payload for item in large) == b"x" * 3000
    assert [item.more for item in large] == [True] * (len(large) - 1) + [False]
    peer.output.send_disposition(4, True, 0, 0, True, ACCEPTED)
    peer.output.send(Disposition(True, 1, None, True, Modified(True, True, {"x-opt-a": 1}), channel=4))
    peer.sent()
    assert (first.remote_state, first.settled) == (proton.Delivery.ACCEPTED, True)
    assert (second.remote_state, second.remote.failed, second.remote.undeliverable) == (
        proton.Delivery.MODIFIED,
        True,
        True,
    )
    peer.output.send(Detach(9, True, Error("amqp:not-found", "gone", {"k": "v"}), channel=4))
    peer.output.send_empty()
    peer.output.send(Close(Error("amqp:connection:forced")))
    peer.sent()
    assert (sender.remote_condition.name, sender.remote_condition.description) == ("amqp:not-found", "gone")
    assert sender.remote_condition.info == {"k": "v"}
    assert connection.remote_condition.name == "amqp:connection:forced"


def test_deliveries_to_protons_engine() -> None:
    peer = Peer()
    peer.connection.open()
    session = peer.connection.session()
    session.open()
    receiver = session.receiver("link")
    receiver.open()
    receiver.flow(100)
    flows = [item for item in peer.received() if isinstance(item, Flow)]
    assert flows[-1].link_credit == 100
    peer.output.send_header(AMQP)
    peer.output.send(Open("leveret"))
    peer.output.send(Begin(0, 1000, 1000, remote_channel=0))
    peer.output.send(Attach("link", 0, False, initial_delivery_count=0))
    peer.sent()
    payload = message.encode_header(True, -1, -1, False, 0) + message.encode_data(b"y" * 2000)
    peer.output.max_frame_size = 600
    # Delivery ids of all widths, in one frame and in several.
    for number in (0, 1, 2):
        peer.output.send_transfer(0, 0, number, b"t%d" % number, False, [payload[:10], payload[10:]], len(payload))
    peer.sent()
    for number in (0, 1, 2):
        delivery = receiver.current
        assert delivery.tag == f"t{number}"
        assert not delivery.partial
        assert bytes(receiver.recv(delivery.pending)) == payload
        receiver.advance()
        delivery.update(proton.Delivery.RELEASED if number == 1 else proton.Delivery.ACCEPTED)
        delivery.settle()
    dispositions = [item for item in peer.received() if isinstance(item, Disposition)]
    assert [(item.first, item.settled, item.state.kind) for item in dispositions] == [
        (0, True, ACCEPTED),
        (1, True, RELEASED),
        (2, True, ACCEPTED),
    ]
