"""Content headers (0-9-1 section 4.2.6.1): against pamqp, and the skip-scan against the generic decoder."""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any

import pamqp.commands
import pamqp.header
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp0.commands import Publish
from leveret.wire.amqp0.dialects import QPID, RABBITMQ
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.model import ClassSpec, FieldSpec, Version
from leveret.wire.amqp0.properties import (
    check_header,
    decode_header,
    decode_headers_table,
    encode_header,
    overlay_header,
    scan,
    shorten_array,
)
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.wire.amqp0.strategies import arguments_of, tables

BASIC = 60
properties = arguments_of(V0_9_1.classes[BASIC].properties)
ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 70000, "b": [True]},
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1700000000,
    "type": "t",
    "user_id": "u",
    "app_id": "app",
    "cluster_id": "cl",
}


def scanned(header: bytes) -> Publish | None:
    publish = Publish(1, b"\0\0", 0, header, 0, b"", 0, -1, None, None, -1)
    return publish if scan(publish, header, RABBITMQ) else None


def test_every_property_in_its_place() -> None:
    header = encode_header(BASIC, 2**40, ALL)
    assert (
        header
        == bytes.fromhex(
            "003c 0000 0000010000000000 fffc"
            "0a746578742f706c61696e 057574662d38 00000010 01614900011170 016241000000027401".replace(" ", "")
        )
        + b"\x02\x05\x01c\x01r\x0560000\x01m"
        + struct.pack(">Q", 1700000000)
        + b"\x01t\x01u\x03app\x02cl"
    )
    assert decode_header(header) == (BASIC, 2**40, ALL)
    publish = scanned(header)
    assert publish is not None
    assert (publish.delivery_mode, publish.priority, publish.expiration, publish.user_id) == (2, 5, b"60000", b"u")
    assert decode_headers_table(header, publish.headers_at) == ALL["headers"]


@pytest.mark.parametrize("name", [*ALL, None])
def test_round_trips_with_pamqp(name: str | None) -> None:
    chosen = dict(ALL) if name is None else {name: ALL[name]}
    chosen.pop("cluster_id", None)  # pamqp insists that it is empty
    timestamp = chosen.pop("timestamp", None)
    theirs = pamqp.commands.Basic.Properties(
        **{{"type": "message_type"}.get(key, key): value for key, value in chosen.items()}
    )
    payload = pamqp.header.ContentHeader(body_size=77, properties=theirs).marshal()
    assert decode_header(payload) == (BASIC, 77, chosen)
    assert encode_header(BASIC, 77, chosen) == payload
    if timestamp is not None:
        read = pamqp.header.ContentHeader()
        read.unmarshal(encode_header(BASIC, 77, {"timestamp": timestamp}))
        assert isinstance(read.properties.timestamp, datetime)
        assert read.properties.timestamp.timestamp() == timestamp


def test_absent_and_empty_are_not_the_same() -> None:
    absent = encode_header(BASIC, 0, {})
    empty = encode_header(BASIC, 0, {"headers": {}, "content_type": "", "priority": 0})
    assert decode_header(absent)[2] == {}
    assert decode_header(empty)[2] == {"headers": {}, "content_type": "", "priority": 0}
    publish = scanned(absent)
    assert publish is not None
    assert (publish.delivery_mode, publish.priority, publish.expiration, publish.user_id, publish.headers_at) == (
        0,
        -1,
        None,
        None,
        -1,
    )
    publish = scanned(empty)
    assert publish is not None
    assert (publish.priority, publish.headers_at) == (0, 15)
    assert encode_header(BASIC, 0, {"headers": None}) == absent


@given(properties, st.integers(0, 2**64 - 1))
def test_headers_survive_a_round_trip(chosen: dict[str, Any], size: int) -> None:
    header = encode_header(BASIC, size, chosen)
    assert decode_header(header) == (BASIC, size, chosen)
    assert_agreement(header)


