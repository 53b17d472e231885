"""Ages of ready messages over the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.runner import Commands
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import Samples, scrape
from tests.management.http.test_in_place import publish
from tests.support.polling import wait_until

QUEUES = "/leveret/queues/%2F"
SENT = 1_700_000_000


@pytest.fixture
def waiting(api: HttpBroker) -> Iterator[str]:
    """A queue with two ready messages, of which the first has a timestamp."""
    name = "waiting"
    assert api("PUT", f"/queues/%2F/{name}", {}).status == 201
    publish(api, name, "first", timestamp=SENT)
    publish(api, name, "second")
    yield name
    api("DELETE", f"/queues/%2F/{name}")


def age(api: HttpBroker, name: str) -> int | None:
    found: int | None = api.get(f"{QUEUES}/{name}/ready")["oldest_ready_age"]
    return found


def test_the_age_of_the_oldest_ready_message(api: HttpBroker, waiting: str) -> None:
    for name in ("no-wait", "no-wait-stream"):
        arguments = {"x-queue-type": "stream"} if name.endswith("stream") else {}
        assert api("PUT", f"/queues/%2F/{name}", {"arguments": arguments, "durable": True}).status == 201
    publish(api, "no-wait-stream", "kept")
    wait_until(lambda: (age(api, waiting) or 0) >= 1, "the messages to be older")
    assert api.get(f"{QUEUES}/{waiting}/ready").items() >= {"ready": 2, "delayed": 0, "leased": 0}.items()
    assert [age(api, name) for name in ("no-wait", "no-wait-stream")] == [None, None]
    [row] = [row for row in api.get("/leveret/ready/queues") if row["name"] == waiting]
    assert row["ready"] == 2 and row["oldest_ready_age"] >= 1
    columns = "columns=name,oldest_ready_age,head_message_timestamp&sort=oldest_ready_age&sort_reverse=true"
    rows = {row["name"]: row for row in api.get(f"/queues/%2F?{columns}")}
    assert next(iter(rows)) == waiting
    assert rows[waiting]["oldest_ready_age"] >= 1 and rows[waiting]["head_message_timestamp"] == SENT
    assert rows["no-wait"] == {"name": "no-wait", "oldest_ready_age": None, "head_message_timestamp": None}
    assert "oldest_ready_age" not in api.get(f"/queues/%2F/{waiting}")
    samples = Samples(scrape(api.process, "/detailed?family=queue_metrics"))
    assert samples.value("leveret_queue_oldest_ready_seconds", queue=waiting, vhost="/") >= 1
    assert samples.value("leveret_queue_oldest_ready_seconds", queue="no-wait", vhost="/") == 0
    assert samples.value("rabbitmq_detailed_queue_head_message_timestamp", queue=waiting, vhost="/") == SENT
    commands = Commands(api.process.data_dir)
    [item] = [item for item in commands.json("queues", "list") if item["name"] == waiting]
    assert item["oldest_ready_age"] >= 1 and item["head_timestamp"] == SENT
    assert "oldest ready" in commands.ok("queues", "list").splitlines()[0]
    for name in ("no-wait", "no-wait-stream"):
        api("DELETE", f"/queues/%2F/{name}")


def test_the_timestamp_of_a_queue_is_that_of_its_next_message(api: HttpBroker, waiting: str) -> None:
    def taken(body: dict[str, object]) -> list[str]:
        found = api("POST", f"/queues/%2F/{waiting}/get", {"encoding": "auto", "count": 1, **body}).json
        return [message["payload"] for message in found]

    assert api.get(f"/queues/%2F/{waiting}")["head_message_timestamp"] == SENT
    assert taken({"ackmode": "ack_requeue_true"}) == ["first"]
    assert api.get(f"/queues/%2F/{waiting}")["head_message_timestamp"] == SENT
    assert taken({"ackmode": "ack_requeue_false"}) == ["first"]
    assert api.get(f"/queues/%2F/{waiting}")["head_message_timestamp"] is None
    assert api("DELETE", f"/queues/%2F/{waiting}/contents").status == 204
    wait_until(lambda: age(api, waiting) is None, "the purge")


def test_users_see_ages_of_queues_in_their_vhosts(api: HttpBroker, waiting: str) -> None:
    wait_until(lambda: api.get("/leveret/ready/queues"), "a queue with ready messages")
    assert waiting in {row["name"] for row in api.get("/leveret/ready/queues", user="manager")}
    assert api("GET", f"{QUEUES}/unknown/ready").status == 404
    assert api("GET", "/leveret/ready/queues", user="plain").status == 401
