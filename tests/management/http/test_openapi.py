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
from tests.management.http.brokers import http_broker
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

NAME = "openapi"
SAMPLES = "lengths_age=10&lengths_incr=1&msg_rates_age=10&msg_rates_incr=1"


@pytest.fixture(scope="module")
def http_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    """A broker of its own, since requests to every path leave objects."""
    with http_broker(tmp_path_factory.mktemp("openapi")) as broker:
        yield broker


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
        # Nothing listens there.
        (
            "PUT",
            f"/parameters/shovel/%2F/{NAME}",
            {"value": {"src-uri": "amqp://127.0.0.1:1", "src-queue": NAME, "dest-uri": "amqp://"}},
        ),
        ("PUT", f"/global-parameters/{NAME}", {"value": {"a": [1]}}),
        ("PUT", f"/vhosts/{NAME}", {}),
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
            "id": str(wait_until(lambda: api.get(f"/leveret/queues/%2F/{NAME}/messages")["messages"])[0]["id"]),
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
    if path.startswith("/leveret/connections/"):
        names["name"] = values.get("connection", NAME)
    if path.startswith("/leveret/streams/"):
        names["name"] = f"{NAME}-stream"
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
OTHER_PATHS = (
    "/docs",
    "/openapi.json",
    "/leveret/events",
    "/leveret/queues/{vhost}/{name}/messages/tail",
    "/leveret/exchanges/{vhost}/{name}/messages/tail",
)
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
    if path == "/leveret/cluster":
        assert reply.status == 404, "the broker is not a node"
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