@pytest.mark.parametrize("version", [V0_9, V0_9_1], ids=lambda version: version.name)
@given(st.data())
def test_classes_with_content_of_both_versions(version: Version, data: st.DataObject) -> None:
    owner = data.draw(st.sampled_from([owner for owner in version.classes.values() if owner.properties]))
    chosen = data.draw(arguments_of(owner.properties))
    header = encode_header(owner.class_id, 5, chosen, QPID, version)
    assert decode_header(header, QPID, version) == (owner.class_id, 5, chosen)


def assert_agreement(header: bytes) -> None:
    """The fast scan returns the same result as the generic decoder, and accepts the same input."""
    publish = scanned(header)
    try:
        _, _, decoded = decode_header(header)
    except WireError as error:
        assert error.code == 502
        assert publish is None
        assert not check_header(header, RABBITMQ, V0_9_1)
        return
    assert check_header(header, RABBITMQ, V0_9_1)
    assert publish is not None
    assert publish.delivery_mode == decoded.get("delivery_mode", 0)
    assert publish.priority == decoded.get("priority", -1)
    for name, octets in (("expiration", publish.expiration), ("user_id", publish.user_id)):
        assert octets == (decoded[name].encode("utf-8", "surrogateescape") if name in decoded else None)
    assert (publish.headers_at >= 0) == ("headers" in decoded)
    if publish.headers_at >= 0:
        assert decode_headers_table(header, publish.headers_at) == decoded["headers"]


@given(properties, st.data())
def test_fast_and_generic_decoder_agree_on_mutated_headers(chosen: dict[str, Any], data: st.DataObject) -> None:
    header = bytearray(encode_header(BASIC, 1, chosen))
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set" if len(header) > 12:
                header[data.draw(st.integers(12, len(header) - 1))] = data.draw(st.integers(0, 255))
            case "cut":
                del header[data.draw(st.integers(12, len(header))) :]
            case _:
                at = data.draw(st.integers(12, max(12, len(header))))
                header[at:at] = data.draw(st.binary(max_size=4))
    assert_agreement(bytes(header))


@given(st.binary(max_size=40), st.integers(0, 0xFFFF))
def test_fast_and_generic_decoder_agree_on_any_bytes(rest: bytes, flags: int) -> None:
    assert_agreement(struct.pack(">HHQH", BASIC, 0, 1, flags) + rest)
    assert_agreement(struct.pack(">HHQ", BASIC, 0, 1) + rest)


@pytest.mark.parametrize(
    ("flags", "rest", "sound"),
    [
        (0x8001, b"\0\0" + b"\x01a", True),  # a second word of flags without any flag
        (0x8001, b"\0\x01\0\x01\0\0" + b"\x01a", True),  # and more of them
        (0x8001, b"\x80\0" + b"\x01a", False),  # a sixteenth property, which class basic does not have
        (0x8001, b"\0\x02" + b"\x01a", False),
        (0x8001, b"\0", False),
        (0x0001, b"", False),
        (0x8002, b"\x01a", False),  # the fifteenth property
        (0x8000, b"\x01ab", False),
        (0x8000, b"", False),
        (0x2000, b"\0\0\0", False),
        (0x2000, b"\0\0\0\x01", False),
        (0x2000, b"\0\0\0\x03\x01aV", True),
        (0x2000, b"\0\0\0\x03\x01a?", False),
    ],
)
def test_property_flags(flags: int, rest: bytes, sound: bool) -> None:
    header = struct.pack(">HHQH", BASIC, 0, 1, flags) + rest
    assert check_header(header, RABBITMQ, V0_9_1) == sound
    assert_agreement(header)


def test_more_than_fifteen_properties_take_another_word_of_flags() -> None:
    version = Version("long")
    owner = ClassSpec("long", 7, [], False)
    owner.properties = [FieldSpec(f"p{index}", f"p{index}", 1, False, False) for index in range(32)]
    version.classes[7] = owner
    chosen = {"p0": 1, "p14": 2, "p15": 3, "p31": 4}
    header = encode_header(7, 0, chosen, RABBITMQ, version)
    assert header[12:] == bytes.fromhex("8003 8001 4000 01020304")
    assert decode_header(header, RABBITMQ, version) == (7, 0, chosen)
    assert encode_header(7, 0, {"p0": 1}, RABBITMQ, version)[12:] == bytes.fromhex("8000 01")


