"""Composite types (types 1.4): the generic encoder and decoder, and the short ways of the hot path against them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import (
    decode_composite,
    decode_value,
    encode_any,
    encode_composite,
    fields_of,
    name_of,
)
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.messaging import Accepted, DeleteOnClose, Modified, Received, Rejected, Source, Target
from leveret.wire.amqp10.output import encode_performative
from leveret.wire.amqp10.short import read_disposition, read_flow, read_transfer
from leveret.wire.amqp10.specs import COMPOSITES, TYPES
from leveret.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, Disposition, Error, Flow, Open, Transfer
from leveret.wire.amqp10.values import Array, Described, Map, Symbol, UByte, UInt, ULong
from tests.support.examples import examples
from tests.wire.amqp10.strategies import any_composite, composites, plain

READERS: dict[int, Any] = {0x13: read_flow, 0x14: read_transfer, 0x15: read_disposition}


def described(kind: int, *fields: Any) -> bytes:
    return encode_value(Described(ULong(kind), list(fields)))


@examples(400)
@given(any_composite)
def test_round_trip(value: Composite) -> None:
    octets = encode_composite(value)
    decoded, end = decode_composite(b"x" + octets + b"x", 1)
    assert end == len(octets) + 1
    assert plain(decoded) == plain(value)
    assert type(decoded) is type(value)
    assert encode_composite(decoded) == octets


@given(any_composite)
def test_by_symbolic_descriptor(value: Composite) -> None:
    octets = encode_composite(value)
    symbol = COMPOSITES[value.kind].symbol.encode()
    symbolic = b"\x00\xa3" + bytes((len(symbol),)) + symbol + octets[3:]
    assert plain(decode_composite(symbolic)[0]) == plain(value)
    wide = b"\x00\x80" + bytes(7) + octets[2:]
    assert plain(decode_composite(wide)[0]) == plain(value)


@examples(500)
@given(st.sampled_from(["transfer", "disposition", "flow"]).flatmap(lambda name: composites(TYPES.composites[name])))
def test_short_forms_equal_the_generic_encoding(value: Composite) -> None:
    assert encode_performative(value) == encode_composite(value)


@examples(500)
@given(
    st.sampled_from(["transfer", "disposition", "flow"]).flatmap(lambda name: composites(TYPES.composites[name])), st.data()
)
def test_short_forms_are_read_as_by_the_generic_decoder(value: Composite, data: st.DataObject) -> None:
    octets = bytearray(encode_composite(value))
    if data.draw(st.booleans()):
        # Also for malformed input: None or the same.
        octets[data.draw(st.integers(3, len(octets) - 1))] = data.draw(
            st.sampled_from([0, 1, 4, 5, 0x40, 0x41, 0x42, 0x43, 0x45, 0x50, 0x52, 0x53, 0x56, 0x70, 0xA0, 0xC0, 255])
        )
    head = 6 if octets[3] == 0xC0 else 12 if octets[3] == 0xD0 else 0
    if not head or len(octets) < head:
        return
    count = octets[5] if head == 6 else int.from_bytes(octets[8:12], "big")
    stop = 5 + octets[4] if head == 6 else 8 + int.from_bytes(octets[4:8], "big")
    if stop != len(octets):
        return
    short = READERS[octets[2]](bytes(octets), head, stop, count, 7)
    try:
        generic, _ = decode_composite(bytes(octets))
    except DecodeError:
        assert short is None
        return
    if short is not None:
        assert plain(short) == plain(generic)
        assert short.channel == 7


@pytest.mark.parametrize(
    "octets",
    [
        "005314c00d06" + "43" + "7000000100" + "a00161" + "43" + "42" + "41",
        "005314c00b05" + "5201" + "5205" + "a00161" + "43" + "41",
        "005314d00000000e00000005" + "43" + "43" + "a00474616731" + "43" + "42",
        "005314c00d0b" + "43404040" + "40" + "41" + "5001" + "40" + "41" + "42" + "41",
        "005315c00906" + "41" + "43" + "40" + "41" + "00532445" + "42",
        "005315c00a05" + "41" + "5201" + "5202" + "41" + "00532645",
        "005315c01205" + "41" + "7000000100" + "7000000200" + "41" + "005324c00100",
        "005313c0130a" + "43" + "700000ffff" + "43" + "700000ffff" + "43" + "43" + "5264" + "40" + "42" + "42",
        "005313c00504" + "40" + "43" + "43" + "43",
    ],
)
def test_the_usual_forms_take_the_short_way(octets: str) -> None:
    data = bytearray.fromhex(octets)
    head = 6
    if data[3] == 0xC0:
        data[4] = len(data) - 5
    else:
        data[4:8] = (len(data) - 8).to_bytes(4, "big")
        head = 12
    count = data[5] if head == 6 else data[11]
    short = READERS[data[2]](bytes(data), head, len(data), count, 3)
    assert short is not None
    assert plain(short) == plain(decode_composite(bytes(data))[0])


def test_defaults() -> None:
    opened = decode_composite(described(0x10, "me"))[0]
    assert fields_of(opened) == {
        "container_id": "me",
        "hostname": None,
        "max_frame_size": 0xFFFFFFFF,
        "channel_max": 65535,
        "idle_time_out": None,
        "outgoing_locales": (),
        "incoming_locales": (),
        "offered_capabilities": (),
        "desired_capabilities": (),
        "properties": None,
    }
    source = decode_composite(bytes.fromhex("00532845"))[0]
    assert isinstance(source, Source)
    assert (source.durable, source.expiry_policy, source.timeout, source.dynamic) == (0, "session-end", 0, False)
    attach = decode_composite(described(0x12, "link", UInt(0), True))[0]
    assert isinstance(attach, Attach)
    assert (attach.snd_settle_mode, attach.rcv_settle_mode, attach.incomplete_unsettled) == (2, 0, False)
    assert name_of(attach) == "attach"


def test_several_values() -> None:
    for several in (Symbol("a"), Array("symbol", [Symbol("a")])):
        opened = decode_composite(described(0x10, "me", None, None, None, None, None, None, several))[0]
        assert isinstance(opened, Open)
        assert opened.offered_capabilities == ("a",)
    for absent in (None, Array("symbol", [])):
        opened = decode_composite(described(0x10, "me", None, None, None, None, None, None, absent))[0]
        assert isinstance(opened, Open)
        assert opened.offered_capabilities == ()
        with pytest.raises(DecodeError, match="sasl-server-mechanisms is mandatory"):
            decode_composite(described(0x40, absent))
    assert encode_composite(Open("", offered_capabilities=("a",))).hex() == "005310c00f08a100404040404040e00401a30161"


def test_states_and_termini() -> None:
    attach = Attach(
        "link",
        1,
        True,
        source=Source(
            "q",
            filter={Symbol("f"): Described(Symbol("x"), "y")},
            default_outcome=Modified(delivery_failed=True),
            outcomes=("a", "b"),
            dynamic_node_properties={"lifetime-policy": DeleteOnClose()},
        ),
        target=Coordinator(("amqp:local-transactions",)),
        unsettled={b"1": None, b"2": Accepted(), b"3": TransactionalState(b"t", Rejected(Error("c")))},
    )
    decoded = decode_composite(encode_composite(attach))[0]
    assert isinstance(decoded, Attach)
    assert isinstance(decoded.target, Coordinator)
    assert isinstance(decoded.source.dynamic_node_properties["lifetime-policy"], DeleteOnClose)
    assert decoded.source.filter == {"f": Described(Symbol("x"), "y")}
    assert decoded.unsettled[b"1"] is None
    assert isinstance(decoded.unsettled[b"2"], Accepted)
    assert decoded.unsettled[b"3"].outcome.error.condition == "c"
    assert decode_composite(described(0x12, "l", UInt(0), True, None, None, Described(Symbol("my:source:list"), [])))
    body, _ = decode_value(encode_any(Discharge(b"t", True)))
    assert isinstance(body, Discharge)
    assert body.fail
    declare, _ = decode_value(b"\x00\xa3\x11amqp:declare:list\x45")
    assert isinstance(declare, Declare)
    assert plain(decode_value(encode_any(Declared(b"t")))[0]) == plain(Declared(b"t"))
    assert decode_value(b"\x55\x01") == (1, 2)


@pytest.mark.parametrize(
    ("octets", "text", "condition"),
    [
        (described(0x10), "open: container-id is mandatory", "decode-error"),
        (described(0x10, None), "open: container-id is mandatory", "decode-error"),
        (described(0x10, Symbol("me")), "container-id: expected a string, not Symbol", "decode-error"),
        (described(0x10, "me", None, 5), "max-frame-size: expected a uint, not int", "decode-error"),
        (described(0x16, UInt(1), None, None, None), "detach: expected at most 3 fields, not 4", "decode-error"),
        (described(0x12, "l", UInt(0), True, UByte(3)), "snd-settle-mode cannot be 3", "invalid-field"),
        (described(0x28, "q", UInt(9)), "durable cannot be 9", "invalid-field"),
        (described(0x28, "q", None, Symbol("sometimes")), "expiry-policy cannot be 'sometimes'", "invalid-field"),
        (described(0x28, 5), "address: expected a address", "decode-error"),
        (described(0x10, "me", *[None] * 8, {"string": 1}), "properties: expected a symbol as key", "decode-error"),
        (
            described(0x12, "l", UInt(0), True, None, None, Described(ULong(0x29), [])),
            "source: expected a source",
            "decode-error",
        ),
        (
            described(0x12, "l", UInt(0), True, *[None] * 4, {None: None}),
            "unsettled: expected a delivery-tag as key",
            "decode-error",
        ),
        (
            described(0x14, UInt(0), *[None] * 6, Described(ULong(0x10), ["me"])),
            "expected a delivery-state",
            "decode-error",
        ),
        (described(0x14, UInt(0), *[None] * 6, 5), "expected a delivery-state", "decode-error"),
        (described(0x18, Described(ULong(0x24), [])), "error: expected a error", "decode-error"),
        (described(0x32, "text"), "txn-id: expected a txn-id", "decode-error"),
        (described(0x73, 5), "message-id: expected a message-id", "decode-error"),
        (described(0x99), "expected a composite type", "decode-error"),
        (b"\x00\x53\x10\xc1\x01\x00", "expected a list", "decode-error"),
        (b"\x40", "expected a described value", "decode-error"),
        (b"\x00\x53\x24\xd0\x00\x00\x00\x04\xff\xff\xff\xff", "expected a list of 4294967295 values", "decode-error"),
    ],
)
def test_refused_composites(octets: bytes, text: str, condition: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_composite(octets)
    assert text in caught.value.text
    assert caught.value.condition == f"amqp:{condition}"


def test_strings_as_keys_of_the_annotations_of_an_outcome() -> None:
    """Symbols are required; RabbitMQ's Python client sends strings."""
    decoded = decode_composite(described(0x27, None, None, {"x-opt-a": 1, Symbol("x-opt-b"): 2}))[0]
    assert isinstance(decoded, Modified)
    assert decoded.message_annotations == {"x-opt-a": 1, "x-opt-b": 2}
    assert {type(key) for key in decoded.message_annotations} == {Symbol}
    with pytest.raises(DecodeError, match="expected a symbol as key"):
        decode_composite(described(0x27, None, None, {"ü": 1}))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Begin, (0, -1, 0)),
        (Begin, (0, 2**32, 0)),
        (Attach, ("l", 0, True, 7)),
        (Attach, ("l", 1, True, 2, 0, Target())),
        (Attach, ("l", 1, True, 0, 0, 5)),
        (Close, (Accepted(),)),
        (Detach, (0, 1)),
        (Open, (None,)),
        (Error, ("é",)),
        (Received, (0, "x")),
        (Discharge, ("text",)),
        (Disposition, (5, 0)),
        (Open, ("x", None, 5, 70000)),
        (Coordinator, (("é",),)),
    ],
    ids=lambda item: item.__name__ if isinstance(item, type) else "",
)
def test_composites_that_cannot_be_encoded(kind: Any, arguments: tuple[Any, ...]) -> None:
    # Compiled classes refuse some of this at once.
    with pytest.raises((EncodeError, TypeError)):
        encode_composite(kind(*arguments))


