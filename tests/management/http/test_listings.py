"""Links, transactions, branches, leases, sinks and positions in streams over the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pika
import pytest

from leveret import sync
from leveret.management.http import schemas
from leveret.wire.amqp10.messaging import Source
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import Samples, scrape
from tests.support.peers.amqp10 import Peer, message, under
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until
from tests.support.requests import ask


@pytest.fixture
def peer(api: HttpBroker) -> Iterator[Peer]:
    """A client of AMQP 1.0, the user plain."""
    peer = Peer(api.process.host, api.process.port)
    assert peer.login(response=b"\0plain\0plain") == 0
    peer.open("shop")
    yield peer
    with suppress(OSError):
        peer.close()


@pytest.fixture
def queue(api: HttpBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"listed-{request.node.name}"
    assert api("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
    yield name
    api("DELETE", f"/queues/%2F/{name}")


def rows(api: HttpBroker, path: str, schema: type[msgspec.Struct], user: str = "guest") -> list[dict[str, Any]]:
    """Return a list, whose rows have exactly the keys of a schema."""
    found: list[dict[str, Any]] = api.get(f"/leveret/{path}", user)
    for row in found:
        assert set(row) == set(schema.__struct_encode_fields__)
        msgspec.convert(row, schema)
    return found


def one(api: HttpBroker, path: str, schema: type[msgspec.Struct], **wanted: Any) -> dict[str, Any]:
    """Wait for a row with these values, and return it."""

    def found() -> dict[str, Any] | None:
        matching = [row for row in rows(api, path, schema) if wanted.items() <= row.items()]
        return matching[0] if matching else None

    return wait_until(found, lambda: str(api.get(f"/leveret/{path}")))


def test_links(api: HttpBroker, peer: Peer, queue: str) -> None:
    session = peer.begin()
    sender = session.sender(f"/queues/{queue}", name=f"{queue}-out", snd_settle_mode=0)
    sender.deliver()
    sender.deliver()
    kept = Source(f"/queues/{queue}", durable=2, expiry_policy="never")
    receiver = session.receiver(name=f"{queue}-in", credit=7, source=kept)
    receiver.get()
    receiver.get()
    outgoing = one(api, "links", schemas.Link, name=f"{queue}-in", unsettled=2)
    assert outgoing["connection_details"]["name"] in [row["name"] for row in api.get("/connections")]
    expected = {
        "role": "sender",
        "state": "attached",
        "user": "plain",
        "container": "shop",
        "credit": 5,
        "delivery_count": 2,
        "receiver_settle_mode": "first",
        "durable": "unsettled-state",
    }
    assert {key: outgoing[key] for key in expected} == expected
    incoming = one(api, "links/%2F", schemas.Link, name=f"{queue}-out")
    assert (incoming["role"], incoming["sender_settle_mode"], incoming["delivery_count"]) == ("receiver", "unsettled", 2)
    page = api.get(f"/leveret/links?page=1&page_size=1&sort=unsettled&sort_reverse=true&name={queue}")
    assert ([row["name"] for row in page["items"]], page["filtered_count"]) == ([f"{queue}-in"], 2)
    name = quote(outgoing["connection_details"]["name"])
    assert len(api.get(f"/leveret/links?connection={name}")) == 2
    assert api.get("/leveret/links?connection=another") == []
    assert rows(api, "links", schemas.Link, "manager") == []
    assert len(rows(api, "links", schemas.Link, "monitor")) == 2

    session.end()
    suspended = one(api, "links", schemas.Link, name=f"{queue}-in", state="suspended")
    assert (suspended["connection_details"]["name"], suspended["session"], suspended["credit"]) == ("", None, None)
    assert api("POST", "/leveret/operations/links.delete", {"name": f"{queue}-in"}).status == 200
    assert rows(api, "links", schemas.Link) == []


def test_sessions_of_a_connection(api: HttpBroker, peer: Peer, queue: str) -> None:
    session = peer.begin()
    session.controller()
    session.sender(f"/queues/{queue}", name="out", snd_settle_mode=0).deliver()
    session.receiver(f"/queues/{queue}", name="in", credit=5).get()
    peer.begin()
    name = wait_until(lambda: next((row["name"] for row in api.get("/connections") if row["user"] == "plain"), None))
    path = f"/connections/{quote(name)}/sessions"
    first, second = wait_until(lambda: found if len(found := api.get(path)) == 2 else None)
    assert (first["channel_number"], second["channel_number"]) == (0, 1)
    assert first["outgoing_unsettled_deliveries"] == 1 and second["incoming_links"] == second["outgoing_links"] == []
    links = {link["link_name"]: link for link in first["incoming_links"]}
    assert len(links) == 2  # one of them to the coordinator
    out = links["out"]
    assert (out["target_address"], out["snd_settle_mode"], out["delivery_count"]) == (f"/queues/{queue}", "unsettled", 1)
    [received] = first["outgoing_links"]
    assert (received["link_name"], received["queue_name"], received["credit"], received["send_settled"]) == (
        "in",
        queue,
        4,
        False,
    )
    assert api("GET", path, user="manager").status == 401
    with pika.BlockingConnection(pika.ConnectionParameters(api.process.host, api.process.port)):
        other = wait_until(lambda: next((row["name"] for row in api.get("/connections") if row["user"] == "guest"), None))
        reply = api("GET", f"/connections/{quote(other)}/sessions")
        assert (reply.status, "does not use AMQP 1.0" in reply.json["reason"]) == (400, True)
    session.end()


def test_transactions(api: HttpBroker, queue: str, peer: Peer) -> None:
    session = peer.begin()
    controller = session.controller()
    id = controller.declare()
    session.sender(f"/queues/{queue}").send(message(b"four"), state=under(id))
    local = one(api, "transactions", schemas.Transaction, kind="local", publishes=1)
    assert (local["id"], local["state"], local["user"], local["protocol"]) == (id.hex(), "open", "plain", "AMQP 1.0")
    assert local["size"] >= 4
    assert api.get("/leveret/transactions", "manager") == []
    controller.discharge(id)
    wait_until(lambda: rows(api, "transactions", schemas.Transaction) == [])
    with pika.BlockingConnection(pika.ConnectionParameters(api.process.host, api.process.port)) as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("", queue, b"x" * 100)
        method, _, content = channel.basic_get(queue)
        assert content == b"four"
        channel.basic_ack(method.delivery_tag)
        tx = one(api, "transactions/%2F", schemas.Transaction, kind="tx", publishes=1, settlements=1)
        assert (tx["user"], tx["state"], tx["protocol"]) == ("guest", "open", "AMQP 0-9-1")
        assert tx["channel_name"] == f"{tx['connection_details']['name']} ({tx['channel']})"
        assert tx["size"] >= 100
        wait_until(lambda: one(api, "transactions", schemas.Transaction, kind="tx")["age"] > tx["age"])
        channel.tx_commit()
        wait_until(lambda: rows(api, "transactions", schemas.Transaction) == [])


def test_branches(api: HttpBroker, queue: str) -> None:
    client = Client(api.process)
    with closing(client.socket):
        client.call("dtx.select", "dtx.select-ok")
        client.call("dtx.start", "dtx.start-ok", dtx_identifier="order-1")
        branch = one(api, "branches", schemas.Branch, branch="order-1")
        assert (branch["state"], branch["user"], branch["channels"]) == ("active", "guest", 1)
        assert api.get("/leveret/branches", "manager") == []
        assert api("POST", "/leveret/operations/dtx.rollback", {"name": "order-1"}).json["result"] == {
            "outcome": "rolled back"
        }
        wait_until(lambda: rows(api, "branches", schemas.Branch) == [])


def test_pipelines(api: HttpBroker, queue: str) -> None:
    stream = f"{queue}-stream"
    assert api("PUT", f"/queues/%2F/{stream}", {"durable": True, "arguments": {"x-queue-type": "stream"}}).status == 201
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        for number in range(6):
            channel.publish(b"%d" % number, queue, persistent=True)
            channel.publish(b"%d" % number, stream, persistent=True)
        epoch = ask(channel, "lease.acquire", queue=queue, lease="daily")["epoch"]
        ask(channel, "lease.plan", queue=queue, lease="daily", epoch=epoch, after=0, max_messages=4)
        lease = one(api, "leases", schemas.Lease, lease="daily", ready=2)
        assert (lease["queue"], lease["messages"], lease["lag"], lease["readers"]) == (queue, 4, 6, 0)
        assert lease["lag_bytes"] == 6 and lease["lag_seconds"] > 0
        lag = ask(channel, "lease.lag", queue=queue, lease="daily")
        assert (lag["lag"], lag["bytes"]) == (6, 6) and lag["seconds"] >= 0
        rest = ask(channel, "lease.lag", queue=queue, lease="daily", after=1)
        assert (rest["lag"], rest["bytes"]) == (2, 2)
        wait_until(lambda: (ask(channel, "lease.lag", queue=queue, lease="daily", after=1)["seconds"] or 0) >= 1)
        assert [(batch["batch"], batch["count"]) for batch in lease["batches"]] == [(1, 4)]
        assert [row["lease"] for row in api.get("/leveret/leases", "manager")] == ["daily"]

        ask(channel, "stream.start", stream=stream, consumer="checkpoint", offset=0)
        ask(channel, "stream.commit", stream=stream, consumer="checkpoint", offset=2)
        position = one(api, "stream-consumers/%2F", schemas.StreamConsumer, consumer="checkpoint", next_offset=2)
        assert (position["stream"], position["lag"], position["reading"]) == (stream, 4, False)
        assert position["lag_bytes"] == 4 and position["lag_seconds"] > 0
        labels = {"vhost": "/", "queue": stream, "consumer": "checkpoint"}
        for path in ("/per-object", "/detailed?family=stream_consumer_metrics&vhost=%2F"):
            samples = Samples(scrape(api.process, path))
            assert samples.value("leveret_stream_consumer_lag_messages", **labels) == 4
            assert samples.value("leveret_stream_consumer_lag_bytes", **labels) == 4
            assert samples.value("leveret_stream_consumer_lag_seconds", **labels) > 0
        for path in ("", "/detailed?family=queue_metrics", "/detailed?family=stream_consumer_metrics&vhost=none"):
            assert not Samples(scrape(api.process, path)).find("leveret_stream_consumer_lag_messages")

        stage = str(uuid4())
        ask(channel, "stage.open", stage=stage, app="nightly", exchanges=[])
        open_stage = one(api, "sink-transactions", schemas.SinkTransaction, stage=stage)
        assert (open_stage["app"], open_stage["state"], open_stage["user"]) == ("nightly", "open", "guest")
        ask(channel, "stage.seal", stage=stage, count=0, crc32=0)
        ask(channel, "stage.promote", app="nightly", batch=5, stages=[stage])
        sink = one(api, "sinks", schemas.Sink, app="nightly")
        assert (sink["batch"], sink["promoting"], sink["waits_for"]) == (5, None, None)
        assert api.get("/leveret/sinks", "manager") == []
        assert api("POST", "/leveret/operations/stages.forget", {"name": "nightly"}).status == 200
    assert api("DELETE", f"/queues/%2F/{stream}").status == 204


def test_lists_of_a_vhost_that_the_user_does_not_see(api: HttpBroker) -> None:
    for path in ("links", "transactions", "branches", "leases", "sinks", "sink-transactions", "stream-consumers"):
        assert api("GET", f"/leveret/{path}/interop", user="manager").status == 404
        assert api.get(f"/leveret/{path}/interop", "monitor") == []
