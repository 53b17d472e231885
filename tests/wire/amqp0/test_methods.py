"""Method arguments (0-9-1 section 4.2.4): every method of both versions, and golden vectors created with pamqp."""

from __future__ import annotations

import struct
from typing import Any

import pamqp.base
import pamqp.commands
import pamqp.frame
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from leveret.wire.amqp0 import model
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.methods import decode_arguments, encode_arguments
from leveret.wire.amqp0.model import MethodSpec, Version
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.support.examples import examples
from tests.wire.amqp0.strategies import arguments_of

EVERY_METHOD = [(version, name) for version in (V0_9_1, V0_9) for name in version.by_name]
TABLE = {"a": 70000, "b": {"c": True}}  # 70,000 because pamqp sends smaller numbers in fewer than 32 bits
# For each type, an argument whose start and end can be recognized.
SAMPLES: dict[int, Any] = {
    model.OCTET: 7,
    model.SHORT: 0x1234,
    model.LONG: 0x12345678,
    model.LONGLONG: 0x123456789ABCDEF0,
    model.SHORTSTR: "abc",
    model.LONGSTR: "defg",
    model.TABLE: TABLE,
}


def dialect_of(version: Version) -> Dialect:
    return QPID if version is V0_9 else RABBITMQ


def decode(spec: MethodSpec, payload: bytes, dialect: Dialect = RABBITMQ) -> dict[str, Any]:
    # In the middle of other bytes, as in a connection's buffer.
    data = b"\xaa" * 3 + payload + b"\xbb" * 3
    return decode_arguments(spec, data, 7, 3 + len(payload), dialect)


def all_defaults(spec: MethodSpec) -> dict[str, Any]:
    defaults: dict[int, Any] = {
        model.BIT: False,
        model.SHORTSTR: "",
        model.LONGSTR: "",
        model.TABLE: {},
        model.CONTENT: (0, b""),
        model.OCTETS: b"",
    }
    return {field.name: defaults.get(field.type, 0) for field in spec.fields if not field.reserved}


