"""Management of a broker of several processes: users, vhosts, the audit log and definitions, with real processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker, StreamLostError

from leveret.management import control_client
from tests.cluster.sharded import Sharded, running
from tests.support.broker import free_port
from tests.support.polling import wait_until

DEFINITIONS = {
    "vhosts": [{"name": "/"}, {"name": "loaded"}],
    "queues": [{"name": "q", "vhost": "loaded", "durable": True}],
    "users": [{"name": "loader", "password": "secret", "tags": "monitoring"}],
    "permissions": [{"user": "loader", "vhost": "loaded", "configure": "", "write": "", "read": ".*"}],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    directory = tmp_path_factory.mktemp("operations")
    definitions = directory / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS))
    broker = Sharded(
        directory,
        2,
        "b",
        LEVERET_MANAGEMENT__ENABLED="true",
        LEVERET_MANAGEMENT__PORT=str(free_port()),
        LEVERET_MANAGEMENT__LOAD_DEFINITIONS=str(definitions),
    )
    with running(broker):
        yield broker


@pytest.fixture
def call(broker: Sharded) -> Callable[..., Any]:
    def call(name: str, /, **arguments: Any) -> Any:
        return control_client.call(broker.data_dir, name, arguments)

    return call


def test_the_definitions_file_of_the_start(broker: Sharded, call: Callable[..., Any]) -> None:
    [queue] = call("queues.list", vhost="loaded")
    assert queue["name"] == "q"
    assert call("users.authenticate", name="loader", password="secret")["vhosts"] == ["loaded"]


def test_a_user_exists_in_all_shards_when_it_was_added(broker: Sharded, call: Callable[..., Any]) -> None:
    call("users.add", name="u", password="p")
    for vhost in ("/", "b"):
        call("permissions.set", user="u", vhost=vhost, configure=".*", write=".*", read=".*")
    connections = [pika.BlockingConnection(pika.URLParameters(broker.url(user="u", password="p", vhost=v))) for v in "/b"]
    assert {(row["user"], row["vhost"]) for row in call("connections.list")} == {("u", "/"), ("u", "b")}
    call("permissions.delete", user="u", vhost="b")
    with pytest.raises(AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(broker.url(user="u", password="p", vhost="b")))
    # The refused one ends a little later.
    wait_until(lambda: sum(shard["connections"] for shard in call("shards.list")) == 2)
    assert call("users.delete", name="u") == {"connections": 2}
    for connection in connections:
        with pytest.raises((ConnectionClosedByBroker, StreamLostError)):
            connection.process_data_events(30)


def test_a_new_vhost_can_be_opened_at_once(broker: Sharded, call: Callable[..., Any]) -> None:
    for number in range(4):
        name = f"new{number}"
        call("vhosts.add", name=name)
        broker_user = {"user": "loader", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
        call("permissions.set", **broker_user)
        pika.BlockingConnection(pika.URLParameters(broker.url(user="loader", password="secret", vhost=name))).close()
        call("vhosts.delete", name=name)
        assert name not in {row["vhost"] for row in call("permissions.list", user="loader")}
    call("vhosts.add", name="chosen", shard=1)
    assert "chosen" in call("shards.list")[1]["vhosts"]
    call("vhosts.delete", name="chosen")


def test_the_audit_log_is_at_the_front(broker: Sharded, call: Callable[..., Any]) -> None:
    """Each change is in it once: of an operation in a shard, and of a client over AMQP."""

    def actions(name: str) -> list[tuple[str, str, str]]:
        found = call("audit.search", object=name)["items"]
        return [(record["action"], record["vhost"], record["source"].split(",")[0]) for record in found]

    call("queues.add", name="audited", vhost="b")
    call("queues.delete", name="audited", vhost="b")
    expected = ["queues.delete", "queues.add"]
    assert actions("audited") == [(action, "b", "control socket") for action in expected]
    call("connections.close_user", user="absent")
    assert [action for action, _, _ in actions("absent")] == ["connections.close_user"]
    assert call("queues.add", name="again", vhost="/")["name"] == "again"
    kinds = [kind for kind, _, _ in call("statistics.changes", reader="audit")]
    assert "audit" not in kinds
    call("queues.delete", name="again", vhost="/")
    audited = [value for kind, _, value in call("statistics.changes", reader="audit") if kind == "audit"]
    assert [record["action"] for record in audited] == ["queues.delete"]


def test_the_http_api_shows_the_shards(broker: Sharded, call: Callable[..., Any]) -> None:
    url = f"http://127.0.0.1:{broker.environment['LEVERET_MANAGEMENT__PORT']}/api"
    headers = {"authorization": "Basic " + b64encode(b"guest:guest").decode()}

    def get(path: str) -> Any:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=120) as answer:
            return json.load(answer)

    shards = wait_until(lambda: _or_none(lambda: get("/leveret/shards")))
    assert [shard["state"] for shard in shards] == ["ready", "ready"]
    assert [shard["vhosts"] for shard in shards] == [shard["vhosts"] for shard in call("shards.list")]
    assert {vhost["name"] for vhost in get("/vhosts")} >= {"/", "b", "loaded"}
    call("queues.add", name="listed", vhost="b")
    wait_until(lambda: "listed" in {queue["name"] for queue in get("/queues")})
    assert get("/overview")["object_totals"]["queues"] == len(call("queues.list"))


def test_shovels_of_several_shards(broker: Sharded, call: Callable[..., Any]) -> None:
    """A URI without a host leads to the front, whose port was picked; also from a shard that was restarted."""
    vhosts = {name: shard["number"] for shard in call("shards.list") for name in shard["vhosts"] if name in "/b"}
    assert set(vhosts.values()) == {0, 1}
    for vhost in vhosts:
        uri = f"amqp:///{'%2F' if vhost == '/' else vhost}"
        value = {"src-uri": uri, "src-queue": "in", "dest-uri": uri, "dest-queue": "out", "reconnect-delay": 1}
        call("parameters.set", component="shovel", name="s", value=value, vhost=vhost)

    def states() -> list[tuple[str, str, int]]:
        return [(row["vhost"], row["state"], row["restarts"]) for row in call("shovels.list")]

    wait_until(lambda: sorted(states()) == [("/", "running", 0), ("b", "running", 0)], lambda: str(states()))
    assert [row["vhost"] for row in call("shovels.list", vhost="b")] == ["b"]
    call("shovels.restart", vhost="b", name="s")
    broker.kill_shard(vhosts["b"])

    def is_running() -> bool:
        try:
            return bool(call("shovels.show", vhost="b", name="s")["state"] == "running")
        except control_client.CallFailed:
            return False  # the shard restarts

    wait_until(is_running)
    for vhost in vhosts:
        call("parameters.delete", component="shovel", name="s", vhost=vhost)
    assert call("shovels.list") == []


def test_a_shovel_acts_for_its_user_behind_a_front(broker: Sharded, call: Callable[..., Any]) -> None:
    """The user reaches the shard with the request, and the shovel of the shard logs in at the front."""
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    call("users.add", name="maker", password="maker", tags=["policymaker"])
    call("permissions.set", user="maker", vhost="/", **every)
    authorization = "Basic " + b64encode(b"maker:maker").decode()
    url = f"http://127.0.0.1:{broker.environment['LEVERET_MANAGEMENT__PORT']}/api"

    def put(vhost: str, uri: str) -> int:
        value = {"src-uri": uri, "src-queue": "in", "dest-uri": uri, "dest-queue": "out", "reconnect-delay": 1}
        request = urllib.request.Request(
            f"{url}/parameters/shovel/{vhost}/acting",
            json.dumps({"value": value}).encode(),
            {"Authorization": authorization, "Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    wait_until(lambda: _or_none(lambda: put("b", "amqp://")))
    assert (put("%2F", "amqp:///b"), put("b", "amqp://"), put("%2F", "amqp://")) == (400, 404, 201)

    def state() -> tuple[str, str]:
        [row] = call("shovels.list")
        return row["state"], row["error"]

    wait_until(lambda: state()[0] == "running", lambda: str(state()))
    assert {row["user"] for row in call("connections.list") if row["vhost"] == "/"} >= {"maker"}
    call("users.delete", name="maker")
    wait_until(lambda: "user 'maker', for whom the shovel acts, was deleted" in state()[1], lambda: str(state()))
    call("parameters.delete", component="shovel", name="acting", vhost="/")


def _or_none(function: Callable[[], Any]) -> Any:
    """The result; None while the HTTP API does not listen yet."""
    try:
        return function()
    except OSError:
        return None
