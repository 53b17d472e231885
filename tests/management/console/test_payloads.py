"""Payloads in the console: trees of values, formats, ranges, and messages to publish again."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from tests.management.console.conftest import downloaded
from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete, publish, queue
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Decodes payloads by the module of the console.
_DECODE = """
const [items, done] = arguments;
const url = document.querySelector("script[type=module]").src.replace("main.js", "decoding.js");
const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const start = (data) => new TextDecoder().decode(data.subarray(0, 100));
const text = (data) => data instanceof Uint8Array ? `${data.length} ${start(data)}` : data;
import(url).then(async ({ decode }) => {
  const found = [];
  for (const [format, data] of items) {
    found.push(await decode(format, bytes(data)).then(text, (error) => `error: ${error.message}`));
  }
  done(found);
});
"""
ZSTD = b"\x28\xb5\x2f\xfd\x00\x38"  # a frame with a window of 128 KiB
# {"id": 7, "big": 2^64 - 1, "list": [nil, true, -1.5], "raw": 0x00ff, "at": 2026-11-25T12:00:00Z, 1: ext 5}
MSGPACK = (
    b"\x86\xa2id\x07\xa3big\xcf"
    + b"\xff" * 8
    + b"\xa4list\x93\xc0\xc3\xcb"
    + struct.pack(">d", -1.5)
    + b"\xa3raw\xc4\x02\x00\xff"
    b"\xa2at\xd6\xff" + struct.pack(">I", 1795608000) + b"\x01\xd4\x05\x2a"
)
# {"id": 7, 1: [2^64 - 1, undefined], "raw": h'00ff', "at": 0("2026-11-25T12:00:00Z")}
CBOR = b"\xa4\x62id\x07\x01\x82\x1b" + b"\xff" * 8 + b"\xf7\x63raw\x42\x00\xff\x62at\xc0\x74" + b"2026-11-25T12:00:00Z"


def decode(console: Console, *items: tuple[str, bytes]) -> list[Any]:
    """Return the rows of payloads as `[depth, name, type, value]`, or the error."""
    encoded = [[kind, base64.b64encode(data).decode()] for kind, data in items]
    found = console.driver.execute_async_script(_DECODE, encoded)
    return [
        item if isinstance(item, str) else [[row["depth"], row["name"], row["type"], row["value"]] for row in item]
        for item in found
    ]


@pytest.fixture
def inbox(api: HttpBroker) -> Iterator[str]:
    declare(api, "inbox")
    yield "inbox"
    delete(api, "inbox")


def send(api: HttpBroker, key: str, payload: bytes, **properties: Any) -> None:
    """Publish a payload of any bytes."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", api.process.port)) as connection:
        connection.channel().basic_publish("", key, payload, pika.BasicProperties(**properties))


def test_values_of_each_format(console: Console) -> None:
    console.enter()
    text = b'{"id": 12345678901234567890, "list": [null, -0.5, "a"], "__proto__": {"x": true}}'
    from_json, from_msgpack, from_cbor = decode(console, ("json", text), ("msgpack", MSGPACK), ("cbor", CBOR))
    assert from_json == [
        [0, "", "object", "3 values"],
        [1, "id", "integer", "12345678901234567890"],
        [1, "list", "array", "3 values"],
        [2, "0", "null", ""],
        [2, "1", "number", "-0.5"],
        [2, "2", "string", "a"],
        [1, "__proto__", "object", "1 value"],
        [2, "x", "boolean", "true"],
    ]
    assert from_msgpack[0] == [0, "", "object", "6 values"]
    for row in (
        [1, "big", "integer", str(2**64 - 1)],
        [2, "2", "number", "-1.5"],
        [1, "raw", "binary", "00 ff"],
        [1, "at", "timestamp", "2026-11-25T12:00:00.000Z"],
        [1, "1", "extension 5", "2a"],
    ):
        assert row in from_msgpack
    assert from_cbor == [
        [0, "", "map", "4 values"],
        [1, "id", "number", "7"],
        [1, "1", "array", "2 values"],
        [2, "0", "integer", str(2**64 - 1)],
        [2, "1", "undefined", ""],
        [1, "raw", "binary", "00 ff"],
        [1, "at", "tag 0", ""],
        [2, "", "string", "2026-11-25T12:00:00Z"],
    ]


