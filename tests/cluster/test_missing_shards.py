"""The HTTP API while a shard is not ready: lists leave out its objects and name it, and its vhosts answer 503."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.sharded import Sharded, running
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

HEADER = "leveret-missing-shards"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Sharded]:
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")
    settings = {"LEVERET_MANAGEMENT__ENABLED": "true", "LEVERET_MANAGEMENT__PORT": "0"}
    with running(Sharded(tmp_path, 2, "a", **settings)) as broker:
        yield broker


def test_a_list_without_a_shard_names_it(broker: Sharded) -> None:
    api = HttpBroker(broker)
    for vhost in ("%2F", "a"):
        assert api("PUT", f"/queues/{vhost}/q", {"durable": True}).status == 201
        assert api("PUT", f"/policies/{vhost}/p", {"pattern": "x", "definition": {"max-length": 1}}).status == 201
    complete = api("GET", "/queues")
    assert HEADER not in complete.headers
    assert [queue["vhost"] for queue in complete.json] == ["/", "a"]
    # Without its directory, the shard does not start again.
    pid = broker.shard_pid(1)
    directory = broker.data_dir / "shards" / "1"
    hidden = directory.with_name("hidden")
    directory.rename(hidden)
    directory.touch()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: HEADER in api("GET", "/queues").headers, broker.log)
    for path in ("/queues", "/vhosts", "/policies", "/bindings", "/exchanges", "/consumers", "/leveret/links"):
        reply = api("GET", path)
        assert (reply.status, reply.headers.get(HEADER)) == (200, "1"), path
        assert {row.get("vhost", row.get("name")) for row in reply.json} <= {"/"}, path
    assert [queue["vhost"] for queue in api("GET", "/queues").json] == ["/"]
    assert api("GET", "/overview").status == 200
    for path in ("/queues/a", "/queues/a/q", "/policies/a/p", "/vhosts/a", "/definitions"):
        reply = api("GET", path)
        assert (reply.status, reply.headers.get("retry-after")) == (503, "1"), path
        assert reply.json["reason"] == "shard 1 is restarting", path
    assert api("GET", "/queues/%2F/q").status == 200
    assert api("PUT", "/queues/a/q", {}).status == 503
    directory.unlink()
    hidden.rename(directory)
    wait_until(lambda: api("GET", "/queues/a/q").status == 200, broker.log)
    wait_until(lambda: HEADER not in api("GET", "/queues").headers, broker.log)
    assert [queue["vhost"] for queue in api("GET", "/queues").json] == ["/", "a"]
