"""Reach of users through the broker: nothing that the user could not reach without it, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret import sync
from leveret.client.errors import Error
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until
from tests.support.requests import Refused, ask

OWN, OTHER = "reach-own", "reach-other"
# An administrator who may use every name.
ROOT = "reach-root"
NAMES = "^(mine.*|leveret\\.control)$"
SHOVEL = {"src-uri": f"amqp:///{OWN}", "src-queue": "mine", "dest-uri": f"amqp:///{OWN}", "dest-exchange": "mine.x"}
PARAMETER = {"vhost": OWN, "component": "shovel", "name": "s"}


@pytest.fixture(scope="module")
def reach(http_process: HttpBroker) -> Iterator[HttpBroker]:
    """A broker with a policymaker, who may use the names `mine...` of one vhost, and queues with a secret."""
    api = http_process
    full = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api("PUT", "/users/restricted", {"password": "restricted", "tags": "policymaker"}).status == 201
    assert api("PUT", f"/users/{ROOT}", {"password": ROOT, "tags": "administrator"}).status == 201
    for vhost in (OWN, OTHER):
        api("PUT", f"/vhosts/{vhost}", {})
        api("PUT", f"/permissions/{vhost}/{ROOT}", full)
        for queue, arguments in (("mine", {}), ("secret", {}), ("log", {"x-queue-type": "stream"})):
            api("PUT", f"/queues/{vhost}/{queue}", {"durable": True, "arguments": arguments}, user=ROOT)
        for queue in ("secret", "log"):
            body = {"routing_key": queue, "payload": "secret", "payload_encoding": "string", "properties": {}}
            assert api("POST", f"/exchanges/{vhost}/amq.default/publish", body, user=ROOT).json == {"routed": True}
    api("PUT", f"/permissions/{OWN}/restricted", {"configure": NAMES, "write": NAMES, "read": NAMES})
    yield api
    for user in ("restricted", ROOT):
        api("DELETE", f"/users/{user}")
    for vhost in (OWN, OTHER):
        api("DELETE", f"/vhosts/{vhost}")


def shovel(**changes: Any) -> dict[str, Any]:
    return {"value": {**SHOVEL, "reconnect-delay": 0, **{key.replace("_", "-"): value for key, value in changes.items()}}}


def messages(queue: str, action: str, vhost: str = OWN) -> str:
    return f"/leveret/queues/{vhost}/{queue}/messages/{action}"


PUT_SHOVEL = ("PUT", f"/parameters/shovel/{OWN}/s")
DEFINITIONS = {"parameters": [{**PARAMETER, **shovel(src_queue="secret"), "user": "guest"}]}
RULE = {"kind": "depth", "threshold": 0, "vhost": OWN, "webhook": "http://169.254.169.254/"}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
ATTEMPTS: list[tuple[str, str, Any]] = [
    # shovels, over all ways to set one
    (*PUT_SHOVEL, shovel(src_uri=f"amqp:///{OTHER}", src_queue="secret")),
    (*PUT_SHOVEL, shovel(dest_uri=f"amqp:///{OTHER}")),
    (*PUT_SHOVEL, shovel(src_queue="secret")),
    (*PUT_SHOVEL, shovel(dest_exchange="amq.topic")),
    (*PUT_SHOVEL, shovel(dest_exchange="", dest_exchange_key="secret")),
    (*PUT_SHOVEL, shovel(src_uri=f"amqp://guest:guest@/{OTHER}", src_queue="secret")),
    (*PUT_SHOVEL, shovel(src_uri=f"amqp://guest:guest@127.0.0.1/{OTHER}", src_queue="secret")),
    (*PUT_SHOVEL, shovel(src_uri=f"amqp://guest:guest@[::1]/{OTHER}", src_queue="secret")),
    (*PUT_SHOVEL, {**shovel(src_queue="secret"), "user": "guest"}),
    ("PUT", f"/parameters/shovel/{OTHER}/s", shovel()),
    ("POST", "/definitions", DEFINITIONS),
    ("POST", f"/definitions/{OWN}", DEFINITIONS),
    ("POST", "/leveret/operations/parameters.set", {**PARAMETER, **shovel(src_queue="secret")}),
    # messages in their places
    *(
        ("POST", messages("secret", action, vhost), {"to_queue": "mine"})
        for action in ("move", "copy")
        for vhost in (OWN, OTHER)
    ),
    *(("POST", messages("mine", action), {"to_queue": "secret"}) for action in ("move", "copy")),
    *(("POST", messages("mine", action), {"to_exchange": "amq.topic", "routing_key": "x"}) for action in ("move", "copy")),
    ("POST", messages("secret", "move"), {"to_origin": True}),
    ("POST", messages("secret", "import"), {"payload": "x"}),
    ("POST", messages("secret", "delete"), {}),
    ("GET", messages("secret", "export"), None),
    ("POST", messages("secret", "search"), {"where": [{"field": "body", "value": "x"}]}),
    ("GET", f"/leveret/queues/{OWN}/secret/messages", None),
    ("POST", f"/queues/{OWN}/secret/get", GET),
    ("DELETE", f"/queues/{OWN}/secret/contents", None),
    (
        "POST",
        f"/exchanges/{OWN}/amq.default/publish",
        {"routing_key": "secret", "payload": "x", "payload_encoding": "string", "properties": {}},
    ),
    ("POST", f"/bindings/{OWN}/e/amq.topic/q/mine", {"routing_key": "#"}),
    # webhooks
    ("PUT", "/leveret/alert-rules/reach", RULE),
]


# The reasons of refusals for lack of rights: other ones, such as a missing key, prove nothing.
REASONS = (
    "Access refused",
    "access to",
    "logs in as 'guest'",
    "to which only shovels of users",
    "Not administrator",
    "Not Found",
    "is not allowed",
)


@pytest.mark.parametrize(("method", "path", "body"), ATTEMPTS)
def test_over_http(reach: HttpBroker, method: str, path: str, body: Any) -> None:
    reply = reach(method, path, body, user="restricted")
    assert 400 <= reply.status < 500 and any(reason in reply.json["reason"] for reason in REASONS), reply.content
    assert reach.get(f"/parameters/shovel/{OWN}") == []


def test_of_the_control_exchange(reach: HttpBroker) -> None:
    # Operations of operators are not available at all.
    operators = ("parameters", "messages", "shovels")
    queue, lease = {"queue": "secret"}, {"queue": "secret", "lease": "l"}
    stream = {"stream": "log"}
    attempts: list[tuple[str, dict[str, Any]]] = [
        ("queue.describe", queue),
        ("lease.acquire", lease),
        ("lease.plan", {**lease, "epoch": 1, "after": 0, "max_messages": 1}),
        ("lease.commit", {**lease, "epoch": 1, "batch": 1}),
        ("lease.release", lease),
        ("lease.lag", lease),
        ("stream.describe", stream),
        ("stream.hold", {**stream, "holder": "h", "first": 0, "last": 1, "seconds": 1.0}),
        ("stream.release", {**stream, "holder": "h"}),
        ("stream.locate", {**stream, "timestamp": 0}),
        ("stream.start", {**stream, "consumer": "c", "offset": 0}),
        ("stream.commit", {**stream, "consumer": "c", "offset": 0}),
        ("stream.lag", {**stream, "offset": 0}),
        ("stage.open", {"stage": "reach", "app": "reach", "exchanges": ["amq.topic"]}),
        ("parameters.set", {**PARAMETER, **shovel()}),
        ("messages.move", {"vhost": OWN, "queue": "secret", "to_queue": "mine"}),
        ("shovels.restart", {"vhost": OWN, "name": "s"}),
    ]
    with sync.connect(reach.process.url(user="restricted", password="restricted", vhost=OWN)) as connection:
        channel = connection.channel()
        for operation, arguments in attempts:
            with pytest.raises(Refused) as refused:
                ask(channel, operation, **arguments)
            expected = "not-implemented" if operation.partition(".")[0] in operators else "access-refused"
            assert refused.value.condition == expected, (operation, refused.value)
        # A target that only the commit names: it moves messages with the permissions of the user.
        ask(channel, "stage.open", stage="reach", app="reach")
        with pytest.raises(Error):
            channel.publish(b"x", "secret", "amq.default", mandatory=True)


def test_own_objects_are_within_reach(reach: HttpBroker) -> None:
    """The refusals above have no other reason than missing permissions."""
    reach("PUT", f"/exchanges/{OWN}/mine.x", {"type": "fanout", "durable": True}, user=ROOT)
    reach("PUT", f"/queues/{OWN}/mine.copy", {"durable": True}, user=ROOT)
    assert reach("POST", f"/bindings/{OWN}/e/mine.x/q/mine.copy", {}, user="restricted").status == 201
    body = {"routing_key": "mine", "payload": "x", "payload_encoding": "string", "properties": {}}
    assert reach("POST", f"/exchanges/{OWN}/amq.default/publish", body, user=ROOT).json == {"routed": True}
    assert reach("PUT", f"/parameters/shovel/{OWN}/s", shovel(), user="restricted").status == 201
    [parameter] = reach.get(f"/parameters/shovel/{OWN}")
    assert parameter["user"] == "restricted"
    wait_until(lambda: [row["forwarded"] for row in reach.get(f"/shovels/{OWN}")] == [1])
    wait_until(
        lambda: (
            [row["user"] for row in reach.get("/connections") if row["user_provided_name"] == "Shovel s"]
            == ["restricted", "restricted"]
        )
    )
    exported = reach.get(f"/definitions/{OWN}")["parameters"]
    assert [item["user"] for item in exported] == ["restricted"]
    assert reach("POST", f"/definitions/{OWN}", {"parameters": exported}).status == 204
    assert reach.get(f"/parameters/shovel/{OWN}")[0]["user"] == "restricted"
    changed = [{"component": "shovel", "name": "s", **shovel(ack_mode="no-ack")}]
    assert reach("POST", f"/definitions/{OWN}", {"parameters": changed}, user=ROOT).status == 204
    assert reach.get(f"/parameters/shovel/{OWN}")[0]["user"] == ROOT
    assert reach("DELETE", f"/parameters/shovel/{OWN}/s", user="restricted").status == 204
    secrets = [row["messages"] for row in reach.get("/queues") if row["vhost"] in (OWN, OTHER) and row["name"] == "secret"]
    assert secrets == [1, 1]


def test_a_shovel_of_a_deleted_user_is_that_of_the_administrator_who_imports_it(reach: HttpBroker) -> None:
    path = f"/definitions/{OWN}"
    reach("PUT", f"/exchanges/{OWN}/mine.x", {"type": "fanout", "durable": True}, user=ROOT)
    reach("PUT", "/users/gone", {"password": "gone", "tags": "policymaker"})
    reach("PUT", f"/permissions/{OWN}/gone", {"configure": ".*", "write": ".*", "read": ".*"})
    assert reach("PUT", f"/parameters/shovel/{OWN}/s", shovel(), user="gone").status == 201
    reach("DELETE", "/users/gone")
    exported = {"parameters": reach.get(path)["parameters"]}
    assert exported["parameters"][0]["user"] == "gone"
    assert reach("POST", path, exported, user=ROOT).status == 204  # the same value leaves it alone
    assert reach.get(f"/parameters/shovel/{OWN}/s")["user"] == "gone"
    reach("DELETE", f"/parameters/shovel/{OWN}/s", user=ROOT)
    reason = "user 'gone' does not exist; the shovel acts for the one who imports it"
    [planned] = reach("POST", f"{path}?dry_run=true", exported, user=ROOT).json["added"]
    assert planned["reason"] == reason
    assert reach("POST", path, exported, user=ROOT).status == 204
    assert reach.get(f"/parameters/shovel/{OWN}/s")["user"] == ROOT
    wait_until(lambda: [row["state"] for row in reach.get(f"/shovels/{OWN}")] == ["running"])
    assert f"parameter 's' of component 'shovel' in vhost '{OWN}': {reason}" in reach.process.log()
    reach("DELETE", f"/parameters/shovel/{OWN}/s", user=ROOT)


def test_a_shovel_that_is_written_back_keeps_its_user(reach: HttpBroker) -> None:
    """It keeps running. With another value, it acts for the user who has set that, who must have the rights."""
    path = f"/parameters/shovel/{OWN}/s"

    def connections() -> list[tuple[str, str]]:
        rows = reach.get("/connections")
        return sorted((row["name"], row["user"]) for row in rows if row["user_provided_name"] == "Shovel s")

    reach("PUT", f"/exchanges/{OWN}/mine.x", {"type": "fanout", "durable": True}, user=ROOT)
    secret = shovel(src_queue="empty", src_queue_args={"x-max-length": 1})
    assert reach("PUT", path, secret, user=ROOT).status == 201
    wait_until(lambda: [user for _, user in connections()] == [ROOT, ROOT])
    before, running = reach.get(path), connections()
    for user in ("guest", "restricted", ROOT):
        assert reach("PUT", path, reach.get(path, user=user), user=user).status == 204
        reordered = {"value": dict(reversed(before["value"].items()))}
        assert reach("PUT", path, reordered, user=user).status == 204
        assert reach.get(path) == before
    for changes in ({"ack_mode": "no-ack"}, {"src_queue_args": {"x-max-length": 1.0}}):
        changed = shovel(**{"src_queue": "empty", "src_queue_args": {"x-max-length": 1}, **changes})
        reply = reach("PUT", path, changed, user="restricted")
        assert (reply.status, "read access to 'empty'" in reply.json["reason"]) == (400, True), changes
        assert reach.get(path) == before
    assert connections() == running
    assert reach("PUT", path, shovel(), user="restricted").status == 204
    wait_until(lambda: [user for _, user in connections()] == ["restricted", "restricted"])
    assert reach("PUT", path, reach.get(path), user=ROOT).status == 204
    assert reach.get(path)["user"] == "restricted"
    assert reach("PUT", path, shovel(ack_mode="no-ack"), user=ROOT).status == 204
    assert reach.get(path)["user"] == ROOT
    reach("DELETE", path, user=ROOT)
