"""Fields of messages that are hidden from users."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from leveret.management.http.masks import Masks
from tests.management.http.brokers import USERS
from tests.management.http.client import HttpBroker, Reply
from tests.management.http.test_tails import follow
from tests.support.broker import LeveretProcess, basic_config, leveret_only

MASKS = ["headers.Authorization", "body.card.number", "body.items.price", "user_id", "timestamp"]
MORE_USERS = """
[users.reader]
password = "reader"
tags = ["monitoring", "pii"]
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
"""
ORDER = {"card": {"number": "4111", "holder": "Ada"}, "items": [{"price": 3, "sku": "a"}, {"price": 4, "sku": "b"}]}
SHOWN = {"card": {"number": "***", "holder": "Ada"}, "items": [{"price": "***", "sku": "a"}, {"price": "***", "sku": "b"}]}
MESSAGES = "/leveret/queues/%2F/masked/messages"
USER = "manager"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    """A broker with masks, from which the tags administrator and pii are exempt."""
    leveret_only("the HTTP API")
    directory: Path = tmp_path_factory.mktemp("masks")
    settings = (
        f"[management]\nport = 0\nrefused_logins = 0\nmask = {json.dumps(MASKS)}\n"
        'mask_exempt_tags = ["administrator", "pii"]\n'
    )
    users = USERS.replace('"^mine"', '".*"')
    process = LeveretProcess(
        directory,
        config=basic_config() + users + MORE_USERS + settings,
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield HttpBroker(process)
        process.check_log()


@pytest.fixture
def api(broker: HttpBroker) -> Iterator[HttpBroker]:
    """The API, with the empty queue masked."""
    assert broker("PUT", "/queues/%2F/masked", {"durable": True}).status == 201
    yield broker
    assert broker("DELETE", "/queues/%2F/masked").status == 204


def publish(api: HttpBroker, payload: str, encoding: str = "string", **properties: Any) -> None:
    headers = {"authorization": "Bearer x", "tenant": "acme"}
    body = {
        "routing_key": "masked",
        "payload": payload,
        "payload_encoding": encoding,
        "properties": {"headers": headers, "user_id": "guest", "type": "order", **properties},
    }
    assert api("POST", "/exchanges/%2F/amq.default/publish", body).json == {"routed": True}


def search(api: HttpBroker, user: str, **body: Any) -> Reply:
    return api("POST", f"{MESSAGES}/search", body, user=user)


def test_fields_are_hidden_wherever_messages_are_shown(api: HttpBroker) -> None:
    publish(api, json.dumps(ORDER))
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    replies = (
        api("GET", f"{MESSAGES}?encoded=true", user=USER),
        search(api, USER, encoded=True),
        api("POST", "/queues/%2F/masked/get", get, user=USER),
    )
    for reply in replies:
        assert b"4111" not in reply.content and b"Bearer" not in reply.content, reply.content
        (message,) = reply.json if isinstance(reply.json, list) else reply.json["messages"]
        properties = message["properties"]
        assert (properties["user_id"], properties["type"]) == ("***", "order")
        assert properties["headers"] == {"authorization": "***", "tenant": "acme"}
        assert json.loads(message["payload"]) == SHOWN
        assert message["payload_bytes"] == len(message["payload"])
        assert message.get("encoded") is None


def test_an_export_is_masked_and_says_so(api: HttpBroker) -> None:
    publish(api, json.dumps(ORDER))
    publish(api, json.dumps({**ORDER, "filler": "x" * (256 << 10)}))
    for query in ("", "?ids=1"):
        reply = api("GET", f"{MESSAGES}/export{query}", user=USER)
        assert reply.status == 200 and b"4111" not in reply.content and b"Bearer" not in reply.content, reply.content
        line = json.loads(reply.content.splitlines()[0])
        assert (line["masked"], json.loads(line["payload"]), line["properties"]["user_id"]) == (True, SHOWN, "***")
    assert json.loads(api("GET", f"{MESSAGES}/export", user=USER).content.splitlines()[1])["payload"] == ""
    result = api("POST", "/leveret/vhosts/%2F/messages/import", raw=reply.content).json
    assert (result["imported"], "management.mask" in result["problems"][0]["reason"]) == (0, True)
    where = quote('[{"field":"body.card.number","value":"4111"}]')
    assert api("GET", f"{MESSAGES}/export?where={where}", user=USER).status == 401
    assert "masked" not in json.loads(api("GET", f"{MESSAGES}/export", user="reader").content.splitlines()[0])


@pytest.mark.parametrize("user", ["guest", "reader"])
def test_exempt_users_see_everything(api: HttpBroker, user: str) -> None:
    publish(api, json.dumps(ORDER))
    (message,) = search(api, user, encoded=True).json["messages"]
    assert message["properties"]["headers"]["authorization"] == "Bearer x"
    assert json.loads(message["payload"]) == ORDER
    assert message["encoded"]
    assert api("GET", f"{MESSAGES}/{message['id']}/payload", user=user).status == 200
    where = [{"field": "body.card.number", "value": "4111"}]
    assert len(search(api, user, where=where).json["messages"]) == 1


@pytest.mark.parametrize(
    ("payload", "encoding", "parameters"),
    [
        ("card 4111", "string", {}),
        (json.dumps(ORDER), "string", {"truncate": 20}),
        (json.dumps({**ORDER, "filler": "x" * (256 << 10)}), "string", {"truncate": 1 << 20}),
        (base64.b64encode(b"\xff4111").decode(), "base64", {}),
        ('{"card": {"number": 4111}} ', "string", {"truncate": 26}),
    ],
)
def test_bodies_that_cannot_be_decoded_are_hidden_whole(
    api: HttpBroker, payload: str, encoding: str, parameters: dict[str, int]
) -> None:
    publish(api, payload, encoding)
    (message,) = search(api, USER, **parameters).json["messages"]
    shown = message["payload"] if message["payload_encoding"] == "string" else base64.b64decode(message["payload"]).decode()
    assert shown == "***"


def test_the_last_value_of_a_name_that_occurs_twice_is_hidden_with_the_others(api: HttpBroker) -> None:
    publish(api, '{"card": {"number": 41, "number": 11}, "card": {"number": 1}, "n": 1}')
    assert json.loads(search(api, USER).json["messages"][0]["payload"]) == {"card": {"number": "***"}, "n": 1}


def test_payloads_as_base64_are_hidden_in_part(api: HttpBroker) -> None:
    publish(api, json.dumps(ORDER))
    (message,) = search(api, USER, encoding="base64").json["messages"]
    assert json.loads(base64.b64decode(message["payload"])) == SHOWN


@pytest.mark.parametrize(
    "field",
    [
        "headers.authorization",
        "headers.AUTHORIZATION",
        "headers.properties",
        "user_id",
        "body",
        "body.card",
        "body.card.number",
        "body.card.number.x",
        "body.items.0.price",
        "body.items.0",
        "body.0",
        'body["card"]',
    ],
)
def test_conditions_on_hidden_fields_are_refused(api: HttpBroker, field: str) -> None:
    where = [{"field": "routing_key", "value": "x"}, {"field": field, "match": "exists"}]
    for action in ("search", "dead-letters", "preview", "move", "copy", "delete"):
        reply = api("POST", f"{MESSAGES}/{action}", {"where": where, "to_queue": "masked"}, user=USER)
        assert (reply.status, f"'{field}'" in reply.json["reason"], "management.mask" in reply.json["reason"]) == (
            401,
            True,
            True,
        )


@pytest.mark.parametrize("field", ["headers.tenant", "type", "body.card.holder", "body.items.0.sku", "routing_key"])
def test_conditions_on_other_fields_work(api: HttpBroker, field: str) -> None:
    publish(api, json.dumps(ORDER))
    assert len(search(api, USER, where=[{"field": field, "match": "exists"}]).json["messages"]) == 1


def test_other_ways_to_hidden_values_are_refused(api: HttpBroker) -> None:
    publish(api, json.dumps(ORDER))
    (message,) = search(api, USER).json["messages"]
    assert api("GET", f"{MESSAGES}/{message['id']}/payload", user=USER).status == 401
    assert api("POST", f"{MESSAGES}/dead-letters", {"header": "Authorization"}, user=USER).status == 401
    assert search(api, USER, selector="authorization LIKE 'B%'").status == 401
    # Messages since a time are those whose timestamp is not earlier.
    assert search(api, USER, since="1h").status == 401
    assert api("GET", f"{MESSAGES}?since=1h", user=USER).status == 401
    assert api("GET", f"{MESSAGES}?since=1h", user="reader").json["messages"] == []


def test_an_empty_selector_and_an_empty_time_disclose_nothing(api: HttpBroker) -> None:
    """The console sends them with every search."""
    publish(api, json.dumps(ORDER))
    assert len(search(api, USER, selector="", since="").json["messages"]) == 1
    with follow(api, "/queues/%2F/masked", USER, selector=""):
        pass


def test_hidden_values_are_not_overwritten_by_what_is_shown(api: HttpBroker) -> None:
    publish(api, json.dumps(ORDER))
    (message,) = search(api, USER).json["messages"]
    target = {"id": message["id"], "exchange": "", "routing_key": "masked"}
    for change in ({"payload": message["payload"]}, {"properties": message["properties"]}):
        reply = api("POST", f"{MESSAGES}/resend", {**target, **change}, user=USER)
        assert (reply.status, "stay as they are" in reply.json["reason"]) == (401, True)
    assert api("POST", f"{MESSAGES}/resend", target, user=USER).json["messages"] == 1
    (kept,) = search(api, "guest").json["messages"]
    assert (json.loads(kept["payload"]), kept["properties"]["headers"]["authorization"]) == (ORDER, "Bearer x")


def test_messages_of_the_firehose_hide_the_same_fields(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/masked-trace", {"durable": True}).status == 201
    binding = "/bindings/%2F/e/amq.rabbitmq.trace/q/masked-trace"
    assert api("POST", binding, {"routing_key": "publish.#"}).status == 201
    assert api("PUT", "/vhosts/%2F", {"tracing": True}).status == 204
    publish(api, json.dumps(ORDER))
    assert api("PUT", "/vhosts/%2F", {"tracing": False}).status == 204
    reply = api("GET", "/leveret/queues/%2F/masked-trace/messages", user=USER)
    assert b"4111" not in reply.content and b"Bearer" not in reply.content, reply.content
    traced = reply.json["messages"][0]["properties"]["headers"]["properties"]
    assert (traced["user_id"], traced["headers"]["authorization"], traced["type"]) == ("***", "***", "order")
    assert api("DELETE", "/queues/%2F/masked-trace").status == 204


def test_live_tails_hide_the_same_fields(api: HttpBroker) -> None:
    with follow(api, "/queues/%2F/masked", USER) as stream:
        publish(api, json.dumps(ORDER))
        message = stream.until("message")
    assert json.loads(message["payload"]) == SHOWN
    assert message["properties"]["headers"] == {"authorization": "***", "tenant": "acme"}
    tail = f"{MESSAGES}/tail"
    for query in ("selector=authorization%20IS%20NULL", "where=" + quote('[{"field": "user_id", "value": "x"}]')):
        reply = api("GET", f"{tail}?{query}", user=USER)
        assert (reply.status, "management.mask" in reply.json["reason"]) == (401, True)


@pytest.mark.parametrize("field", ["headers.", "routing_key", "headers", "body.", "body.a..b", 'body["x"]', "payload"])
def test_an_unknown_field_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match="unknown field '") as refused:
        Masks([field])
    assert f"'{field}'; expected one of content_type" in str(refused.value)


def test_a_broker_with_an_unknown_field_serves_no_api(tmp_path: Path) -> None:
    leveret_only("the HTTP API")
    config = basic_config() + '[management]\nport = 0\nmask = ["header.x"]\n'
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        process.wait_for_log("no HTTP API: 'management.mask' has an unknown field 'header.x'; expected one of")
        assert json.loads((tmp_path / "ready.json").read_text("utf-8"))["management"] == []