# A body with every key of each request, by method and path. Tests send variants of it, so the last requests delete nothing.
_REGEXES = {"configure": "^x", "write": "^x", "read": "^x"}
_POLICY = {"pattern": "^openapi-none$", "definition": {"max-length": 7}, "priority": 1, "apply-to": "queues"}
_SELECTION = {"where": [{"field": "body", "match": "contains", "value": "none"}], "cursor": "", "examine": 10}
_LIMITED = _SELECTION | {"selector": "n = 1", "examine_bytes": 1000, "seconds": 0.5}
_TARGET = _LIMITED | {"queue_id": None, "to_queue": NAME}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/login"): {"username": "guest", "password": "guest"},
    ("POST", "/leveret/session"): {"username": "guest", "password": "guest"},
    ("PUT", "/cluster-name"): {"name": "NODE"},
    ("POST", "/definitions"): {"queues": [], "rabbit_version": "4.1.0"},
    ("POST", "/definitions/{vhost}"): {"queues": [], "exchanges": []},
    ("POST", "/all-configuration"): {"users": []},
    ("POST", "/leveret/queues/{vhost}/{name}/messages/search"): _LIMITED
    | {"state": "ready", "offset": 0, "count": 5, "encoding": "auto", "truncate": 10},
    ("POST", "/leveret/queues/{vhost}/{name}/messages/count"): _LIMITED,
    ("POST", "/leveret/queues/{vhost}/{name}/messages/dead-letters"): _LIMITED | {"header": "x-exception-message"},
    ("POST", "/leveret/queues/{vhost}/{name}/messages/export"): {
        "where": _SELECTION["where"],
        "selector": "n = 1",
        "state": "ready",
        "offset": 0,
        "count": 5,
        "queue_id": None,
        "format": "lines",
    },
    ("POST", "/leveret/queues/{vhost}/{name}/messages/preview"): _LIMITED | {"to_origin_exchange": True},
    ("POST", "/leveret/queues/{vhost}/{name}/messages/move"): _TARGET,
    ("POST", "/leveret/queues/{vhost}/{name}/messages/copy"): _LIMITED | {"to_exchange": NAME, "routing_key": "none"},
    ("POST", "/leveret/queues/{vhost}/{name}/messages/delete"): {"ids": [999_999]},
    ("POST", "/leveret/queues/{vhost}/{name}/messages/resend"): {
        "id": 999_999,
        "exchange": "",
        "routing_key": NAME,
        "payload": "x",
        "payload_encoding": "string",
        "properties": {"app_id": "a"},
    },
    ("POST", "/leveret/exchanges/{vhost}/{name}/destinations"): {"routing_key": "none", "properties": {"priority": 1}},
    ("POST", "/leveret/change-queues"): {
        "action": "purge",
        "pattern": "^none$",
        "vhost": "/",
        "dry_run": True,
        "after": 0,
    },
    ("POST", "/leveret/delete"): {
        "kind": "queues",
        "pattern": "^none$",
        "vhost": "/",
        "dry_run": True,
        "if_unused": True,
        "if_empty": True,
    },
    ("POST", "/leveret/role/{vhost}"): {"names": ["NAME"]},
    ("POST", "/leveret/operations/{name}"): {"vhost": "/"},
    ("PUT", "/leveret/alert-rules/{name}"): {
        "kind": "depth",
        "vhost": "none",
        "pattern": "^none$",
        "threshold": 1000,
        "seconds": 5,
        "silenced_until": 1000,
        "webhook": "",
    },
    ("PUT", "/leveret/marks/{name}"): {"time": 1000},
    ("PUT", "/leveret/payload-schemas/{name}"): {
        "format": "avro",
        "schema": '"int"',
        "type": "",
        "vhost": "none",
        "queue": "^none$",
        "exchange": "^none$",
        "content_type": "application/avro",
        "header": "kind",
        "header_value": "int",
        "schema_id": 7,
    },
    ("POST", "/leveret/decode-payload"): {
        "payload": "AA==",
        "vhost": "none",
        "queue": "none",
        "exchange": "none",
        "properties": {"content_type": "none"},
    },
    ("PUT", "/vhosts/{vhost}"): {"description": "d", "tags": ["t"], "default_queue_type": "classic"},
    ("POST", "/users/bulk-delete"): {"users": []},
    ("PUT", "/users/{user}"): {"password": NAME, "tags": "management"},
    ("PUT", "/permissions/{vhost}/{user}"): _REGEXES,
    ("PUT", "/topic-permissions/{vhost}/{user}"): {"exchange": NAME, "write": "^x", "read": "^x"},
    ("PUT", "/topic-permissions/{vhost}/{user}/{exchange}"): {"exchange": NAME, "write": "^x", "read": "^x"},
    ("PUT", "/leveret/roles/{user}"): {"grants": [{"role": "viewer", "vhosts": "^none$", "names": ".*"}]},
    ("PUT", "/vhost-limits/{vhost}/{name}"): {"value": 5000},
    ("PUT", "/user-limits/{user}/{name}"): {"value": 5},
    ("PUT", "/policies/{vhost}/{name}"): _POLICY,
    ("PUT", "/operator-policies/{vhost}/{name}"): _POLICY,
    ("PUT", "/parameters/{component}/{vhost}/{name}"): {"value": {"max-connections": 5000}},
    ("PUT", "/global-parameters/{name}"): {"value": {"a": 1}},
    ("PUT", "/exchanges/{vhost}/{name}"): {
        "type": "topic",
        "durable": False,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    },
    ("POST", "/exchanges/{vhost}/{name}/publish"): {
        "properties": {"priority": 1},
        "routing_key": "none",
        "payload": "x",
        "payload_encoding": "string",
    },
    ("PUT", "/queues/{vhost}/{name}"): {"durable": True, "auto_delete": False, "arguments": {}},
    ("POST", "/queues/{vhost}/{name}/get"): {
        "count": 1,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
        "truncate": 10,
    },
    ("POST", "/queues/{vhost}/{name}/actions"): {"action": "sync"},
    ("POST", "/bindings/{vhost}/e/{source}/{kind}/{destination}"): {"routing_key": "k", "arguments": {"a": 1}},
    ("POST", "/auth/hash_password"): {"password": "x"},
    ("POST", "/leveret/cluster/nodes/{node}/drain"): {"on": True},
    ("POST", "/leveret/shards/{shard}/move"): {"node": "x"},
}
# Those that a broker takes that is not a node of a cluster. tests/cluster has the others.
ACCEPTED = [(method, path) for method, path in BODIES if not path.startswith(("/leveret/cluster", "/leveret/shards"))]
# Values of every type in JSON, for keys that expect another one.
WRONG: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    1.5,
    1 << 70,
    "",
    "x",
    "\ud83d\ude00",
    [],
    [None],
    [[7]],
    {},
    {"": {"a": [None]}},
)