@pytest.mark.parametrize(
    "header", [b"", encode_header(BASIC, 0, {})[:-1], b"\0\x07" + b"\0" * 12, encode_header(BASIC, 0, {}) + b"\0"]
)
def test_headers_that_are_malformed(header: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_header(header)
    assert caught.value.code == 502
    with pytest.raises(WireError):
        overlay_header(header, {"a": 1}, False)


@pytest.mark.parametrize(
    "chosen",
    [{"priority": 256}, {"colour": "red"}, {"content_type": "x" * 256}, {"headers": {"a": object()}}, {"timestamp": -1}],
)
def test_properties_that_do_not_fit(chosen: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        encode_header(BASIC, 0, chosen)


def test_headers_of_a_class_that_does_not_exist() -> None:
    with pytest.raises(EncodeError, match="class 7"):
        encode_header(7, 0, {})


@pytest.mark.parametrize("at", [14, 15, 40, 1000])
def test_a_headers_table_if_there_was_none(at: int) -> None:
    with pytest.raises(WireError):
        decode_headers_table(encode_header(BASIC, 0, {"content_type": "\xff" * 5}), at)


names = st.sampled_from(["a", "b", "x-death", "ä"])


@given(properties, st.dictionaries(names, st.sampled_from([None, 1, "v", [{"a": 2**40}]]), max_size=3), st.booleans())
def test_overlays_change_only_the_named_headers(chosen: dict[str, Any], changes: dict[str, Any], drop: bool) -> None:
    header = encode_header(BASIC, 9, chosen)
    overlaid = overlay_header(header, changes, drop)
    expected = dict(chosen)
    if drop:
        expected.pop("expiration", None)
    table = {name: value for name, value in chosen.get("headers", {}).items() if name not in changes}
    table.update({name: value for name, value in changes.items() if value is not None})
    if table or "headers" in chosen:
        expected["headers"] = table
    assert decode_header(overlaid) == (BASIC, 9, expected)
    if not changes and not (drop and "expiration" in chosen):
        assert overlaid == header
    assert_agreement(overlaid)


@given(tables)
def test_overlays_keep_the_bytes_of_other_headers(table: dict[str, Any]) -> None:
    # A 16-bit integer and a 32-bit float, which we would encode otherwise, and a duplicate name.
    foreign = b"\x01ss\0\x07" + b"\x01ff" + struct.pack(">f", 0.5) + b"\x01ss\0\x08" + b"\x01dt\x01"
    header = struct.pack(">HHQHI", BASIC, 0, 0, 0x2000, len(foreign)) + foreign
    overlaid = overlay_header(header, {"d": None, "x-death": table}, False)
    assert overlaid[18 : 18 + len(foreign) - 4] == foreign[:-4]
    assert decode_headers_table(overlaid, 14) == {"s": 8, "f": 0.5, "x-death": table}


@given(tables, st.lists(tables, max_size=8), st.integers(0, 400), st.booleans())
def test_an_array_is_shortened_to_the_elements_that_fit(
    table: dict[str, Any], items: list[dict[str, Any]], limit: int, after: bool
) -> None:
    table = {name: value for name, value in table.items() if name != "x-death"}

    def header_with(count: int) -> bytes:
        headers = {**table, "x-death": items[:count], **({"z": 1} if after else {})}
        return encode_header(BASIC, 9, {"content_type": "a", "headers": headers, "expiration": "5"})

    header = header_with(len(items))
    count = max((n for n in range(1, len(items) + 1) if len(header_with(n)) <= limit), default=len(items))
    assert shorten_array(header, b"x-death", limit) == header_with(count)
    assert shorten_array(header, b"missing", limit) == header


def test_overlays_keep_continued_property_flags() -> None:
    header = struct.pack(">HHQH", BASIC, 0, 0, 0x8101) + b"\0\0" + b"\x01a" + b"\x015"
    overlaid = overlay_header(header, {"h": 1}, True)
    assert decode_header(overlaid)[2] == {"content_type": "a", "headers": {"h": 1}}
