"""Schemas of payloads in the console, and messages that are decoded by them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

pytest.importorskip("fastavro", reason="the extra leveret[payloads] is not installed")
pytest.importorskip("google.protobuf", reason="the extra leveret[payloads] is not installed")

from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete
from tests.management.console.test_payloads import send
from tests.management.http.client import HttpBroker
from tests.support.payloads import avro_payload, confluent, descriptor_set, protobuf_order

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

NAMES = {"type": "record", "name": "Names", "fields": [{"name": "names", "type": {"type": "array", "items": "string"}}]}


@pytest.fixture
def inbox(api: HttpBroker) -> Iterator[str]:
    """A queue. The schemas of the test are deleted with it."""
    declare(api, "inbox")
    yield "inbox"
    delete(api, "inbox")
    for schema in api.get("/leveret/payload-schemas"):
        api("DELETE", f"/leveret/payload-schemas/{quote(schema['name'], safe='')}")


def put_avro(api: HttpBroker, name: str, **conditions: object) -> None:
    body = {"format": "avro", "schema": json.dumps(NAMES)} | conditions
    assert api("PUT", f"/leveret/payload-schemas/{quote(name, safe='')}", body).status == 201


def test_an_uploaded_schema_decodes_messages(
    console: Console, api: HttpBroker, inbox: str, tmp_path: Path, axe: str
) -> None:
    file = tmp_path / "orders.binpb"
    file.write_bytes(base64.b64decode(descriptor_set()))
    send(api, inbox, protobuf_order(id=7, items=[{"sku": "a"}]), content_type="application/x-protobuf")
    console.enter("payload-schemas")
    console.see("No schema.")
    console.click("Add schema")
    console.fill("Name", "orders")
    console.field("File").send_keys(str(file))
    console.fill("Message type", "shop.Bill")
    console.fill("Pattern of queues", "^inbox$")
    assert console.findings(axe) == []
    console.click("Set schema")
    console.see("no message type 'shop.Bill'")
    console.see_problem(400)
    console.fill("Message type", "shop.Order")
    console.click("Set schema")
    console.see("Set schema 'orders'")
    console.wait_for_rows(lambda rows: [row[:3] for row in rows] == [["orders", "Protobuf", "shop.Order"]])
    console.open("queues", "/", inbox, tab="messages")
    console.see("Decoded by orders as shop.Order")
    console.wait_for_rows(lambda rows: ["id", "int64", "7"] in rows and ["sku", "string", "a"] in rows)
    assert console.findings(axe) == []
    console.use_phone()
    console.see_fit()
    console.open("payload-schemas")
    console.see_heading("Payload schemas")
    console.see_fit()
    console.click("Delete…")
    console.click("Delete schema", "dialog button")
    console.see("Deleted schema 'orders'")
    console.see("No schema.")


def test_a_schema_and_a_type_are_chosen_by_hand(console: Console, api: HttpBroker, inbox: str) -> None:
    put_avro(api, "names")
    body = {"format": "protobuf", "schema": descriptor_set(), "type": "shop.Order"}
    assert api("PUT", "/leveret/payload-schemas/orders", body).status == 201
    send(api, inbox, confluent(258, avro_payload(NAMES, {"names": ["left", "right"]})))
    console.enter("queues", "/", inbox, tab="messages")
    console.click("Schema", ".toolbar button")
    console.see("No schema matches this message, which begins with schema id 258.")
    console.choose("Schema", "names")
    console.see("Decoded by names")
    console.wait_for_rows(lambda rows: ["1", "string", "right"] in rows)
    console.choose("Schema", "orders")
    console.see("The payload does not match the schema")
    console.choose("Message type", "google.protobuf.Timestamp")
    console.see("as google.protobuf.Timestamp")


def test_scripts_in_schemas_and_decoded_values_are_inert(console: Console, api: HttpBroker, inbox: str) -> None:
    put_avro(api, IMAGE, queue="^inbox$", content_type="application/avro", header=SCRIPT)
    payload = avro_payload(NAMES, {"names": [IMAGE, SCRIPT]})
    send(api, inbox, payload, content_type="application/avro", headers={SCRIPT: IMAGE})
    console.enter("payload-schemas")
    console.wait_for_rows(lambda rows: bool(rows) and rows[0][0] == IMAGE)
    console.open("queues", "/", inbox, tab="messages")
    console.wait_for_rows(lambda rows: ["0", "string", IMAGE] in rows and ["1", "string", SCRIPT] in rows)
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0


def test_a_user_who_sets_no_schemas_sees_them(console: Console, api: HttpBroker, inbox: str) -> None:
    put_avro(api, "names")
    console.open("payload-schemas")
    console.sign_in("monitor")
    console.wait_for_rows(lambda rows: bool(rows) and rows[0][0] == "names")
    assert "Add schema" not in console.text() and "Delete…" not in console.text()