def body_address(method: str, path: str, values: dict[str, str]) -> str:
    if path == "/leveret/operations/{name}":
        return "/leveret/operations/queues.list"
    if path == "/vhosts/{vhost}":
        return f"/vhosts/{NAME}"
    if path.startswith("/vhost-limits"):
        return "/vhost-limits/%2F/max-connections"
    if path.startswith("/user-limits"):
        return f"/user-limits/{NAME}/max-channels"
    return address(path, values)


def body_schema(document: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    schema = document["paths"][f"/api{path}"][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    return {**schema, "components": strict(document)["components"]}


def test_every_body_has_a_schema_of_its_keys(document: dict[str, Any]) -> None:
    described = {
        (method.upper(), path.removeprefix("/api"))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }
    assert described == set(BODIES)
    without_keys = [(method, path) for method, path in BODIES if "$ref" not in body_schema(document, method, path)]
    assert without_keys == [("POST", "/leveret/operations/{name}")], "its keys are those of the operation"
    # All others take no body.
    others = {(method, path) for path, methods in ROUTES.items() for method in methods if method in ("PUT", "POST")}
    assert {path.rpartition("/")[2] for _, path in others - described} == {
        "add", "enable", "grow", "import", "pause", "protection", "queues", "resume",
    }  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ACCEPTED)
def test_bodies_of_the_schema_are_accepted(
    api: HttpBroker, document: dict[str, Any], values: dict[str, str], method: str, path: str
) -> None:
    body = {key: value for key, value in BODIES[method, path].items() if value is not None}
    if path == "/cluster-name":
        body = {"name": values["node"]}
    schema = body_schema(document, method, path)
    Draft202012Validator(schema).validate(body)
    where = body_address(method, path, values)
    reply = api(method, where, body)
    assert reply.status in (200, 201, 204), (reply.status, reply.content)
    required = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], {}).get("required", [])
    for key in required:
        refused = api(method, where, {name: value for name, value in body.items() if name != key})
        assert refused.status == 400, (key, refused.content)
    unknown = api(method, where, body | {"unknown": 1})
    assert unknown.status in ((400,) if path.startswith("/leveret/operations") else (200, 201, 204)), unknown.content


@pytest.mark.parametrize(("method", "path"), ACCEPTED)
def test_values_of_other_types_are_refused_and_cause_no_error(
    api: HttpBroker, document: dict[str, Any], values: dict[str, str], method: str, path: str
) -> None:
    body = {key: value for key, value in BODIES[method, path].items() if value is not None}
    schema = Draft202012Validator(body_schema(document, method, path))
    where = body_address(method, path, values)
    accepted = []
    for key in body:
        for wrong in WRONG:
            changed = body | {key: wrong}
            reply = api(method, where, changed)
            assert reply.status < 500, (key, wrong, reply.content)
            if wrong is not None and reply.status < 400 and not schema.is_valid(changed):
                accepted.append((key, wrong))
    assert [(key, wrong) for key, wrong in accepted if (key, wrong) not in LENIENT] == []


# Values that clients of RabbitMQ send for others.
LENIENT = (
    *((flag, value) for flag in ("durable", "auto_delete", "internal") for value in ("", 1)),
    ("arguments", ""),
    ("arguments", []),
    ("properties", []),
    *(("rabbit_version", value) for value in WRONG),
)


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