def test_compressed_payloads(console: Console) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    data = b"leveret " * 5000
    console.enter()
    assert decode(console, ("zstd", pyarrow.compress(data, "zstd", asbytes=True))) == [f"{len(data)} {data[:100].decode()}"]


def test_hostile_payloads_end(console: Console) -> None:
    """Payloads that are damaged, nested deeply, or that expand end in an error or in a limited number of rows."""
    rle = struct.pack("<I", (131072 << 3) | 2)[:3] + b"a"
    bombs = (
        ("json", b"[" * 200_000 + b"]" * 200_000),
        ("json", b"[" + b"1," * 200_000 + b"1]"),
        ("json", b"\xff"),
        ("msgpack", b"\xdd\x00\x0f\xff\xff" * 200_000),
        ("msgpack", b"\x91" * 500_000 + b"\xc0"),
        ("msgpack", b"\xdf\xff\xff\xff\xff"),
        ("msgpack", b"\x81\xa9__proto__\x01"),
        ("msgpack", b""),
        ("cbor", b"\x81" * 500_000 + b"\x00"),
        ("cbor", b"\x9b\x00\x00\xff\xff\xff\xff\xff\xff\x00"),
        ("cbor", b"\x7b\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("cbor", b"\xc1" * 100_000 + b"\x00"),
        ("zstd", ZSTD + rle * 1000),
        ("zstd", b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 2**31 - 1)),
        ("zstd", b"nonsense"),
    )
    console.enter()
    found = decode(console, *bombs)
    assert len(found) == len(bombs)
    for bomb, rows in zip(bombs, found, strict=True):
        assert rows.startswith("error: ") if isinstance(rows, str) else len(rows) <= 5002, bomb
    assert "expands to over 16 MiB" in found[12]
    assert len(found[0]) == 66 and found[0][-1][3] == "deeper values are not shown"


def test_a_tree_that_is_collapsed(console: Console, api: HttpBroker, inbox: str, axe: str) -> None:
    send(api, inbox, MSGPACK, content_type="application/msgpack")
    console.enter("queues", "/", inbox, tab="messages")
    console.wait_for_rows(lambda rows: len(rows) == 10 and ["big", "integer", str(2**64 - 1)] in rows)
    assert console.findings(axe) == []
    console.click("list, array")
    console.wait_for_rows(lambda rows: len(rows) == 7)
    console.click("Collapse all")
    console.wait_for_rows(lambda rows: len(rows) == 1)
    console.click("Expand all")
    console.wait_for_rows(lambda rows: len(rows) == 10)
    console.click("CBOR", ".toolbar button")
    console.see("The payload is not valid CBOR")
    console.use_phone()
    console.see_fit()


def test_json_as_a_tree(console: Console, api: HttpBroker, inbox: str) -> None:
    publish(api, inbox, '{"order": {"id": 7, "items": ["a"]}}')
    console.enter("queues", "/", inbox, tab="messages")
    console.see('"id": 7')
    console.click("Tree", ".toolbar button")
    console.wait_for_rows(lambda rows: ["0", "string", "a"] in rows)
    assert queue(api, inbox)["messages"] == 1


