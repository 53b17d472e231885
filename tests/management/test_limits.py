"""Limits under RabbitMQ's names, and the settings of vhosts that RabbitMQ calls metadata."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.broker.errors import BrokerError, NotFound, PreconditionFailed
from leveret.config import Config, UserLimitsConfig, VhostConfig, VhostLimitsConfig
from leveret.management.admin import BadCall
from leveret.management.operations.vhosts import stored_vhosts
from leveret.security.users import UserLimits
from tests.management.harness import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness(Config(vhosts={"declared": VhostConfig(limits=VhostLimitsConfig(max_queues=7))}))
    harness.call("users.add", name="alice")
    yield harness
    harness.close()


def test_vhost_limits(harness: Harness) -> None:
    assert harness.call("vhost_limits.list") == [{"vhost": "declared", "value": {"max-queues": 7}}]
    harness.call("vhost_limits.set", vhost="/", name="max-connections", value=5)
    harness.call("vhost_limits.set", vhost="/", name="max-queues", value=0)
    value = {"max-connections": 5, "max-queues": 0}
    assert harness.call("vhost_limits.list", vhost="/") == [{"vhost": "/", "value": value}]
    assert harness.call("parameters.show", component="vhost-limits", vhost="/", name="limits")["value"] == value
    vhost = harness.broker.vhosts["/"]
    assert (vhost.max_connections, vhost.max_queues) == (5, 0)
    with pytest.raises(PreconditionFailed, match="reached its limit of 0 queues"):
        vhost.declare_queue("q", None)
    harness.call("vhost_limits.set", vhost="/", name="max-connections", value=-1)
    harness.call("vhost_limits.clear", vhost="/", name="max-queues")
    harness.call("vhost_limits.clear", vhost="/", name="max-queues")
    assert harness.call("vhost_limits.list", vhost="/") == []
    harness.call("vhost_limits.set", vhost="/", name="max-queues", value=1)
    harness.call("vhost_limits.clear", vhost="/")
    assert vhost.max_queues == -1
    assert harness.call("parameters.list") == []


def test_the_lower_limit_of_a_vhost_applies(harness: Harness) -> None:
    harness.call("vhost_limits.set", vhost="declared", name="max-queues", value=9)
    assert harness.call("vhost_limits.list") == [{"vhost": "declared", "value": {"max-queues": 7}}]
    harness.call("vhost_limits.set", vhost="declared", name="max-queues", value=3)
    assert harness.call("vhost_limits.list") == [{"vhost": "declared", "value": {"max-queues": 3}}]
    harness.call("vhost_limits.clear", vhost="declared")
    assert harness.call("vhost_limits.list") == [{"vhost": "declared", "value": {"max-queues": 7}}]


def test_user_limits(harness: Harness) -> None:
    assert harness.call("user_limits.list") == []
    harness.call("user_limits.set", user="alice", name="max-connections", value=5)
    harness.call("user_limits.set", user="alice", name="max-channels", value=0)
    expected = [{"user": "alice", "value": {"max-connections": 5, "max-channels": 0}}]
    assert harness.call("user_limits.list") == harness.call("user_limits.list", user="alice") == expected
    assert harness.call("user_limits.list", user="bob") == []
    alice = harness.users.get("alice")
    assert alice is not None and alice.limits == UserLimits(5, -1)
    harness.call("user_limits.clear", user="alice", name="max-channels")
    assert harness.call("user_limits.list") == [{"user": "alice", "value": {"max-connections": 5}}]
    harness.call("user_limits.clear", user="alice")
    assert harness.call("user_limits.list") == []


@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        ("vhost_limits.clear", {"vhost": "nowhere"}, NotFound),
        ("vhost_limits.set", {"vhost": "/", "name": "max-channels", "value": 1}, BadCall),
        ("user_limits.set", {"user": "unknown", "name": "max-channels", "value": 1}, NotFound),
        ("user_limits.set", {"user": "alice", "name": "max-queues", "value": 1}, BadCall),
    ],
)
def test_refused_changes(harness: Harness, call: str, arguments: dict[str, object], error: type[BrokerError]) -> None:
    with pytest.raises(error):
        harness.call(call, **arguments)


def test_metadata_of_a_vhost(harness: Harness) -> None:
    harness.call("vhosts.add", name="shop", description="Orders", tags="eu, prod")
    harness.call("vhosts.change", name="shop", default_queue_type="stream", protected_from_deletion=True)
    [shown] = [item for item in harness.call("vhosts.list") if item["name"] == "shop"]
    keys = ("description", "tags", "default_queue_type", "protected_from_deletion")
    assert [shown[key] for key in keys] == ["Orders", ["eu", "prod"], "stream", True]
    assert stored_vhosts(harness.log.metadata)["shop"].tags == ["eu", "prod"]
    with pytest.raises(PreconditionFailed, match="vhost 'shop' is protected from deletion"):
        harness.call("vhosts.delete", name="shop")
    harness.call("vhosts.change", name="shop", protected_from_deletion=False)
    harness.call("vhosts.delete", name="shop")
    assert "shop" not in harness.broker.vhosts


def test_the_default_queue_type(harness: Harness) -> None:
    vhost = harness.broker.vhosts["/"]
    vhost.declare_queue("before", None, durable=True)
    harness.call("vhosts.change", name="/", default_queue_type="quorum")
    queue = vhost.declare_queue("q", None, durable=True, arguments={"x-max-length": 3})
    assert queue.arguments == {"x-queue-type": "quorum", "x-max-length": 3}
    assert queue.settings.type == "quorum"
    assert vhost.declare_queue("q", None, durable=True, arguments={"x-max-length": 3}) is queue
    with pytest.raises(PreconditionFailed, match="x-queue-type"):
        vhost.declare_queue("q", None, durable=True, arguments={"x-queue-type": "classic", "x-max-length": 3})
    # Existing queues, and those that the type does not allow.
    vhost.declare_queue("before", None, durable=True)
    assert vhost.declare_queue("transient", None).settings.type == "classic"
    assert vhost.declare_queue("exclusive", harness, durable=True, exclusive=True).settings.type == "classic"
    assert vhost.declare_queue("own", None, durable=True, arguments={"x-queue-type": "stream"}).settings.type == "stream"
    harness.call("vhosts.change", name="/", default_queue_type="stream")
    assert vhost.declare_queue("q", None, durable=True, arguments={"x-max-length": 3}) is queue


def test_limits_of_the_configuration_may_allow_none() -> None:
    assert UserLimitsConfig(max_connections=-1).max_connections == -1
