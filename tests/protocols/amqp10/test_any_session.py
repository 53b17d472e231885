"""Any mixture of frames, right or wrong, in any order: the broker never fails, others are not concerned, and when everybody
has gone nothing is left behind."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.messaging import (
    Accepted,
    Header,
    Modified,
    Properties,
    Received,
    Rejected,
    Released,
    Source,
    Target,
)
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transactions import Coordinator, Declare, Discharge, TransactionalState
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from leveret.wire.amqp10.values import Described, Symbol
from tests.protocols.amqp10.support import Client, connect, make_site, message
from tests.protocols.machine import Errors
from tests.support.examples import examples

channels = st.integers(0, 2)
handles = st.integers(0, 4)
small = st.one_of(st.none(), st.integers(0, 6), st.sampled_from([0xFFFFFFFF, 0x80000000]))
numbers = st.one_of(st.integers(0, 8), st.sampled_from([0xFFFFFFFF, 0x7FFFFFFF]))
flags = st.booleans()
maybe = st.one_of(st.none(), st.booleans())
ids = st.sampled_from([(1).to_bytes(8, "big"), (2).to_bytes(8, "big"), b"none"])
outcomes: st.SearchStrategy[Any] = st.one_of(
    st.just(Accepted()),
    st.just(Released()),
    st.just(Rejected()),
    st.builds(Modified, maybe, maybe, st.sampled_from([None, {Symbol("x-opt-a"): 1}])),
)
states = st.one_of(
    st.none(), outcomes, st.just(Received(0, 0)), st.builds(TransactionalState, ids, st.one_of(st.none(), outcomes))
)
addresses = st.sampled_from(
    [
        None,
        "one",
        "two",
        "new",
        "/queues/one",
        "/queues/none",
        "/exchanges/amq.topic/a",
        "/topic/a",
        "amq.fanout",
        "/exchanges/",
        "",
        "amq.headers/x",
    ]
)
filters = st.sampled_from([None, {Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")}])
sources = st.one_of(
    st.none(), st.builds(Source, addresses, dynamic=flags, filter=filters, default_outcome=st.one_of(st.none(), outcomes))
)
targets = st.one_of(st.none(), st.builds(Target, addresses, dynamic=flags), st.just(Coordinator()))
VALUE = b"\x00\x53\x77"
payloads = st.one_of(
    st.just(b""),
    st.binary(max_size=8),
    st.builds(message, st.binary(max_size=9), durable=flags),
    st.just(message(header=Header(ttl=0), properties=Properties(to="one", subject="a"))),
    st.just(VALUE + encode_composite(Declare())),
    st.builds(lambda id, fail: VALUE + encode_composite(Discharge(id, fail)), ids, maybe),
)
frames: st.SearchStrategy[Performative] = st.one_of(
    st.builds(Begin, numbers, numbers, numbers, channel=channels),
    st.builds(
        Attach,
        st.sampled_from("abc"),
        handles,
        flags,
        st.integers(0, 2),
        st.integers(0, 1),
        sources,
        targets,
        initial_delivery_count=small,
        channel=channels,
    ),
    st.builds(
        Flow,
        numbers,
        numbers,
        numbers,
        small,
        st.one_of(st.none(), handles),
        small,
        small,
        drain=flags,
        echo=flags,
        channel=channels,
    ),
    st.builds(
        Transfer,
        handles,
        small,
        st.one_of(st.none(), st.binary(max_size=4)),
        st.sampled_from([None, 0, 0, 5]),
        maybe,
        flags,
        st.sampled_from([None, 0, 1]),
        states,
        flags,
        flags,
        payload=payloads,
        channel=channels,
    ),
    st.builds(Disposition, flags, numbers, small, flags, states, channel=channels),
    st.builds(Detach, handles, flags, channel=channels),
)
rare = st.one_of(frames, st.builds(End, channel=channels), st.just(Open("again")), st.just(Close()))
# A session with links, followed by anything.
BEGINNING: list[Performative] = [
    Begin(0, 100, 100),
    Attach("s", 0, False, target=Target("one"), source=Source(), initial_delivery_count=0),
    Attach("r", 1, True, source=Source("one"), target=Target()),
    Flow(50, 0, 50, 0, 1, 0, 20),
    Attach("t", 2, False, target=Coordinator(), source=Source(), initial_delivery_count=0),
    Transfer(2, 0, b"1", 0, payload=VALUE + encode_composite(Declare())),
    Transfer(0, 1, b"2", 0, payload=message(durable=True)),
    Transfer(0, 2, b"3", 0, payload=message()),
]


def size_of(frame: Composite) -> bytes:
    output = Output(1 << 16)
    assert isinstance(frame, Performative)
    try:
        output.send(frame)
    except EncodeError:
        return b""
    return output.to_send()


@examples(400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(rare, max_size=25), flags, st.integers(0, 3), st.data())
def test_any_frames(sent: list[Performative], begun: bool, how: int, data: st.DataObject) -> None:
    errors = Errors()
    logging.getLogger("leveret").addHandler(errors)
    try:
        site = make_site()
        for name in ("one", "two"):
            site.vhost.declare_queue(name, None, durable=name == "one")
        witness = connect(site, container="witness").begin()
        client = connect(site)
        for frame in [*BEGINNING, *sent] if begun else sent:
            octets = size_of(frame)
            if how == 3 and octets:
                at = data.draw(st.integers(0, len(octets) - 1))
                octets = octets[:at] + bytes((data.draw(st.integers(0, 255)),)) + octets[at + 1 :]
            if client.peer.closed:
                break
            client.session.data_received(octets)
            if how != 1:
                site.run()
        site.run()
        sender = witness.sender("/queues/two")
        sender.send(message(b"still here"))
        assert sender.outcomes() == [(0, 0, True, "Accepted")]
        if how == 2 and not client.peer.closed:
            client.run()
        client.drop()
        witness.client.drop()
        assert not errors.lines
        assert not site.services.sessions
        assert not site.protocols.amqp10.links
        assert not site.broker.holders
        for queue in site.vhost.queues.values():
            assert queue.unacked == 0, queue.name
            assert not queue.consumers
    finally:
        logging.getLogger("leveret").removeHandler(errors)


@pytest.mark.parametrize("sasl", [False, True])
@examples(150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=80), flags)
def test_any_bytes(sasl: bool, octets: bytes, opened: bool) -> None:
    site = make_site()
    client = Client(site, sasl=sasl)
    if opened and not sasl:
        client.open()
    errors = Errors()
    logging.getLogger("leveret").addHandler(errors)
    try:
        for at in range(0, len(octets), 7):
            if not client.peer.closed:
                client.session.data_received(octets[at : at + 7])
            site.run()
    finally:
        logging.getLogger("leveret").removeHandler(errors)
    client.drop()
    assert not errors.lines
    assert not site.services.sessions
