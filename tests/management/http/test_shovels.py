"""Shovels over the HTTP API, in the metrics, and on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pika
import pytest

from leveret.management.http import schemas
from tests.cli.runner import Commands
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import Samples, scrape
from tests.support.polling import wait_until

COUNT = 50


@pytest.fixture
def shovel(api: HttpBroker) -> Iterator[str]:
    """A shovel with a password in its URIs, which has moved its messages."""
    connection = pika.BlockingConnection(pika.URLParameters(api.process.url()))
    channel = connection.channel()
    channel.queue_declare("from", durable=True)
    for _ in range(COUNT):
        channel.basic_publish("", "from", b"x")
    connection.close()
    value = {
        "src-uri": ["amqp://127.0.0.1:1", "amqp://guest:guest@"],
        "src-queue": "from",
        "dest-uri": "amqp://guest:guest@",
        "dest-queue": "to",
    }
    assert api("PUT", "/parameters/shovel/%2F/moved", {"value": value}).status == 201
    wait_until(lambda: show(api).get("forwarded") == COUNT)
    yield "moved"
    api("DELETE", "/parameters/shovel/%2F/moved")
    for queue in ("from", "to"):
        api("DELETE", f"/queues/%2F/{queue}")


def show(api: HttpBroker) -> dict[str, Any]:
    """Return the only shovel, or an empty dictionary."""
    rows = api.get("/shovels")
    for row in rows:
        msgspec.convert(row, schemas.Shovel)
        assert set(row) <= set(schemas.Shovel.__struct_encode_fields__)
    return rows[0] if rows else {}


def test_a_running_shovel_has_rabbitmqs_keys(api: HttpBroker, shovel: str) -> None:
    row = show(api)
    assert api.get(f"/shovels/vhost/%2F/{shovel}") == row
    assert api.get("/shovels/%2F") == [row]
    assert api.get("/shovels/interop") == []
    assert len(row.pop("timestamp")) == len("2026-11-27 09:30:00")
    assert row.pop("node") == api.get("/overview")["node"]
    assert row == {
        "name": "moved",
        "vhost": "/",
        "type": "dynamic",
        "state": "running",
        "user": "guest",
        "src_uri": "amqp://",
        "src_protocol": "amqp091",
        "src_queue": "from",
        "dest_uri": "amqp://",
        "dest_protocol": "amqp091",
        "dest_queue": "to",
        "published": COUNT,
        "forwarded": COUNT,
        "pending": 0,
        "remaining": None,
        "restarts": 0,
        "error": "",
    }


def test_rights(api: HttpBroker, shovel: str) -> None:
    assert api("GET", "/shovels", user="manager").status == 401
    assert api("DELETE", f"/shovels/vhost/%2F/{shovel}/restart", user="monitor").status == 401
    assert api("DELETE", f"/shovels/vhost/%2F/{shovel}", user="monitor").status == 401
    assert show(api)["restarts"] == 0


def test_metrics(api: HttpBroker, shovel: str) -> None:
    labels = {"vhost": "/", "shovel": shovel, "type": "dynamic"}
    for path in ("", "/per-object"):
        found = Samples(scrape(api.process, path))
        assert found.value("leveret_shovel_published_messages_total", **labels) == COUNT
        assert found.value("leveret_shovel_forwarded_messages_total", **labels) == COUNT
        assert found.value("leveret_shovel_pending_messages", **labels) == 0
        assert found.value("leveret_shovel_restarts_total", **labels) == 0
        states = [found.value("leveret_shovel_state", **labels, state=state) for state in ("starting", "running")]
        assert states == [0, 1]


def test_a_restart_opens_new_connections(api: HttpBroker, shovel: str) -> None:
    def names() -> set[str]:
        return {row["name"] for row in api.get("/connections") if row["user_provided_name"] == f"Shovel {shovel}"}

    before = names()
    assert len(before) == 2
    assert api("DELETE", f"/shovels/vhost/%2F/{shovel}/restart", user="maker").status == 204
    wait_until(lambda: len(names() - before) == 2)
    wait_until(lambda: show(api)["state"] == "running")
    assert api("DELETE", "/shovels/vhost/%2F/missing/restart").status == 404


def test_a_deleted_shovel_has_no_parameter(api: HttpBroker, shovel: str) -> None:
    assert api("DELETE", f"/shovels/vhost/%2F/{shovel}").status == 204
    assert api.get("/parameters/shovel") == api.get("/shovels") == []
    assert api("DELETE", f"/shovels/vhost/%2F/{shovel}").status == 404


def test_commands(api: HttpBroker, shovel: str) -> None:
    commands = Commands(api.process.data_dir)
    [row] = commands.json("shovel")
    assert (row["name"], row["state"], row["forwarded"]) == ("moved", "running", COUNT)
    assert commands.json("shovel", "show", shovel)["src_queue"] == "from"
    assert "restarted shovel 'moved'" in commands.ok("shovel", "restart", shovel)
    assert "shovel 'other' does not exist in vhost '/'" in commands.refused("shovel", "show", "other")


def test_a_shovel_that_fails_says_why(api: HttpBroker) -> None:
    value = {"src-uri": "amqp://u:secret@127.0.0.1:1", "src-queue": "a", "dest-uri": "amqp://", "reconnect-delay": 1}
    api("PUT", "/parameters/shovel/%2F/failing", {"value": value})
    wait_until(lambda: show(api)["restarts"] >= 2)
    row = wait_until(lambda: next((row for row in [show(api)] if row["state"] == "terminated"), None))
    assert row["reason"] == row["error"] and "127.0.0.1:1" in row["error"]
    assert "secret" not in str(row)
    # It does not start again by itself.
    api("PUT", "/parameters/shovel/%2F/failing", {"value": value | {"reconnect-delay": 0}})
    wait_until(lambda: (show(api)["state"], show(api)["restarts"]) == ("terminated", 0))
    assert api("DELETE", "/shovels/vhost/%2F/failing").status == 204