@pytest.mark.parametrize(("version", "name"), EVERY_METHOD, ids=lambda value: getattr(value, "name", value))
@examples(15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_method_survives_a_round_trip(version: Version, name: str, data: st.DataObject) -> None:
    spec = version.by_name[name]
    dialect = dialect_of(version)
    arguments = data.draw(arguments_of(spec.fields))
    payload = encode_arguments(spec, arguments, dialect)
    assert payload[:4] == struct.pack(">HH", spec.class_id, spec.method_id)
    assert decode(spec, payload, dialect) == {**all_defaults(spec), **arguments}
    # One byte too few, and one too many.
    if len(payload) > 4:
        with pytest.raises(WireError) as caught:
            decode(spec, payload[:-1], dialect)
        assert caught.value.code == 502
    with pytest.raises(WireError, match="after its last field") as caught:
        decode(spec, payload + b"\0", dialect)
    assert caught.value.code == 502


def pamqp_methods() -> list[tuple[str, Any]]:
    found = []
    methods: dict[int, type[pamqp.base.Frame]] = dict(pamqp.commands.INDEX_MAPPING)
    for index, cls in methods.items():
        spec = V0_9_1.methods.get(index)
        assert spec is not None, cls.name
        found.append((spec.name, cls))
    return found


PAMQP = pytest.mark.parametrize(("name", "cls"), pamqp_methods(), ids=lambda value: value if isinstance(value, str) else "")


@PAMQP
@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@pytest.mark.parametrize("bits", [0, 1, 2, 3])
def test_round_trips_with_pamqp(name: str, cls: Any, bits: int) -> None:
    spec = V0_9_1.by_name[name]
    arguments: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for index, field in enumerate(field for field in spec.fields if not field.reserved):
        value = bool((bits >> index % 2) & 1) if field.type == model.BIT else SAMPLES[field.type]
        if name == "basic.return" and field.name == "reply_code":
            value = 312
        arguments[field.name] = value
        theirs[{"global": "globally", "type": "exchange_type"}.get(field.name, field.name)] = value
    ours = encode_arguments(spec, arguments, RABBITMQ)
    frame = struct.pack(">BHI", 1, 5, len(ours)) + ours + b"\xce"
    _, _, decoded = pamqp.frame.unmarshal(frame)
    assert isinstance(decoded, pamqp.base.Frame)
    assert decoded.index == spec.key
    for attribute in decoded.attributes():
        key = {"globally": "global", "global_": "global", "exchange_type": "type"}.get(attribute, attribute)
        if key in arguments:
            assert getattr(decoded, attribute) == arguments[key], attribute
    # pamqp encodes the same values as the same bytes, except for the "0" in the reserved fields of channel.open.
    if name not in ("channel.open", "channel.open-ok"):
        assert pamqp.frame.marshal(decoded, 5) == frame
    assert decode(spec, ours) == arguments


GOLDEN = [
    (
        "queue.declare",
        {"queue": "q", "durable": True, "no_wait": True, "arguments": {"x": 1}},
        "0032000a 0000 0171 12 00000007 0178 49 00000001",
    ),
    ("basic.consume", {"queue": "q", "consumer_tag": "t", "no_ack": True}, "003c0014 0000 0171 0174 02 00000000"),
    ("connection.tune", {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60}, "000a001e 07ff 00020000 003c"),
    ("connection.open", {"virtual_host": "/"}, "000a0028 012f 00 00"),
    (
        "exchange.declare",
        {"exchange": "e", "type": "topic", "internal": True},
        "0028000a 0000 0165 05746f706963 08 00000000",
    ),
    (
        "exchange.declare",
        {"exchange": "e", "type": "topic", "auto_delete": True, "no_wait": True},
        "0028000a 0000 0165 05746f706963 14 00000000",
    ),
    (
        "basic.get-ok",
        {"delivery_tag": 2**63, "redelivered": True, "exchange": "e", "routing_key": "k", "message_count": 3},
        "003c0047 8000000000000000 01 0165 016b 00000003",
    ),
    ("basic.nack", {"delivery_tag": 1, "requeue": True}, "003c0078 0000000000000001 02"),
    ("channel.open-ok", {}, "0014000b 00000000"),
]


@pytest.mark.parametrize(("name", "arguments", "octets"), GOLDEN, ids=[golden[0] for golden in GOLDEN])
def test_golden_vectors(name: str, arguments: dict[str, Any], octets: str) -> None:
    spec = V0_9_1.by_name[name]
    payload = encode_arguments(spec, arguments, RABBITMQ)
    assert payload == bytes.fromhex(octets)
    assert decode(spec, payload) == {**all_defaults(spec), **arguments}


def test_more_than_eight_bits_take_two_bytes() -> None:
    spec = MethodSpec(
        "a.b",
        1,
        2,
        False,
        False,
        True,
        True,
        [model.FieldSpec(f"b{number}", f"b{number}", model.BIT, False, False) for number in range(10)],
        [],
        [],
        False,
    )
    payload = encode_arguments(spec, {"b0": True, "b7": True, "b8": True}, RABBITMQ)
    assert payload == bytes.fromhex("00010002 81 01")
    assert [name for name, value in decode(spec, payload).items() if value] == ["b0", "b7", "b8"]


def test_reserved_fields_are_skipped_whatever_their_values() -> None:
    spec = V0_9_1.by_name["queue.declare"]
    payload = bytes.fromhex("0032000a ffff 0171 e2 00000000")  # a ticket, and unused bits
    assert decode(spec, payload)["durable"] is True
    spec = V0_9_1.by_name["connection.open"]
    assert decode(spec, bytes.fromhex("000a0028 012f 03616263 ff")) == {"virtual_host": "/"}


def test_texts_that_are_not_utf_8_survive() -> None:
    spec = V0_9_1.by_name["connection.secure-ok"]
    payload = encode_arguments(spec, {"response": b"\0\xff\xfe"}, RABBITMQ)
    text = decode(spec, payload)["response"]
    assert text.encode("utf-8", "surrogateescape") == b"\0\xff\xfe"
    assert encode_arguments(spec, {"response": text}, RABBITMQ) == payload


def test_the_body_of_a_message_transfer_of_0_9() -> None:
    spec = V0_9.by_name["message.transfer"]
    payload = encode_arguments(spec, {"body": (1, b"ref"), "priority": 4}, QPID)
    assert payload.endswith(b"\x01\0\0\0\x03ref")
    assert decode(spec, payload, QPID)["body"] == (1, b"ref")


@pytest.mark.parametrize(
    "arguments",
    [{"queue": "q" * 256}, {"queues": "q"}, {"reserved_1": 1}, {"arguments": {"a": object()}}, {"queue": "\ud800"}],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match=r"queue\.declare"):
        encode_arguments(V0_9_1.by_name["queue.declare"], arguments, RABBITMQ)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("connection.tune", {"channel_max": 65536}),
        ("connection.tune", {"frame_max": -1}),
        ("basic.ack", {"delivery_tag": 2**64}),
        ("connection.start", {"version_major": 256}),
    ],
)
def test_numbers_that_do_not_fit(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match=name):
        encode_arguments(V0_9_1.by_name[name], arguments, RABBITMQ)


def test_a_reply_text_that_is_too_long_is_cut_between_characters() -> None:
    spec = V0_9_1.by_name["channel.close"]
    text = decode(spec, encode_arguments(spec, {"reply_text": "aä" * 200}, RABBITMQ))["reply_text"]
    assert len(text.encode()) <= 255
    assert ("aä" * 200).startswith(text)
    assert len(text) == 170


@given(st.sampled_from(EVERY_METHOD), st.binary(max_size=80))
def test_any_bytes_decode_or_are_a_syntax_error(method: tuple[Version, str], data: bytes) -> None:
    version, name = method
    spec = version.by_name[name]
    try:
        arguments = decode(spec, b"\0\0\0\0" + data)
    except WireError as error:
        assert error.code == 502
    else:
        assert arguments.keys() == {field.name for field in spec.fields if not field.reserved}
