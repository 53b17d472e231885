"""Export and import of definitions over the HTTP API of a broker process."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.management.http.client import HttpApi, HttpBroker
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.scram import log_in_1_0, log_in_amqp091

EVERYTHING: dict[str, Any] = {
    "rabbit_version": "3.13.7",
    "unknown": {"ignored": True},
    "users": [
        {"name": "mover", "password_hash": "", "hashing_algorithm": None, "tags": "management, monitoring", "extra": 1},
        {"name": "limited", "password_hash": "", "tags": [], "limits": {"max-connections": 0, "max-channels": 7}},
    ],
    "vhosts": [
        {"name": "old"},
        {"name": "new", "metadata": {"description": "moved", "tags": ["a", "b"], "default_queue_type": "classic"}},
    ],
    "permissions": [{"user": "mover", "vhost": "old", "configure": "^a", "write": ".*", "read": ""}],
    "topic_permissions": [{"user": "mover", "vhost": "old", "exchange": "amq.topic", "write": "^x", "read": ".*"}],
    "parameters": [
        {"vhost": "old", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 50}},
        {
            "vhost": "old",
            "component": "operator_policy",
            "name": "cap",
            "value": {"pattern": "^q", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"},
        },
    ],
    "global_parameters": [{"name": "moved-from", "value": {"cluster": ["a", 1]}}],
    "policies": [
        {"vhost": "old", "name": "p", "pattern": "^q", "apply-to": "queues", "definition": {"max-length": 5}, "priority": 2}
    ],
    "exchanges": [
        {"vhost": "old", "name": "x", "type": "topic", "durable": True, "auto_delete": False, "arguments": []},
        {"vhost": "old", "name": "inner", "type": "fanout", "durable": True, "auto_delete": False, "internal": True},
        {"vhost": "old", "name": "amq.topic", "type": "topic", "durable": True},
    ],
    "queues": [
        {"vhost": "old", "name": "q1", "durable": True, "auto_delete": False, "arguments": {"x-max-priority": 3}},
        {"vhost": "old", "name": "s1", "type": "stream", "durable": True, "auto_delete": False, "arguments": {}},
        {"vhost": "old", "name": "amq.gen-x", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "bindings": [
        {"vhost": "old", "source": "x", "destination": "q1", "destination_type": "queue", "routing_key": "a.#"},
        {
            "vhost": "old",
            "source": "amq.headers",
            "destination": "q1",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {"x-match": "all", "n": 1},
        },
        {"vhost": "old", "source": "x", "destination": "inner", "destination_type": "exchange", "routing_key": "b"},
        {"vhost": "old", "source": "", "destination": "q1", "destination_type": "queue", "routing_key": "q1"},
        {"vhost": "old", "source": "x", "destination": "amq.gen-x", "destination_type": "queue", "routing_key": "c"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    """A broker with the default user only."""
    leveret_only("the HTTP API")
    process = LeveretProcess(
        tmp_path_factory.mktemp("definitions"),
        config="[management]\nport = 0\nmax_body_size = 3000000\n",
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield HttpBroker(process)
        process.check_log()


def by_name(rows: list[Any], name: str) -> Any:
    return next(row for row in rows if row["name"] == name)


def dry_run(api: HttpApi, document: Any, path: str = "/definitions") -> Any:
    reply = api("POST", f"{path}?dry_run=true", document)
    assert reply.status == 200, reply.content
    return reply.json


def test_import_and_export(broker: HttpBroker) -> None:
    report = dry_run(broker, EVERYTHING)
    assert (len(report["added"]), report["unchanged"], report["refused"]) == (17, 0, [])
    assert [item["label"] for item in report["skipped"]] == [
        "exchange 'amq.topic' in vhost 'old'",
        "queue 'amq.gen-x' in vhost 'old'",
        "binding 'q1' of queue 'q1' to exchange '' in vhost 'old'",
        "binding 'c' of queue 'amq.gen-x' to exchange 'x' in vhost 'old'",
    ]
    assert broker("GET", "/vhosts/old").status == 404
    assert broker("POST", "/definitions", EVERYTHING).status == 204
    report = dry_run(broker, EVERYTHING)
    assert (report["added"], report["changed"], report["unchanged"], report["refused"]) == ([], [], 17, [])
    found = broker.get("/definitions")
    assert found["rabbitmq_definition_format"] == "cluster"
    assert found["product_name"] == "Leveret"
    assert by_name(found["users"], "mover") == {
        "name": "mover",
        "password_hash": "",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["management", "monitoring"],
        "limits": {},
    }
    assert by_name(found["users"], "limited")["limits"] == {"max-connections": 0, "max-channels": 7}
    metadata = {
        "description": "moved",
        "tags": ["a", "b"],
        "default_queue_type": "classic",
        "protected_from_deletion": False,
    }
    assert by_name(found["vhosts"], "new") == {"name": "new", **metadata, "metadata": metadata}
    assert {item["user"] for item in found["permissions"]} == {"guest", "mover"}
    for section in ("topic_permissions", "parameters", "global_parameters", "policies"):
        assert sorted(found[section], key=str) == sorted(EVERYTHING[section], key=str), section
    assert [item["name"] for item in found["exchanges"]] == ["inner", "x"]
    assert by_name(found["exchanges"], "inner")["internal"] is True
    assert {item["name"]: item["type"] for item in found["queues"]} == {"q1": "classic", "s1": "stream"}
    assert len(found["bindings"]) == 3
    # The exported file imports without a change.
    report = dry_run(broker, found)
    assert report["added"] == report["changed"] == report["skipped"] == report["refused"] == []


def test_the_definitions_of_one_vhost(broker: HttpBroker) -> None:
    assert broker("POST", "/definitions", EVERYTHING).status == 204
    found = broker.get("/definitions/old")
    assert (found["rabbitmq_definition_format"], found["original_vhost_name"]) == ("single_virtual_host", "old")
    assert found["limits"] == {"max-queues": 50}
    assert not {"users", "vhosts", "permissions", "topic_permissions", "global_parameters"} & found.keys()
    for section in ("parameters", "policies", "exchanges", "queues", "bindings"):
        assert found[section], section
        assert all("vhost" not in item for item in found[section])
    assert broker("POST", "/definitions", found).status == 400
    assert broker("PUT", "/vhosts/copy", {}).status == 201
    assert broker("POST", "/definitions/copy", found).status == 204
    copied = broker.get("/definitions/copy")
    for section in ("parameters", "policies", "exchanges", "queues", "bindings"):
        assert copied[section] == found[section], section
    assert broker("POST", "/definitions/missing", found).status == 404
    assert broker("GET", "/definitions/missing").status == 400


def test_differences(broker: HttpBroker) -> None:
    first = {
        "vhosts": [{"name": "differs"}],
        "queues": [{"vhost": "differs", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
        "policies": [{"vhost": "differs", "name": "p", "pattern": "^q", "definition": {"max-length": 5}}],
    }
    assert broker("POST", "/definitions", first).status == 204
    second = {
        "vhosts": [{"name": "differs", "description": "other"}],
        "queues": [{"vhost": "differs", "name": "q", "durable": False, "auto_delete": False, "arguments": {}}],
        "policies": [{"vhost": "differs", "name": "p", "pattern": "^r", "definition": {"max-length": 5}}],
    }
    report = dry_run(broker, second)
    assert [(item["label"], item["before"], item["after"]) for item in report["changed"]] == [
        ("vhost 'differs'", {"description": ""}, {"description": "other"}),
        ("policy 'p' in vhost 'differs'", {"pattern": "^q"}, {"pattern": "^r"}),
    ]
    assert report["skipped"] == [
        {
            "kind": "queue",
            "label": "queue 'q' in vhost 'differs'",
            "identity": {"vhost": "differs", "name": "q"},
            "before": {"durable": True},
            "after": {"durable": False},
            "reason": "it exists with other properties, which cannot be changed",
        }
    ]
    assert broker("POST", "/definitions", second).status == 204
    assert broker.get("/queues/differs/q")["durable"] is True
    assert broker.get("/policies/differs/p")["pattern"] == "^r"


REFUSED: list[tuple[str, Any, str]] = [
    ("queues", {"vhost": "/", "name": "y" * 256, "durable": True}, "at most 255 are allowed"),
    ("queues", {"vhost": "/", "name": "", "durable": True}, "the queue name is empty"),
    ("queues", {"vhost": "/", "name": "y", "arguments": {"x-max-length": "many"}}, "x-max-length"),
    ("queues", {"vhost": "/", "name": "y", "arguments": {"x-queue-type": "none"}}, "x-queue-type"),
    ("queues", {"vhost": "/", "name": "y", "arguments": ["x"]}, "invalid value of 'arguments'; expected an object"),
    ("queues", {"vhost": "/", "name": "y", "durable": "yes"}, "Expected `bool | null`, got `str` - at `$.durable`"),
    ("queues", {"name": "y", "durable": True}, "the key 'vhost' is missing"),
    ("queues", {"vhost": "missing", "name": "y"}, "vhost 'missing' does not exist, and the file does not have it"),
    ("queues", 7, "expected an object"),
    ("exchanges", {"vhost": "/", "name": "y", "type": "none"}, "unknown exchange type 'none'"),
    ("exchanges", {"vhost": "/", "name": "y"}, "the field 'type' is missing"),
    ("policies", {"vhost": "/", "name": "y", "pattern": "(?<=a)b", "definition": {"max-length": 1}}, "pattern '(?<=a)b'"),
    ("policies", {"vhost": "/", "name": "y", "pattern": "", "definition": {"none": 1}}, "key 'none' is unknown"),
    ("policies", {"vhost": "/", "name": "y", "pattern": "", "definition": {"max-length": "x"}}, "max-length"),
    ("parameters", {"vhost": "/", "component": "none", "name": "y", "value": {}}, "component 'none' does not exist"),
    ("parameters", {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"a": 1}}, "limit 'a'"),
    ("permissions", {"vhost": "/", "user": "missing", "configure": "", "write": "", "read": ""}, "user 'missing'"),
    ("permissions", {"vhost": "/", "user": "guest", "configure": "(", "write": "", "read": ""}, "configure permission"),
    ("users", {"name": "y", "password_hash": "bad", "tags": []}, "password hash"),
    ("users", {"name": "y", "tags": 7}, "Expected `str | array | null`, got `int` - at `$.tags`"),
    ("users", {"name": "y", "limits": {"max-connections": "2"}}, "invalid limit 'max-connections'"),
    ("vhosts", {"name": "y", "default_queue_type": "none"}, "unknown queue type 'none'"),
    ("global_parameters", {"name": "y"}, "the field 'value' is missing"),
    ("bindings", {"vhost": "/", "source": "x", "destination": "y", "destination_type": "none"}, "destination_type"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "item", "reason"), REFUSED)
def test_a_refused_object_does_not_prevent_the_others(broker: HttpBroker, section: str, item: Any, reason: str) -> None:
    good = {"name": "good-parameter", "value": f"{section}{reason}"}
    document = {section: [item], **({"global_parameters": [item, good]} if section == "global_parameters" else {})}
    document.setdefault("global_parameters", [good])
    if section == "queues" and isinstance(item, dict) and item.get("name") != "":
        [shown] = dry_run(broker, document)["refused"]
        assert reason in shown["reason"]
    reply = broker("POST", "/definitions", document)
    assert reply.status == 400, reply.content
    assert reply.json["error"] == "bad_request"
    assert reply.json["reason"].startswith("1 of 2 definitions refused: ")
    [refused] = reply.json["refused"]
    assert reason in refused["reason"], refused
    assert broker.get("/global-parameters/good-parameter")["value"] == good["value"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{\n"a" 1}', "invalid JSON: line 2, column 5: expected ':' delimiter"),
        ('{\n"a" 1}'.encode("utf-16"), "invalid JSON: line 2, column 5"),
        (b"[]", "expected a JSON object, received a list"),
        (b'"{}"', "expected a JSON object, received a string"),
        (b'{"queues": {}}', "'queues' is an object; expected a list"),
        (b'{"queues": "x"}', "'queues' is a string; expected a list"),
        # Python 3.13 decodes up to 10,000 levels, and unknown sections are ignored.
        (b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "invalid JSON"),
        (b'{"a": "\xff"}', "invalid JSON"),
        (b'{"queues": [{"vhost": "/", "name": "\\ud800"}]}', "invalid JSON"),
        (b" " * 3000001, "Exceeded HTTP request body size limit"),
    ],
)
def test_invalid_files(broker: HttpBroker, content: bytes, reason: str) -> None:
    reply = broker("POST", "/definitions", raw=content)
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert reason in reply.json["reason"]


@pytest.mark.parametrize("content", [b"", b"{}", b'\xef\xbb\xbf{"queues": null}'])
def test_empty_files(broker: HttpBroker, content: bytes) -> None:
    assert broker("POST", "/definitions", raw=content, headers={"Content-Type": "text/plain"}).status == 204


def test_many_and_large_objects(broker: HttpBroker) -> None:
    """Batches are bounded by their number of changes and by their size."""
    value: dict[str, Any] = {"src-uri": "amqp://u:p@127.0.0.1:1", "src-queue": "a", "dest-uri": "amqp://u:p@127.0.0.1:1"}
    value |= {"src-consumer-args": {"x": "y" * 200000}, "reconnect-delay": 0}
    large = [
        {"vhost": "many", "component": "shovel", "name": f"s{number}", "value": value, "user": "guest"}
        for number in range(4)
    ]
    queues = [{"vhost": "many", "name": f"q{number}", "durable": True} for number in range(450)]
    document = {"vhosts": [{"name": "many"}], "parameters": large, "queues": queues * 2}
    assert broker("POST", "/definitions", document).status == 204
    assert len(broker.get("/queues/many?columns=name")) == 450
    assert broker.get("/parameters/shovel/many") == large
    report = dry_run(broker, document)
    assert (report["unchanged"], report["added"], report["total"]) == (905, [], 905)
    huge = {"global_parameters": [{"name": "huge", "value": "y" * 1000000}]}
    assert "expected at most 983040" in broker("POST", "/definitions", huge).json["reason"]


def test_only_definitions_are_large(broker: HttpBroker) -> None:
    body = b'{"explanation": "' + b"x" * 2_500_000 + b'"}'
    assert broker("POST", "/definitions", raw=body).status == 204
    reply = broker("PUT", "/queues/%2F/large", raw=body)
    assert (reply.status, reply.json["reason"]) == (400, "Exceeded HTTP request body size limit")


def test_pages_of_other_origins(broker: HttpBroker) -> None:
    content, headers = form(file=b"{}")
    headers["Origin"] = "https://example.com"
    assert broker("POST", "/definitions", raw=content, headers=headers).status == 401


def form(**fields: bytes) -> tuple[bytes, dict[str, str]]:
    parts = [
        b'--limit\r\nContent-Disposition: form-data; name="%s"; filename="x.json"\r\nContent-Type: text/plain\r\n\r\n%s\r\n'
        % (name.encode(), value)
        for name, value in fields.items()
    ]
    return b"".join(parts) + b"--limit--\r\n", {"Content-Type": "multipart/form-data; boundary=limit"}


def test_the_upload_form(broker: HttpBroker) -> None:
    document = json.dumps({"global_parameters": [{"name": "uploaded", "value": "a\r\n--b"}]}).encode()
    content, headers = form(file=document)
    assert broker("POST", "/definitions", raw=content, headers=headers).status == 204
    assert broker.get("/global-parameters/uploaded")["value"] == "a\r\n--b"
    content, headers = form(redirect=b"../#/import-succeeded", file=document)
    reply = broker("POST", "/definitions", raw=content, headers=headers)
    assert (reply.status, reply.headers["location"]) == (303, "../#/import-succeeded")
    for target in (b"https://example.com/", b"//example.com", b"/\\example.com", b"javascript:alert(1)", b"/a\r\nb"):
        content, headers = form(redirect=target, file=document)
        assert broker("POST", "/definitions", raw=content, headers=headers).status == 400, target
    content, headers = form(other=document)
    assert "without the field 'file'" in broker("POST", "/definitions", raw=content, headers=headers).json["reason"]
    content, headers = form(file=document)
    for broken in (b"", content[:-4], content.replace(b"name=", b"n="), b"--limit\r\n\r\n\r\n--limit--", content * 20):
        assert broker("POST", "/definitions", raw=broken, headers=headers).status == 400, broken
    assert broker("POST", "/definitions", raw=content, headers={"Content-Type": "multipart/form-data"}).status == 400


def test_the_name_of_a_download(broker: HttpBroker) -> None:
    reply = broker("GET", "/definitions?download=rabbit_vm_2026-11-24.json")
    assert reply.headers["content-disposition"] == "attachment; filename=rabbit_vm_2026-11-24.json"
    assert broker("GET", "/definitions?download=a%0D%0Ab").status == 400
    assert broker("HEAD", "/definitions").status == 200
    assert broker.get("/all-configuration").keys() == broker.get("/definitions").keys()


def test_only_administrators(api: HttpBroker) -> None:
    for user in ("monitor", "manager", "maker"):
        assert api("GET", "/definitions", user=user).status == 401
        assert api("POST", "/definitions/%2F", {}, user=user).status == 401
    assert api("GET", "/definitions", user="plain").status == 401


def rabbitmq_hash(password: bytes) -> str:
    salt = b"\x90\x8d\xc6\x0a"
    return base64.b64encode(salt + hashlib.sha256(salt + password).digest()).decode()


def test_a_hash_of_rabbitmq_works_until_it_is_replaced(broker: HttpBroker) -> None:
    hashed = rabbitmq_hash(b"secret")
    user = {"name": "hashed", "password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
    document = {
        "users": [user],
        "permissions": [{"user": "hashed", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    }
    assert broker("POST", "/definitions", document).status == 204
    assert by_name(broker.get("/definitions")["users"], "hashed")["password_hash"] == hashed
    before = int(broker("GET", "/definitions?for=rabbitmq").headers.get("x-leveret-omitted-hashes", "0"))
    pika.BlockingConnection(pika.URLParameters(broker.process.url(user="hashed", password="secret"))).close()
    reply = broker("GET", "/definitions?for=rabbitmq")
    assert by_name(reply.json["users"], "hashed") == {"name": "hashed", "tags": [], "limits": {}}
    assert int(reply.headers["x-leveret-omitted-hashes"]) == before + 1
    assert broker("GET", "/definitions?for=kafka").status == 400
    # Neither file changes the password, and the first file resets it.
    assert dry_run(broker, reply.json)["changed"] == []
    assert dry_run(broker, broker.get("/definitions"))["changed"] == []
    [changed] = dry_run(broker, document)["changed"]
    assert (changed["before"], changed["after"]) == ({"password": "***"}, {"password": "***"})


def test_a_restored_broker_logs_its_users_in(tmp_path: Path) -> None:
    """Users of every origin, over HTTP and with every mechanism."""
    leveret_only("the HTTP API")
    environment = {"LEVERET_MANAGEMENT__ENABLED": "true"}
    config = (
        '[management]\nport = 0\n[users.declared]\npassword = "declared"\ntags = ["administrator"]\n'
        'permissions."/" = { configure = ".*", write = ".*", read = ".*" }\n'
    )
    first = LeveretProcess(tmp_path / "first", config=config, environment=environment)
    second = LeveretProcess(tmp_path / "second", config="[management]\nport = 0\n", environment=environment)
    everything = {"/": {"configure": ".*", "write": ".*", "read": ".*"}}
    with first.start(), second.start():
        source, target = HttpBroker(first), HttpBroker(second)
        for name, secret in (
            ("clear", {"password": "clear"}),
            ("rabbitmq", {"password_hash": rabbitmq_hash(b"rabbitmq")}),
            ("replaced", {"password_hash": rabbitmq_hash(b"replaced")}),
        ):
            body = {"tags": "management", "permissions": everything, "limits": {"max-channels": 7}, **secret}
            assert source("PUT", f"/users/{name}", body, user="declared").status == 201
        assert source("GET", "/whoami", user="replaced").status == 200
        assert source("PUT", "/cluster-name", {"name": "prod"}, user="declared").status == 204
        exported = source.get("/definitions", user="declared")
        assert {one["name"]: one["hashing_algorithm"][-8:] for one in exported["users"]} == {
            "clear": "argon2id",
            "declared": "argon2id",
            "rabbitmq": "g_sha256",
            "replaced": "argon2id",
        }
        assert target("POST", "/definitions", exported).status == 204
        assert target("DELETE", "/users/guest").status == 204
        again = target.get("/definitions", user="declared")
        assert again == {**exported, "rabbitmq_version": again["rabbitmq_version"]}
        # A user whose SCRAM keys no broker knows must log in by password first, before which SCRAM is not offered.
        pika.BlockingConnection(pika.URLParameters(second.url(user="rabbitmq", password="rabbitmq"))).close()
        for name in ("clear", "declared", "replaced", "rabbitmq"):
            assert log_in_amqp091(second, "SCRAM-SHA-256", name, name) is not None
            assert log_in_1_0(second, "SCRAM-SHA-512", name, name) is not None
            assert log_in_amqp091(second, "SCRAM-SHA-256", name, "wrong") is None
            assert target("GET", "/whoami", user=name).status == 200
            assert target("GET", "/whoami", user=name, password="wrong").status == 401
            pika.BlockingConnection(pika.URLParameters(second.url(user=name, password=name))).close()
        for process in (first, second):
            process.check_log()


def test_an_object_that_is_written_back_stays_as_it_is(broker: HttpBroker) -> None:
    """Tools read an object, change one key and write it."""
    own = {"configure": "^a", "write": "^b", "read": "^c"}
    body = {"password": "back", "tags": "management", "limits": {"max-connections": 5}, "permissions": {"/": own}}
    assert broker("PUT", "/users/back", body).status == 201
    vhost = {"description": "d", "tags": "a,b", "protected_from_deletion": True, "default_queue_type": "quorum"}
    assert broker("PUT", "/vhosts/back", vhost).status == 201
    assert broker("PUT", "/queues/back/q", {"durable": True, "arguments": {"x-max-length": 5}}).status == 201
    assert broker("PUT", "/exchanges/back/x", {"type": "topic", "arguments": {"alternate-exchange": "y"}}).status == 201
    assert broker("PUT", "/policies/back/p", {"pattern": "^q", "definition": {"max-length": 9}}).status == 201
    before = broker.get("/definitions")
    for path in (
        "/users/back",
        "/users/guest",
        "/permissions/%2F/back",
        "/vhosts/back",
        "/queues/back/q",
        "/exchanges/back/x",
        "/policies/back/p",
        "/cluster-name",
    ):
        read = broker.get(path)
        assert broker("PUT", path, read).status == 204, path
        written = broker.get(path)
        for key in ("password_hash", "permissions", "limits", "tags", "metadata", "arguments", "definition", "name"):
            assert written.get(key) == read.get(key), (path, key)
    after = broker.get("/definitions")
    after["global_parameters"] = [one for one in after["global_parameters"] if one["name"] != "cluster_name"]
    assert after == {**before, "global_parameters": after["global_parameters"]}
    assert broker("PUT", "/users/back", {**broker.get("/users/back"), "tags": "monitoring"}).status == 204
    assert broker.get("/whoami", user="back")["tags"] == ["monitoring"]
    metadata = {"metadata": {"description": "e", "protected_from_deletion": False}}
    assert broker("PUT", "/vhosts/back", metadata).status == 204
    shown = broker.get("/vhosts/back")
    assert (shown["description"], shown["metadata"]["protected_from_deletion"], shown["tags"]) == ("e", False, ["a", "b"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"permissions": {"none": {"configure": "", "write": "", "read": ""}}}, "vhost_or_user_not_found"),
        ({"permissions": {"/": {"configure": "", "read": ""}}}, "invalid value of 'permissions'"),
        ({"permissions": {"/": "x"}}, "invalid value of 'permissions'"),
        ({"permissions": ["x"]}, "invalid value of 'permissions'"),
        ({"permissions": {"/": {"configure": "(", "write": "", "read": ""}}}, "configure permission"),
        ({"limits": {"max-queues": 7}}, "invalid value of 'limits'"),
        ({"limits": {"max-channels": True}}, "invalid value of 'limits'"),
        ({"limits": 7}, "invalid value of 'limits'"),
    ],
)
def test_users_with_invalid_keys(broker: HttpBroker, body: dict[str, Any], reason: str) -> None:
    reply = broker("PUT", "/users/invalid", {"password_hash": "", "tags": "", **body})
    assert reply.status == 400
    assert reason in reply.json["reason"]


def test_misspelt_arguments_in_a_declaration(broker: HttpBroker) -> None:
    for path, body in (
        ("/queues/%2F/misspelt", {"durable": True, "arguments": {"x-max-lenght": 5, "x-own": 5}}),
        ("/exchanges/%2F/misspelt", {"durable": True, "arguments": {"x-cache-sizes": 5}}),
    ):
        for status in (201, 204):
            reply = broker("PUT", path, body)
            assert reply.status == status
            known = "x-max-length" if "queues" in path else "x-cache-size"
            assert reply.headers["x-leveret-warning"].endswith(f"has no effect; did you mean '{known}'?")
    assert "x-leveret-warning" not in broker("PUT", "/queues/%2F/right", {"arguments": {"x-max-length": 5}}).headers


def test_the_name_of_the_cluster(broker: HttpBroker) -> None:
    broker("DELETE", "/global-parameters/cluster_name")
    node = broker.get("/overview")["node"]
    assert broker.get("/cluster-name") == {"name": node}
    assert broker("PUT", "/cluster-name", {"name": "prod"}).status == 204
    assert broker.get("/global-parameters/cluster_name") == {"name": "cluster_name", "value": "prod"}
    assert broker.get("/overview")["cluster_name"] == "prod"
    found = broker.get("/definitions")
    assert found["original_cluster_name"] == "prod"
    assert {"name": "cluster_name", "value": "prod"} in found["global_parameters"]
    connection = pika.BlockingConnection(pika.URLParameters(broker.process.url()))
    assert connection._impl.server_properties["cluster_name"] == "prod"
    connection.close()
    for invalid in (7, "", "x" * 256):
        assert "invalid cluster name" in broker("PUT", "/cluster-name", {"name": invalid}).json["reason"]
        assert broker("PUT", "/global-parameters/cluster_name", {"value": invalid}).status == 400
    assert broker("DELETE", "/global-parameters/cluster_name").status == 204
    assert broker.get("/cluster-name") == {"name": node}


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://ann:s3cr%2F@rabbit",
        "amqp://ann:s3cr/s3cr@rabbit",
        "amqp://ann:s3cr?s3cr@rabbit",
        "amqp://ann:1?s3cr@rabbit",
        "amqp://ann:s3cr#s3cr@rabbit",
        "amqp://ann@home:s3cr/@rabbit",
        "ann:s3cr@rabbit",
        "amqps://rabbit?keypassword=s3cr@s3cr&s3cr",
    ],
)
def test_reports_show_no_passwords_of_uris(broker: HttpBroker, uri: str) -> None:
    value = {"src-uri": ["amqp://", uri], "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
    report = dry_run(broker, {"parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": value}]})
    [shown] = report["added"] + report["refused"]
    assert shown["after"]["value"]["src-queue"] == "a"
    assert "s3cr" not in json.dumps(report)


def test_reports_have_no_credentials(api: HttpBroker) -> None:
    value = {"uri": ["amqp://me:p/w@host", "amqp://me:p?w@host"], "options": {"password": "pw"}}
    [added] = dry_run(api, {"global_parameters": [{"name": "upstream", "value": value}]})["added"]
    shown = {"uri": ["amqp://***@host", "amqp://***@host"], "options": {"password": "***"}}
    assert added["after"]["value"] == shown


def test_users_and_vhosts_of_the_configuration_are_left_alone(api: HttpBroker) -> None:
    document = {
        "users": [{"name": "monitor", "password_hash": "", "tags": []}],
        "vhosts": [{"name": "interop", "description": "other"}, {"name": "/"}],
        "permissions": [
            {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
            {"user": "manager", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        ],
    }
    report = dry_run(api, document)
    assert [item["label"] for item in report["skipped"]] == [
        "user 'monitor'",
        "vhost 'interop'",
        "permissions of user 'manager' in vhost '/'",
    ]
    assert {item["reason"] for item in report["skipped"]} == {"it is declared in the configuration; change it there"}
    assert (report["unchanged"], report["refused"]) == (2, [])
    assert api("POST", "/definitions", document).status == 204


def test_an_import_switches_the_tracing_of_vhosts(broker: HttpBroker) -> None:
    """RabbitMQ does so, too, and does not export it."""

    def is_traced() -> bool:
        return bool(broker.get("/vhosts/traced")["tracing"])

    document = {"vhosts": [{"name": "traced", "description": "d", "tracing": True}, {"name": "traced", "description": "d"}]}
    assert broker("POST", "/definitions", document).status == 204
    assert is_traced()
    report = dry_run(broker, document)
    assert (report["unchanged"], report["changed"]) == (2, [])
    assert "tracing" not in by_name(broker.get("/definitions")["vhosts"], "traced")
    assert broker("POST", "/definitions", broker.get("/definitions")).status == 204
    assert is_traced()
    off = {"vhosts": [{"name": "traced", "tracing": False}]}
    [changed] = dry_run(broker, off)["changed"]
    assert (changed["before"], changed["after"]) == ({"tracing": True}, {"tracing": False})
    assert is_traced()
    assert broker("POST", "/definitions", off).status == 204
    assert not is_traced()
    [refused] = dry_run(broker, {"vhosts": [{"name": "traced", "tracing": "on"}]})["refused"]
    assert "tracing" in refused["reason"]


def test_an_import_switches_the_tracing_of_a_vhost_of_the_configuration(api: HttpBroker) -> None:
    for tracing in (True, False):
        document = {"vhosts": [{"name": "interop", "tracing": tracing}]}
        assert api("POST", "/definitions", document).status == 204
        assert api.get("/vhosts/interop")["tracing"] is tracing
    [skipped] = dry_run(api, {"vhosts": [{"name": "interop", "description": "other", "tracing": True}]})["skipped"]
    assert skipped["reason"] == "it is declared in the configuration; change it there"


def test_exclusive_queues_are_not_exported(broker: HttpBroker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.process.url()))
    channel = connection.channel()
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("mine", "amq.fanout")
    channel.queue_declare("shared", auto_delete=True)
    found = broker.get("/definitions/%2F")
    names = [queue["name"] for queue in found["queues"]]
    assert "mine" not in names
    assert "shared" in names
    assert not [binding for binding in found["bindings"] if binding["destination"] == "mine"]
    connection.close()


def test_after_a_restart(tmp_path: Path) -> None:
    leveret_only("the HTTP API")
    process = LeveretProcess(
        tmp_path, config="[management]\nport = 0\n", environment={"LEVERET_MANAGEMENT__ENABLED": "true"}
    )
    with process.start():
        api = HttpBroker(process)
        assert api("POST", "/definitions", EVERYTHING).status == 204
        before = api.get("/definitions")
        process.kill()
        process.start()
        assert HttpBroker(process).get("/definitions") == before
        process.check_log()


def test_users_of_the_configuration_after_a_restart(tmp_path: Path) -> None:
    """Their passwords are hashed again, with the same result, before an object that was read earlier is compared."""
    leveret_only("the HTTP API")
    users = {"admin": ("admin", "administrator"), "app": ("secret", "management")}
    config = "[management]\nport = 0\n" + "".join(
        f"[users.{name}]\npassword = '{password}'\ntags = ['{tag}']\n" for name, (password, tag) in users.items()
    )
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        api = HttpBroker(process)
        before = api.get("/definitions", user="admin")
        read = api.get("/users/app", user="admin")
        assert read["password_hash"].startswith("$argon2id$")
        for restarted in range(2):
            process.stop() if restarted else process.kill()
            process.start()
            api = HttpBroker(process)
            assert api("PUT", "/users/app", read, user="admin").status == 204
            assert api.get("/users/app", user="admin") == read
            assert api.get("/definitions", user="admin") == before
            assert api("GET", "/whoami", user="app", password="secret").status == 200
            for password_hash in ("", read["password_hash"][:-1] + "A", before["users"][0]["password_hash"]):
                reply = api("PUT", "/users/app", read | {"password_hash": password_hash}, user="admin")
                assert (reply.status, "is declared in" in reply.json["reason"]) == (400, True), password_hash
        process.check_log()
