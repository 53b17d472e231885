"""Operations on policies, operator policies, parameters and global parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.management.admin import BadCall
from tests.management.harness import Harness

PREFIXES = ("policies", "operator_policies")


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_policy_from_set_to_delete(harness: Harness, prefix: str) -> None:
    fields: dict[str, Any] = {"name": "p", "vhost": "/", "pattern": "^a", "definition": {"max-length": 3}}
    assert harness.call(f"{prefix}.set", **fields) == {"created": True}
    assert harness.call(f"{prefix}.set", **fields, priority=7, **{"apply-to": "streams"}) == {"created": False}
    shown = {**fields, "priority": 7, "apply-to": "streams"}
    assert harness.call(f"{prefix}.show", name="p") == shown
    assert harness.call(f"{prefix}.list") == harness.call(f"{prefix}.list", vhost="/") == [shown]
    assert harness.call(f"{prefix}.delete", name="p") is None
    assert harness.call(f"{prefix}.list") == []
    for operation in ("show", "delete"):
        with pytest.raises(NotFound, match=f"no {prefix.replace('_', ' ').replace('ies', 'y')} 'p' in vhost '/'"):
            harness.call(f"{prefix}.{operation}", name="p")


def test_the_defaults_of_apply_to(harness: Harness) -> None:
    for prefix in PREFIXES:
        harness.call(f"{prefix}.set", name="p", pattern=".*", definition={"max-length": 3})
    assert [harness.call(f"{prefix}.show", name="p")["apply-to"] for prefix in PREFIXES] == ["all", "queues"]


def test_wrong_requests(harness: Harness) -> None:
    with pytest.raises(PreconditionFailed, match="policy 'p': key 'ttl' is unknown"):
        harness.call("policies.set", name="p", pattern=".*", definition={"ttl": 3})
    with pytest.raises(NotFound, match="vhost 'x' does not exist"):
        harness.call("policies.set", name="p", vhost="x", pattern=".*", definition={"expires": 3})
    with pytest.raises(BadCall, match=r"policies\.set: Expected `object`, got `array` - at `\$\.definition`"):
        harness.call("policies.set", name="p", pattern=".*", definition=[])


def test_queues_and_exchanges_show_their_policies(harness: Harness) -> None:
    harness.call("queues.add", name="q", arguments={"x-max-length": 5})
    harness.call("policies.set", name="p", pattern="^q$", definition={"max-length": 9, "expires": 5000})
    harness.call("operator_policies.set", name="o", pattern=".*", definition={"max-length": 3})
    harness.call(
        "policies.set",
        name="x",
        pattern=r"^amq\.topic",
        definition={"alternate-exchange": "y"},
        **{"apply-to": "exchanges"},
    )
    shown = harness.call("queues.show", name="q")
    assert (shown["policy"], shown["operator_policy"], shown["arguments"]) == ("p", "o", {"x-max-length": 5})
    assert shown["effective_policy_definition"] == {"max-length": 3, "expires": 5000}
    exchanges = {item["name"]: item for item in harness.call("exchanges.list")}
    topic, direct = exchanges["amq.topic"], exchanges["amq.direct"]
    assert (topic["policy"], topic["operator_policy"]) == ("x", None)
    assert topic["effective_policy_definition"] == {"alternate-exchange": "y"}
    assert (direct["policy"], direct["effective_policy_definition"]) == (None, {})


def test_parameters(harness: Harness) -> None:
    limits = {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-queues": 1}}
    assert harness.call("parameters.set", **limits) == {"created": True}
    harness.call("operator_policies.set", name="o", pattern=".*", definition={"max-length": 3})
    assert [item["component"] for item in harness.call("parameters.list")] == ["vhost-limits", "operator_policy"]
    assert harness.call("parameters.list", component="vhost-limits") == [limits]
    assert harness.call("parameters.show", component="vhost-limits", name="limits") == limits
    harness.call("queues.add", name="a")
    with pytest.raises(PreconditionFailed, match="limit of 1 queues"):
        harness.call("queues.add", name="b")
    harness.call("parameters.delete", component="vhost-limits", name="limits")
    harness.call("parameters.delete", component="operator_policy", name="o")
    assert harness.call("parameters.list") == harness.call("operator_policies.list") == []
    with pytest.raises(NotFound, match="no parameter 'limits' of component 'vhost-limits'"):
        harness.call("parameters.show", component="vhost-limits", name="limits")


def test_global_parameters(harness: Harness) -> None:
    for value in ("name", {"a": [1, None]}, None):
        harness.call("global_parameters.set", name="p", value=value)
        assert harness.call("global_parameters.show", name="p") == {"name": "p", "value": value}
    assert harness.call("global_parameters.list") == [{"name": "p", "value": None}]
    harness.call("global_parameters.delete", name="p")
    assert harness.call("global_parameters.list") == []
    with pytest.raises(NotFound, match="no global parameter 'p'"):
        harness.call("global_parameters.delete", name="p")
