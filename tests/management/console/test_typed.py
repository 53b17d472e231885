"""The view of messages with their AMQP types, in a real browser."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pika
import pytest

from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.values import LongLong
from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.values import Symbol, UInt
from tests.management.console.conftest import Screenshot
from tests.management.console.test_clients import session
from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete
from tests.management.http.client import HttpBroker
from tests.support.peers.amqp10 import message, section

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Decodes messages by the module of the console.
_DECODE = """
const [messages, done] = arguments;
const url = document.querySelector("script[type=module]").src.replace("main.js", "typed.js");
import(url).then(({ typedRows }) => done(messages.map(typedRows)));
"""
BASIC = 60


def decode(console: Console, protocol: str, *messages: bytes) -> list[list[Any]]:
    """Return the rows of messages as `[depth, name, type, value]`."""
    encoded = [{"protocol": protocol, "encoded": base64.b64encode(one).decode()} for one in messages]
    found = console.driver.execute_async_script(_DECODE, encoded)
    return [[[row["depth"], row["name"], row["type"], row["value"]] for row in rows] for rows in found]


@pytest.fixture
def typed(api: HttpBroker) -> Iterator[str]:
    declare(api, "typed")
    yield "typed"
    delete(api, "typed")


def test_types_of_field_tables(console: Console) -> None:
    headers = {
        "flag": True,
        "small": 7,
        "big": LongLong(1 << 60),
        "price": Decimal("19.99"),
        "ratio": 0.5,
        "name": "Zoë",
        "raw": b"\x00\xff",
        "when": datetime(2026, 11, 25, 12, tzinfo=UTC),
        "none": None,
        "list": [1, "two"],
        "table": {"inner": 3},
    }
    header = encode_header(BASIC, 12, {"content_type": "text/plain", "headers": headers, "delivery_mode": 2})
    console.enter()
    [rows] = decode(console, "0-9-1", header)
    assert rows == [
        [0, "class", "short", "60 (basic)"],
        [0, "body size", "longlong", "12"],
        [0, "content-type", "shortstr", "text/plain"],
        [0, "headers", "table (F)", ""],
        [1, "flag", "boolean (t)", "true"],
        [1, "small", "signed int (I)", "7"],
        [1, "big", "signed long (l)", str(1 << 60)],
        [1, "price", "decimal (D)", "1999 × 10^-2"],
        [1, "ratio", "double (d)", "0.5"],
        [1, "name", "long string (S)", "Zoë"],
        [1, "raw", "byte array (x)", "00 ff"],
        [1, "when", "timestamp (T)", "2026-11-25T12:00:00.000Z"],
        [1, "none", "void (V)", ""],
        [1, "list", "array (A)", ""],
        [2, "0", "signed int (I)", "1"],
        [2, "1", "long string (S)", "two"],
        [1, "table", "table (F)", ""],
        [2, "inner", "signed int (I)", "3"],
        [0, "delivery-mode", "octet", "2"],
    ]


def test_types_of_sections(console: Console) -> None:
    key = UUID("00112233-4455-6677-8899-aabbccddeeff")
    whole = (
        encode_composite(Header(True, 5))
        + section(descriptors.MESSAGE_ANNOTATIONS, {Symbol("x-opt-kind"): Symbol("a")})
        + encode_composite(Properties(message_id=key, subject="new"))
        + section(descriptors.APPLICATION_PROPERTIES, {"count": UInt(300), "ok": False})
        + section(descriptors.AMQP_VALUE, {"list": [1, None, b"\x01"]})
    )
    console.enter()
    [rows] = decode(console, "1.0", whole)
    assert [0, "header", "list", "2 values"] in rows
    assert [1, "durable", "boolean", "true"] in rows and [1, "priority", "ubyte", "5"] in rows
    assert [1, "x-opt-kind", "symbol", "a"] in rows
    assert [1, "message-id", "uuid", str(key)] in rows and [1, "subject", "string", "new"] in rows
    assert "user-id" not in [row[1] for row in rows]  # a null
    assert [1, "count", "uint", "300"] in rows and [1, "ok", "boolean", "false"] in rows
    assert rows[-5:] == [
        [0, "amqp-value", "map", ""],
        [1, "list", "list", "3 values"],
        [2, "0", "long", "1"],
        [2, "1", "null", ""],
        [2, "2", "binary", "01"],
    ]


def test_damaged_and_hostile_messages_end_where_they_cannot_be_read(console: Console) -> None:
    header = encode_header(BASIC, 0, {"headers": {"a": "b" * 30}})
    deep = b"\xc0\x02\x01" * 80 + b"\x40"
    console.enter()
    cut, unknown = decode(console, "0-9-1", header[:-9], header.replace(b"\x01aS", b"\x01a?"))
    assert cut[-1][3] == "the rest is not shown: the bytes end here"
    assert unknown[-1][3] == "the field 'a' has the unknown type '?'"
    many = b"\x00\x53\x77\xf0" + struct.pack(">II", 5, 1 << 30) + b"\x40"
    for rows in decode(
        console, "1.0", many, b"\x00\x53\x77" + deep, b"\x00\x53\x77\xd0\xff\xff\xff\xff", b"nonsense", b"\x00"
    ):
        assert len(rows) <= 5001
        assert rows[-1][1] == "…" and rows[-1][3]


def test_a_message_with_its_types(console: Console, api: HttpBroker, typed: str, axe: str, screenshot: Screenshot) -> None:
    with session(api) as peer:
        more = section(descriptors.APPLICATION_PROPERTIES, {"attempts": UInt(70000)})
        peer.sender(f"/queues/{typed}").deliver(
            message(b"hello", properties=Properties(subject="greeting"), after=b"").replace(
                b"\x00\x53\x75", more + b"\x00\x53\x75"
            )
        )
    console.enter("queues", "/", typed, tab="messages")
    console.click("AMQP", ".toolbar button")
    rows = console.wait_for_rows(lambda found: ["attempts", "uint", "70000"] in found)
    assert ["subject", "string", "greeting"] in rows
    assert ["data", "binary", "68 65 6c 6c 6f"] in rows
    console.see("As the publisher has sent it over AMQP 1.0.")
    console.script("document.querySelector('main').scrollTo(0, 10000)")
    for scheme in ("light", "dark"):
        console.prefer(scheme)
        screenshot(f"typed-{scheme}")
        assert console.findings(axe) == []
    console.use_phone()
    console.see_fit()


def test_scripts_in_typed_values_are_inert(console: Console, api: HttpBroker, typed: str) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", api.process.port)) as connection:
        properties = pika.BasicProperties(headers={IMAGE: {SCRIPT: [IMAGE]}}, type=SCRIPT)
        connection.channel().basic_publish("", typed, b"x", properties)
    console.enter("queues", "/", typed, tab="messages")
    console.click("AMQP", ".toolbar button")
    console.wait_for_rows(lambda found: [IMAGE, "table (F)", ""] in found and ["0", "long string (S)", IMAGE] in found)
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0
