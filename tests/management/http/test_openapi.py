"""The OpenAPI document: it is valid, it has every route, and real answers are as it says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from leveret import sync
from leveret.management.http.openapi import OPERATIONS
from leveret.management.http.table import ROUTES
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

NAME = "openapi"
SAMPLES = "lengths_age=10&lengths_incr=1&msg_rates_age=10&msg_rates_incr=1"


@pytest.fixture(scope="module")
def document(http_process: HttpBroker) -> dict[str, Any]:
    reply = http_process("GET", "/openapi.json", user=None)
    assert reply.status == 200
    found: dict[str, Any] = reply.json
    return found


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_every_route_is_in_it(document: dict[str, Any]) -> None:
    found = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert found == {(f"/api{path}", method) for path, methods in ROUTES.items() for method in methods}


def test_operations_have_a_summary_and_an_identifier(document: dict[str, Any]) -> None:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    identifiers = [operation["operationId"] for operation in operations]
    assert len(identifiers) == len(set(identifiers))
    assert [operation["operationId"] for operation in operations if not operation["summary"]] == []


def test_handlers_of_the_document_are_routed() -> None:
    routed = {route.handler for methods in ROUTES.values() for route in methods.values()}
    assert [handler.__qualname__ for handler in OPERATIONS if handler not in routed] == []


# Real answers


@pytest.fixture(scope="module")
def values(http_process: HttpBroker) -> Iterator[dict[str, str]]:
    """Values of the variables in paths, of objects that exist."""
    api = http_process
    made = [
        ("PUT", f"/queues/%2F/{NAME}", {"durable": True}),
        ("PUT", f"/queues/%2F/{NAME}-stream", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
        ("PUT", f"/exchanges/%2F/{NAME}", {"type": "topic"}),
        ("PUT", f"/policies/%2F/{NAME}", {"pattern": NAME, "definition": {"max-length": 100}, "apply-to": "queues"}),
        ("PUT", f"/operator-policies/%2F/{NAME}", {"pattern": NAME, "definition": {"max-length": 90}}),
        ("PUT", "/parameters/vhost-limits/%2F/limits", {"value": {"max-connections": 5000}}),
        ("PUT", f"/global-parameters/{NAME}", {"value": {"a": [1]}}),
        ("PUT", f"/users/{NAME}", {"password": NAME, "tags": "management"}),
        ("PUT", f"/permissions/%2F/{NAME}", {"configure": "", "write": "", "read": ""}),
        ("PUT", f"/topic-permissions/%2F/{NAME}", {"exchange": NAME, "write": "", "read": ""}),
        ("PUT", f"/user-limits/{NAME}/max-channels", {"value": 5}),
        ("POST", f"/bindings/%2F/e/{NAME}/q/{NAME}", {"routing_key": "k", "arguments": {"a": 1}}),
    ]
    for method, path, body in made:
        assert api(method, path, body).status in (201, 204), path
    process = api.process
    with (
        pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)) as connection,
        sync.connect(process.url(), protocol="1.0"),
    ):
        channel = connection.channel()
        channel.queue_declare(f"{NAME}-exclusive", exclusive=True)
        channel.basic_consume(f"{NAME}-exclusive", lambda *_: None)
        properties = pika.BasicProperties(headers={"a": 1}, delivery_mode=2)
        channel.basic_publish(NAME, "k", b"hello", properties)
        name = wait_until(lambda: next((row["connection_details"]["name"] for row in api.get("/channels")), None))
        wait_until(lambda: api.get("/consumers"))
        key = api.get(f"/bindings/%2F/e/{NAME}/q/{NAME}")[0]["properties_key"]
        yield {
            "vhost": "/",
            "node": api.get("/overview")["node"],
            "user": NAME,
            "exchange": NAME,
            "source": NAME,
            "kind": "q",
            "destination": NAME,
            "key": key,
            "component": "vhost-limits",
            "port": str(process.port),
            "protocol": "amqp",
            "password": "any",
            "name": NAME,
            "within": "1",
            "unit": "weeks",
            "pattern": "x",
            "connection": name,
            "amqp10": wait_until(
                lambda: next((row["name"] for row in api.get("/connections") if row["protocol"] == "AMQP 1-0"), None)
            ),
            "channel": f"{name} (1)",
        }
    for method, path, _ in reversed(made):
        if method == "PUT":
            api("DELETE", path)


def address(path: str, values: dict[str, str]) -> str:
    names = values | {
        "name": values.get({"connections": "connection", "channels": "channel"}.get(path.split("/")[1], "name"), NAME)
    }
    if path.endswith("/sessions"):
        names["name"] = values.get("amqp10", NAME)
    if path.startswith("/parameters/"):
        names["name"] = "limits"
    return "/".join(quote(names[part[1:-1]], safe="") if part.startswith("{") else part for part in path.split("/"))


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with no more keys in answers than it names."""
    found = copy.deepcopy(document)
    for schema in found["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return found


def validate(document: dict[str, Any], operation: dict[str, Any], status: int, answer: Any) -> None:
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    whole = {**schema, "components": strict(document)["components"]}
    errors = sorted(Draft202012Validator(whole).iter_errors(answer), key=lambda error: list(error.path))
    assert [f"{'.'.join(map(str, error.path))}: {error.message[:300]}" for error in errors] == []


# A page, the document itself, and a stream that does not end.
OTHER_PATHS = ("/docs", "/openapi.json", "/leveret/events")
JSON_PATHS = [path for path, methods in ROUTES.items() if "GET" in methods and path not in OTHER_PATHS]


@pytest.mark.parametrize("path", JSON_PATHS)
def test_answers_have_exactly_the_documented_keys(
    api: HttpBroker, document: dict[str, Any], values: dict[str, str], path: str
) -> None:
    operation = document["paths"][f"/api{path}"]["get"]
    reply = api("GET", address(path, values))
    if path.startswith("/queues/quorum/"):
        assert reply.status == 503, "a classic queue has no replicas"
        return
    assert reply.status == 200, reply.content
    if "application/json" in operation["responses"]["200"]["content"]:
        validate(document, operation, 200, reply.json)
    if any(parameter["name"] == "page" for parameter in operation["parameters"]):
        paged = api("GET", address(path, values) + f"?page=1&{SAMPLES}")
        if isinstance(paged.json, dict):
            validate(document, operation, 200, paged.json)


def test_answers_with_samples_have_the_documented_keys(
    api: HttpBroker, document: dict[str, Any], values: dict[str, str]
) -> None:
    path = "/queues/{vhost}/{name}"
    query = f"?{SAMPLES}"

    def answer() -> Any:
        found = api("GET", address(path, values) + query).json
        return found if found["messages_details"].get("samples") else None

    validate(document, document["paths"][f"/api{path}"]["get"], 200, wait_until(answer))


def test_changes_answer_as_documented(api: HttpBroker, document: dict[str, Any], values: dict[str, str]) -> None:
    paths = document["paths"]
    message = {"routing_key": NAME, "payload": "x", "payload_encoding": "string", "properties": {"priority": 1}}
    get = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for path, body in (("/exchanges/{vhost}/{name}/publish", message), ("/queues/{vhost}/{name}/get", get)):
        operation = paths[f"/api{path}"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(body)
        reply = api("POST", address(path, values), body)
        validate(document, operation, 200, reply.json)


def test_refusals_answer_as_documented(api: HttpBroker, document: dict[str, Any]) -> None:
    for reply in (
        api("GET", "/queues/%2F/missing"),
        api("GET", "/whoami", password="wrong"),
        api("PUT", "/users/x", raw=b"{"),
    ):
        assert reply.status >= 400
        schema = {"$ref": "#/components/schemas/Error", "components": document["components"]}
        Draft202012Validator(schema).validate(reply.json)


def test_the_page_has_every_operation_and_loads_nothing(api: HttpBroker) -> None:
    reply = api("GET", "/docs", user=None)
    text = reply.content.decode()
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert all(f"<code>/api{path}</code>" in text for path in ROUTES)
    assert "<script" not in text and "src=" not in text and "http://" not in text.replace("http://json-schema", "")
