"""Schemas of payloads over the HTTP API, and payloads that are decoded by them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="the extra leveret[payloads] is not installed")
pytest.importorskip("google.protobuf", reason="the extra leveret[payloads] is not installed")

from leveret.management.http.global_parameters import PAYLOAD_SCHEMA as PREFIX
from leveret.management.http.payload_schemas import MAX_SCHEMAS
from tests.management.http.client import HttpBroker
from tests.support.payloads import avro_payload, confluent, descriptor_set, protobuf_order

PATH = "/leveret/payload-schemas"
PROTOBUF = {"format": "protobuf", "schema": descriptor_set(), "type": "shop.Order"}
INT = {"format": "avro", "schema": '"int"'}


@pytest.fixture
def schemas(api: HttpBroker) -> Iterator[HttpBroker]:
    yield api
    for schema in api.get(PATH):
        assert api("DELETE", f"{PATH}/{schema['name']}").status == 204


def put(api: HttpBroker, name: str, schema: dict[str, Any], **conditions: Any) -> None:
    assert api("PUT", f"{PATH}/{name}", schema | {"vhost": "/"} | conditions, user="maker").status in (201, 204)


def decode(api: HttpBroker, payload: bytes, user: str = "manager", **message: Any) -> Any:
    body = {"payload": base64.b64encode(payload).decode(), **message}
    reply = api("POST", "/leveret/decode-payload", body, user=user)
    assert reply.status == 200, reply.content
    return reply.json


def test_a_schema_is_shared_until_it_is_deleted(schemas: HttpBroker) -> None:
    assert schemas("PUT", f"{PATH}/orders", PROTOBUF | {"vhost": "/", "queue": "^orders"}, user="maker").status == 201
    assert schemas("PUT", f"{PATH}/orders", PROTOBUF | {"vhost": "/", "queue": "^order"}, user="maker").status == 204
    [listed] = schemas.get(PATH, user="manager")
    assert "schema" not in listed and listed["size"] == len(PROTOBUF["schema"])
    assert (listed["name"], listed["queue"], listed["type"]) == ("orders", "^order", "shop.Order")
    assert "shop.Order.Item" in listed["types"]
    found = decode(schemas, protobuf_order(id=7), queue="orders.new")
    assert (found["name"], found["type"], found["error"]) == ("orders", "shop.Order", None)
    assert [(row["name"], row["type"], row["value"]) for row in found["rows"]] == [
        ("", "shop.Order", "1 value"),
        ("id", "int64", "7"),
    ]
    assert schemas("DELETE", f"{PATH}/orders", user="maker").status == 204
    assert schemas("DELETE", f"{PATH}/orders", user="maker").status == 404
    assert decode(schemas, b"x", queue="orders.new")["name"] is None
    [record] = schemas.get("/leveret/audit?object=payload-schema.orders&action=delete")["items"][:1]
    assert record["user"] == "maker"


def test_changes_of_schemas_require_a_policymaker(schemas: HttpBroker) -> None:
    for user in ("manager", "viewer"):
        assert schemas("PUT", f"{PATH}/x", INT, user=user).status == 401
        assert schemas("DELETE", f"{PATH}/x", user=user).status == 401
    put(schemas, "x", INT)
    # Users who may change nothing decode payloads.
    assert decode(schemas, b"\x02", "viewer", name="x")["rows"][0]["value"] == "1"


def test_the_schema_with_the_named_type_or_the_most_conditions_is_used(schemas: HttpBroker) -> None:
    put(schemas, "any", PROTOBUF)
    put(schemas, "queue", INT, queue="^q")
    put(schemas, "exact", INT, queue="^q", exchange="^e$")
    put(schemas, "typed", INT, content_type="application/x-int")
    put(schemas, "header", INT, header="kind", header_value="int")
    put(schemas, "registry", INT, schema_id=9)

    def chosen(payload: bytes = b"\x02", **message: Any) -> tuple[str | None, str]:
        found = decode(schemas, payload, **message)
        return found["name"], found["type"]

    assert chosen() == (None, "")
    assert chosen(queue="q1") == ("queue", "")
    assert chosen(queue="q1", exchange="e") == ("exact", "")
    assert chosen(queue="other", exchange="e") == (None, "")
    assert chosen(properties={"content_type": "Application/X-Int; charset=x"}) == ("typed", "")
    assert chosen(properties={"headers": {"kind": "int"}}) == ("header", "")
    assert chosen(properties={"headers": {"kind": "text"}}) == (None, "")
    assert chosen(confluent(9, b"\x02")) == ("registry", "")
    assert chosen(confluent(8, b"\x02")) == (None, "")
    for content_type in (
        "application/x-protobuf; messageType=shop.Order.Item",
        'application/protobuf; charset=x; proto="shop.Order.Item"',
    ):
        assert chosen(b"", queue="q1", properties={"content_type": content_type}) == ("any", "shop.Order.Item")
    assert chosen(b"", properties={"type": "shop.Order"}) == ("any", "shop.Order")
    assert chosen(b"", name="any", message_type="google.protobuf.Timestamp") == ("any", "google.protobuf.Timestamp")
    refused = schemas("POST", "/leveret/decode-payload", {"payload": "", "name": "none"})
    assert (refused.status, "schema 'none' does not exist" in refused.json["reason"]) == (400, True)


def test_a_header_of_a_registry_is_recognized_without_a_schema(schemas: HttpBroker) -> None:
    found = decode(schemas, confluent(258, b"\x02"))
    assert found["framing"] == {"name": "confluent", "schema_id": 258, "detail": ""}
    assert (found["name"], found["rows"], found["error"]) == (None, [], None)


def test_a_payload_that_does_not_match_says_why(schemas: HttpBroker) -> None:
    put(schemas, "x", {"format": "avro", "schema": json.dumps({"type": "array", "items": "int"})})
    payload = avro_payload({"type": "array", "items": "int"}, [1, 2])
    assert [row["value"] for row in decode(schemas, payload, name="x")["rows"]] == ["2 values", "1", "2"]
    found = decode(schemas, payload + b"\x01", name="x")
    assert (found["error"], found["rows"]) == ("1 bytes are left behind the value; expected none", [])


def test_a_schema_of_another_vhost_does_not_exist(schemas: HttpBroker) -> None:
    hidden = INT | {"vhost": "interop", "queue": "^q"}
    assert schemas("PUT", f"{PATH}/hidden", hidden).status == 201
    assert schemas.get(PATH, user="manager") == []
    assert decode(schemas, b"\x02", queue="q")["name"] is None
    assert decode(schemas, b"\x02", "manager", queue="q", vhost="interop")["name"] is None
    assert decode(schemas, b"\x02", "guest", queue="q", vhost="interop")["name"] == "hidden"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"format": "xml", "schema": "x"}, "invalid schema"),
        ({"format": "avro"}, "invalid schema"),
        ({"format": "avro", "schema": "{"}, "not a valid Avro schema"),
        (PROTOBUF | {"type": "shop.Bill"}, "no message type 'shop.Bill'"),
        (INT | {"queue": "("}, "regular expression '('"),
        (INT | {"schema_id": -1}, "invalid schema"),
    ],
)
def test_an_invalid_schema_is_refused(schemas: HttpBroker, schema: dict[str, Any], reason: str) -> None:
    reply = schemas("PUT", f"{PATH}/x", schema)
    assert reply.status == 400 and reason in reply.json["reason"]
    assert schemas.get(PATH) == []


def test_a_policymaker_adds_a_quarter_of_the_schemas(schemas: HttpBroker) -> None:
    share, schema = MAX_SCHEMAS // 4, INT | {"vhost": "/"}
    statuses = [schemas("PUT", f"{PATH}/s{number}", schema, user="maker").status for number in range(share + 1)]
    assert statuses == [201] * share + [400]
    assert schemas("PUT", f"{PATH}/other", schema, user="operator").status == 201
    assert len(schemas.get(PATH)) == share + 1


def test_the_number_of_schemas_is_limited(schemas: HttpBroker) -> None:
    for number in range(MAX_SCHEMAS):
        body = {"name": f"{PREFIX}s{number}", "value": INT}
        assert schemas("PUT", f"/global-parameters/{body['name']}", body).status == 201
    reply = schemas("PUT", f"{PATH}/more", INT)
    assert reply.status == 400 and f"{MAX_SCHEMAS} schemas" in reply.json["reason"]
    assert schemas("PUT", f"{PATH}/s0", INT).status == 204
    assert schemas("PUT", f"/global-parameters/{PREFIX}broken", {"name": "x", "value": [1]}).status == 201
    assert len(schemas.get(PATH)) == MAX_SCHEMAS
    assert schemas("DELETE", f"/global-parameters/{PREFIX}broken").status == 204