def test_maps_that_cannot_be_encoded() -> None:
    for properties in ({5: 1}, 7, {"é": 1}, {"a": object()}):
        with pytest.raises(EncodeError):
            encode_composite(Open("x", properties=properties))


def test_hostile_nesting_of_states() -> None:
    octets = b"\x40"
    for _ in range(2000):
        content = b"\xa0\x01t" + octets
        octets = b"\x00\x53\x34\xd0" + (len(content) + 4).to_bytes(4, "big") + (2).to_bytes(4, "big") + content
    with pytest.raises(DecodeError):
        decode_composite(octets)
    with pytest.raises(DecodeError):
        decode_composite(described(0x12, "l", UInt(0), True, *[None] * 4, Map([(b"t", Described(ULong(0x24), 5))])))


def test_transfer_and_flow_are_shortest() -> None:
    assert encode_performative(Transfer(0)).hex() == "005314c0020143"
    assert encode_performative(Transfer(0, 0, b"t", 0, False)).hex() == "005314c0080543" + "43" + "a00174" + "43" + "42"
    assert encode_performative(Flow(1, 2, 3)).hex() == "005313c0080440520152025203"
    assert encode_performative(Disposition(True, 5, None, True, Accepted())).hex() == "005315c00a0541520540410053" + "2445"