def test_a_large_payload_is_read_in_ranges(console: Console, api: HttpBroker, inbox: str, downloads: Path) -> None:
    text = json.dumps({"first": "ä" * 600_000, "last": "the end"}, ensure_ascii=False)
    whole = text.encode()
    send(api, inbox, whole, content_type="application/json")
    console.enter("queues", "/", inbox, tab="messages")
    console.see(f"Bytes 0 to 262,143 of {len(whole):,}")
    console.see_enabled("Tree", ".toolbar button", False)
    console.click("Next part")
    console.see(f"Bytes 262,144 to 524,287 of {len(whole):,}")
    console.click("Hex", ".toolbar button")
    console.see("00040000")
    console.click("Previous part")
    console.see("00000000  7b 22 66 69 72 73 74 22")
    console.click("Download")
    target = downloads / "payload.bin"
    assert downloaded(target) == whole
    console.click("Show whole payload")
    console.see_no("Next part")
    console.see_enabled("JSON", ".toolbar button")
    console.click("Tree", ".toolbar button")
    console.see("payloads of up to 1 MiB are decoded")
    assert queue(api, inbox)["messages"] == 1


def test_templates_and_saved_messages(console: Console, api: HttpBroker, inbox: str, downloads: Path, axe: str) -> None:
    console.enter("queues", "/", inbox, tab="publish")
    console.choose("Begin with", "Text with headers")
    console.see_value("Properties", '"tenant": "a"')
    console.fill("Payload", "again and again")
    console.click("Saved messages", "summary")
    console.fill("Name of the saved message", "ping")
    console.click("Save message")
    assert console.findings(axe) == []
    console.driver.refresh()
    console.see_heading(inbox)
    console.choose("Begin with", "ping")
    console.see_value("Payload", "again and again")
    console.see_value("Routing key", inbox)
    console.click("Publish message")
    console.see("the message reached at least one queue")
    [message] = api.get(f"/leveret/queues/%2F/{inbox}/messages")["messages"]
    assert (message["payload"], message["properties"]["headers"]["tenant"]) == ("again and again", "a")
    console.click("Saved messages", "summary")
    console.click("Export")
    target = downloads / "saved-messages.json"
    [exported] = json.loads(downloaded(target))
    assert (exported["name"], exported["payload"]) == ("ping", "again and again")
    console.click("Delete saved message")
    console.see_result("[]", "return localStorage.getItem('leveret-messages')")
    target.write_text(json.dumps([exported | {"name": IMAGE, "payload": SCRIPT, "more": 1}]), "utf-8")
    chooser = wait_until(
        lambda: console.script("return document.querySelector('input[type=file]')"), "the choice of a file"
    )
    chooser.send_keys(str(target))
    console.choose("Begin with", "onerror")
    console.see_value("Payload", SCRIPT)
    target.write_text(json.dumps([{"name": "x", "payload": {}}]), "utf-8")
    chooser.send_keys(str(target))
    console.see("not a saved message")
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0
    target.unlink()


def test_scripts_in_payloads_are_inert(console: Console, api: HttpBroker, inbox: str) -> None:
    text = json.dumps({IMAGE: [SCRIPT, {"constructor": None, "type": "img", "props": {"onerror": "x"}}]}).encode()
    encode = b"\x81\xd9" + bytes([len(IMAGE)]) + IMAGE.encode() + b"\x91\xd9" + bytes([len(SCRIPT)]) + SCRIPT.encode()
    send(api, inbox, text, content_type=IMAGE)
    send(api, inbox, encode, content_type="application/msgpack", content_encoding=IMAGE)
    console.enter("queues", "/", inbox, tab="messages")
    console.click("Tree", ".toolbar button")
    console.wait_for_rows(lambda rows: any(IMAGE in row[0] for row in rows))
    console.click("2", ".list button", exact=False)
    console.wait_for_rows(lambda rows: any(SCRIPT in row for row in rows))
    console.click("CBOR", ".toolbar button")
    console.see("The payload is not valid CBOR")
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0


def test_a_user_without_payloads_sees_why(console: Console, api: HttpBroker, inbox: str) -> None:
    publish(api, inbox, "secret")
    console.open("queues", "/", inbox, tab="messages")
    console.sign_in("operator")
    console.see("Your user has the tag no-payloads and may not read payloads.")
    assert "secret" not in console.text()
