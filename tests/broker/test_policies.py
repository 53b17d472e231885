"""Policies and operator policies: matching, merging, and their effect on existing queues and exchanges."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.broker import VhostSettings
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.policies import KEYS, effective_definition
from leveret.broker.queues.queue import Queue
from tests.broker.support import HeldLog, Taker, World, deaths_in


def set_policy(world: World, name: str, pattern: str, *, operator: bool = False, **more: Any) -> bool:
    """Set a policy; `max_length=3` is the key `max-length` of its definition."""
    apply_to = more.pop("apply_to", "all")
    priority = more.pop("priority", 0)
    definition = {key.replace("_", "-"): value for key, value in more.items()}
    policies = world.vhost.policies
    table = policies.operator if operator else policies.user
    created = policies.set(table, name, pattern, definition, apply_to=apply_to, priority=priority)
    world.run()
    return created


def delete_policy(world: World, name: str, *, operator: bool = False) -> None:
    policies = world.vhost.policies
    policies.delete(policies.operator if operator else policies.user, name)
    world.run()


def applied(queue: Queue) -> tuple[str | None, str | None]:
    policy, operator = queue.policy, queue.operator_policy
    return None if policy is None else policy.name, None if operator is None else operator.name


class TestMatching:
    def test_the_highest_priority_that_matches_wins(self, world: World) -> None:
        orders, other = world.queue("orders.eu"), world.queue("other")
        set_policy(world, "low", ".*", max_length=5)
        set_policy(world, "high", "^orders", max_length=9, priority=1)
        set_policy(world, "highest", "^nothing", max_length=1, priority=2)
        assert (applied(orders), orders.settings.max_length) == (("high", None), 9)
        assert (applied(other), other.settings.max_length) == (("low", None), 5)
        delete_policy(world, "high")
        assert (applied(orders), orders.settings.max_length) == (("low", None), 5)
        delete_policy(world, "low")
        assert (applied(orders), orders.settings.max_length) == ((None, None), None)

    def test_a_new_queue_gets_the_policy(self, world: World) -> None:
        set_policy(world, "p", "^q", max_length=2)
        queue = world.queue("q")
        world.push(queue, *"abc")
        assert world.contents(queue) == ["b", "c"]

    def test_the_pattern_is_searched_in_the_name(self, world: World) -> None:
        set_policy(world, "p", "b", max_length=2)
        assert applied(world.queue("abc")) == ("p", None)

    @pytest.mark.parametrize(
        ("apply_to", "matched"),
        [
            ("all", {"c", "q", "s", "l", "x"}),
            ("queues", {"c", "q", "s", "l"}),
            ("classic_queues", {"c"}),
            ("quorum_queues", {"q"}),
            ("streams", {"s"}),
            ("exchanges", {"x"}),
        ],
    )
    def test_apply_to(self, world: World, apply_to: str, matched: set[str]) -> None:
        world.queue("c")
        world.declare("q", durable=True, queue_type="quorum")
        world.declare("s", durable=True, queue_type="stream")
        world.declare("l", queue_type="last-value")
        world.vhost.declare_exchange("x", "direct")
        set_policy(world, "p", "^[cqslx]$", apply_to=apply_to, queue_master_locator="min-masters")
        targets: list[Any] = [*world.vhost.queues.values(), *world.vhost.exchanges.values()]
        assert {target.name for target in targets if target.policy is not None} == matched

    def test_a_key_that_a_type_does_not_support_excludes_queues_of_that_type(self, world: World) -> None:
        stream = world.declare("s", durable=True, queue_type="stream")
        queue = world.queue("q")
        set_policy(world, "ttl", ".*", message_ttl=1, priority=1)
        set_policy(world, "age", ".*", max_age="1h", priority=2)
        assert applied(stream) == ("age", None)
        assert applied(queue) == ("ttl", None)

    def test_no_policy_matches_direct_reply_to_and_the_default_exchange(self, world: World) -> None:
        from leveret.protocols.direct_reply import REPLY_TO

        set_policy(world, "p", ".*", max_length=0)
        set_policy(world, "x", ".*", alternate_exchange="amq.fanout", apply_to="exchanges", priority=1)
        queue = world.vhost.add_reply_queue(f"{REPLY_TO}.x", world.queue("other").declared)
        assert queue.policy is None
        assert world.vhost.default_exchange.alternate is None


class TestMerging:
    def test_operator_policies_lower_policies(self, world: World) -> None:
        queue = world.queue("q")
        set_policy(world, "p", ".*", max_length=10, message_ttl=5, overflow="drop-head", dead_letter_exchange="x")
        set_policy(world, "o", ".*", operator=True, max_length=3, message_ttl=9, overflow="reject-publish", expires=7)
        assert applied(queue) == ("p", "o")
        assert effective_definition(queue) == {
            "max-length": 3,
            "message-ttl": 5,
            "overflow": "reject-publish",
            "dead-letter-exchange": "x",
            "expires": 7,
        }

    def test_unlimited_deliveries_are_more_than_any_number(self, world: World) -> None:
        queue = world.queue("q", delivery_limit=-1)
        limits = [queue.settings.delivery_limit]
        set_policy(world, "p", ".*", delivery_limit=4)
        limits.append(queue.settings.delivery_limit)
        set_policy(world, "o", ".*", operator=True, delivery_limit=-1)
        limits.append(queue.settings.delivery_limit)
        assert (limits, effective_definition(queue)) == ([None, 4, 4], {"delivery-limit": 4})

    def test_the_default_of_a_queue_type_is_not_an_argument(self, world: World) -> None:
        queue = world.declare("q", durable=True, queue_type="quorum")
        assert queue.settings.delivery_limit == 20
        set_policy(world, "p", ".*", delivery_limit=50)
        assert queue.settings.delivery_limit == 50

    @pytest.mark.parametrize(
        ("argument", "value", "policy", "effective"),
        [
            ("x-message-ttl", 10, 20, 10),
            ("x-message-ttl", 20, 10, 10),
            ("x-expires", 20, 10, 10),
            ("x-max-length", 0, 10, 0),
            ("x-max-length-bytes", 20, 10, 10),
            ("x-consumer-timeout", 0, 10, 10),
            ("x-consumer-timeout", 10, 0, 10),
            ("x-overflow", "drop-head", "reject-publish", "drop-head"),
            ("x-dead-letter-exchange", "mine", "theirs", "mine"),
        ],
    )
    def test_arguments_and_policy(self, world: World, argument: str, value: Any, policy: Any, effective: Any) -> None:
        queue = world.vhost.declare_queue("q", None, arguments={argument: value})
        set_policy(world, "p", "q", **{argument.removeprefix("x-"): policy})
        assert queue.settings.known[argument] == effective
        assert effective_definition(queue) == {argument.removeprefix("x-"): policy}

    def test_the_shorter_age_of_a_stream(self, world: World) -> None:
        stream = world.declare("s", durable=True, queue_type="stream", max_age="2h")
        set_policy(world, "p", "s", max_age="1D")
        assert stream.settings.max_age == 2 * 3_600_000
        set_policy(world, "p", "s", max_age="90m")
        assert stream.settings.max_age == 90 * 60_000

    def test_a_redeclaration_compares_arguments_only(self, world: World) -> None:
        queue = world.queue("q", max_length=5)
        set_policy(world, "p", ".*", max_length=3)
        assert world.queue("q", max_length=5) is queue
        with pytest.raises(PreconditionFailed, match="received '3' but current is '5'"):
            world.queue("q", max_length=3)

    def test_strict_mode_adds_its_delivery_limit_after_policies(self) -> None:
        world = World(strict=True)
        queue, limited = world.queue("q"), world.queue("limited")
        set_policy(world, "p", "^limited", delivery_limit=9)
        assert (queue.settings.delivery_limit, queue.settings.dead_letter_routing_key) == (5, "amq.dead")
        assert (limited.settings.delivery_limit, limited.settings.dead_letter_exchange) == (9, None)
        world.broker.add_vhost("/", VhostSettings())
        assert (queue.settings.delivery_limit, limited.settings.delivery_limit) == (None, 9)


class TestEffect:
    def test_a_shorter_length_drops_at_once(self, world: World) -> None:
        queue = world.queue("q")
        world.push(queue, *"abcde")
        set_policy(world, "p", ".*", max_length=2)
        assert world.contents(queue) == ["d", "e"]

    def test_a_limit_drops_paged_out_messages_too(self) -> None:
        world = World(overflow=True, page_above=2000)
        queue = world.queue("q")
        for number in range(200):
            world.push(queue, f"{number:0100}")
            world.run()
        world.broker.page_down()
        world.run()
        assert queue.paging.memory() < 150 * 100
        set_policy(world, "p", ".*", max_length=2)
        world.run()
        assert queue.ready_count == 2
        assert [body.lstrip("0") for body in world.contents(queue)] == ["198", "199"]

    def test_dropped_messages_go_to_the_dead_letter_exchange_of_the_policy(self, world: World) -> None:
        queue, dead = world.queue("q"), world.queue("dead")
        world.push(queue, *"abc")
        set_policy(world, "p", "^q$", max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        assert world.contents(queue) == ["c"]
        entry = dead.get(True)
        assert entry is not None and entry.overlay is not None
        assert [death["reason"] for death in deaths_in(entry.overlay.headers)] == ["maxlen"]
        assert dead.ready_count == 1

    def test_reject_publish(self, world: World) -> None:
        queue = world.queue("q", max_length=1)
        world.push(queue, "a")
        set_policy(world, "p", ".*", overflow="reject-publish")
        assert not world.push(queue, "b")
        delete_policy(world, "p")
        assert world.push(queue, "c")
        assert world.contents(queue) == ["c"]

    def test_ttl_of_new_messages(self, world: World) -> None:
        queue = world.queue("q")
        world.push(queue, "old")
        set_policy(world, "p", ".*", message_ttl=1000)
        world.push(queue, "new")
        assert world.get(queue) == "old"
        world.sleep(2000)
        assert queue.ready_count == 0
        set_policy(world, "p", ".*", message_ttl=100)
        world.push(queue, "kept until it expires")
        delete_policy(world, "p")
        world.push(queue, "kept")
        world.sleep(200)
        assert world.contents(queue) == ["kept"]

    def test_expires(self, world: World) -> None:
        world.queue("q")
        set_policy(world, "p", ".*", expires=1000)
        world.sleep(999)
        assert "q" in world.vhost.queues
        world.sleep(1)
        assert "q" not in world.vhost.queues

    def test_expires_no_longer(self, world: World) -> None:
        world.queue("q")
        set_policy(world, "p", ".*", expires=1000)
        delete_policy(world, "p")
        world.sleep(5000)
        assert "q" in world.vhost.queues

    def test_expires_waits_for_consumers(self, world: World) -> None:
        queue = world.queue("q")
        consumer = Taker(queue)
        set_policy(world, "p", ".*", expires=1000)
        world.sleep(5000)
        assert "q" in world.vhost.queues
        queue.remove_consumer(consumer)
        world.sleep(1000)
        assert "q" not in world.vhost.queues

    def test_delivery_limit(self, world: World) -> None:
        queue = world.queue("q")
        consumer = Taker(queue)
        world.push(queue, "a")
        set_policy(world, "p", ".*", delivery_limit=0)
        entry = consumer.taken[0]
        queue.requeue(entry)
        world.run()
        assert queue.ready_count == queue.unacked == 0

    def test_retention_of_a_stream(self, world: World) -> None:
        stream = world.declare("s", durable=True, queue_type="stream")
        world.push(stream, "a", persistent=True)
        world.run()
        world.sleep(100_000)
        world.push(stream, "b", persistent=True)
        world.run()
        assert stream.ready_count == 2
        set_policy(world, "p", ".*", max_age="60s")
        assert stream.ready_count == 1
        world.sleep(60_000)
        assert stream.ready_count == 0

    def test_alternate_exchange(self, world: World) -> None:
        world.queue("caught")
        exchange = world.vhost.declare_exchange("x", "direct")
        own = world.vhost.declare_exchange("own", "direct", arguments={"alternate-exchange": "mine"})
        world.vhost.bind(world.queue("caught"), "amq.fanout", "", {})
        assert world.route("x", "k") == []
        set_policy(world, "p", ".*", alternate_exchange="amq.fanout", apply_to="exchanges")
        assert world.route("x", "k") == ["caught"]
        assert (exchange.alternate, own.alternate) == ("amq.fanout", "mine")
        later = world.vhost.declare_exchange("y", "direct")
        assert later.alternate == "amq.fanout"
        delete_policy(world, "p")
        assert world.route("x", "k") == []

    def test_many_queues_in_steps(self, world: World) -> None:
        for number in range(3000):
            world.queue(f"q{number}")
        world.run()
        policies = world.vhost.policies
        done: list[bool] = []
        policies.set(policies.user, "p", ".*", {"max-length": 1}, done=lambda: done.append(True))
        assert not done and world.vhost.queues["q0"].policy is not None
        assert world.vhost.queues["q2999"].policy is None
        assert world.queue("made meanwhile").policy is not None
        world.vhost.remove_queue(world.vhost.queues["q2000"])
        world.run()
        assert done == [True]
        assert all(queue.settings.max_length == 1 for queue in world.vhost.queues.values())


class TestValidation:
    @pytest.mark.parametrize(
        ("definition", "says"),
        [
            ({}, "policy 'p' has an empty definition"),
            ({"max-lenght": 1}, "policy 'p': key 'max-lenght' is unknown; expected one of message-ttl, expires"),
            ({"max-length": -1}, "invalid key 'max-length': received '-1', expected a whole number from 0"),
            ({"max-length": "1"}, "invalid key 'max-length': received '1' .string., expected a whole number"),
            ({"max-length": True}, "invalid key 'max-length': received 'true'"),
            ({"expires": 0}, "invalid key 'expires'"),
            ({"overflow": "drop"}, "invalid key 'overflow': received 'drop', expected one of drop-head, "),
            ({"max-age": "soon"}, "invalid key 'max-age'"),
            ({"ha-params": [1 << 70]}, "policy 'p': the definition has a value that cannot be stored"),
        ],
    )
    def test_definitions(self, world: World, definition: dict[str, Any], says: str) -> None:
        policies = world.vhost.policies
        with pytest.raises(PreconditionFailed, match=says):
            policies.set(policies.user, "p", ".*", definition)
        assert not policies.user.by_name and not world.held_log.metadata.keys() & {(metadata.POLICY, '["/", "p"]')}

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"pattern": "(?=a)"}, r"policy 'p': pattern '\(\?=a\)' uses a lookahead '\(\?=', which RE2 does not support"),
            ({"pattern": "("}, r"policy 'p': pattern '\(' is not a valid RE2 regular expression"),
            ({"apply_to": "queue"}, "apply-to is 'queue'; expected one of all, queues, "),
            ({"name": ""}, "the name of the policy is empty"),
            ({"priority": 1 << 40}, "priority is 1099511627776; expected -2147483648 to"),
        ],
    )
    def test_other_fields(self, world: World, fields: dict[str, Any], says: str) -> None:
        with pytest.raises(PreconditionFailed, match=says):
            set_policy(world, **{"name": "p", "pattern": ".*", "max_length": 1, **fields})

    def test_operator_policies_have_fewer_keys(self, world: World) -> None:
        with pytest.raises(PreconditionFailed, match="key 'dead-letter-exchange' is not allowed in operator policies"):
            set_policy(world, "o", ".*", operator=True, dead_letter_exchange="x")

    def test_a_missing_policy(self, world: World) -> None:
        with pytest.raises(NotFound, match="no policy 'p' in vhost '/'"):
            delete_policy(world, "p")
        with pytest.raises(NotFound, match="no operator policy 'p' in vhost '/'"):
            delete_policy(world, "p", operator=True)

    def test_every_key_has_a_consistent_declaration(self) -> None:
        assert all(name == key.name == key.argument.name and not key.argument.needs for name, key in KEYS.items())

    def test_set_reports_whether_the_policy_is_new(self, world: World) -> None:
        assert set_policy(world, "p", ".*", max_length=1)
        assert not set_policy(world, "p", ".*", max_length=2)


def restarted(world: World) -> World:
    world.held_log.release_all()
    log, recovery = world.held_log.recovery()
    return World(log=log, recovery=recovery)


class TestRestart:
    def test_policies_and_their_effect(self, world: World) -> None:
        world.queue("q", durable=True)
        set_policy(world, "p", "^q", max_length=2, message_ttl=9000, priority=3, apply_to="queues")
        set_policy(world, "o", "^q", operator=True, max_length=1)
        later = restarted(world)
        queue = later.vhost.queues["q"]
        assert applied(queue) == ("p", "o")
        later.push(queue, *"abc", persistent=True)
        assert later.contents(queue) == ["c"]
        policy = later.vhost.policies.user.by_name["p"]
        assert (policy.pattern, policy.apply_to, policy.priority) == ("^q", "queues", 3)
        assert policy.definition == {"max-length": 2, "message-ttl": 9000}
        delete_policy(later, "p")
        delete_policy(later, "o", operator=True)
        assert applied(restarted(later).vhost.queues["q"]) == (None, None)

    def test_messages_expire_after_their_policy_was_deleted(self, world: World) -> None:
        queue = world.queue("q", durable=True)
        set_policy(world, "p", ".*", message_ttl=500)
        world.push(queue, "a", persistent=True)
        delete_policy(world, "p")
        later = restarted(world)
        assert later.vhost.queues["q"].ready_count == 1
        later.sleep(600)
        assert later.vhost.queues["q"].ready_count == 0

    def test_a_pattern_that_is_no_longer_supported_matches_nothing(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.queue("q", durable=True)
        world.broker.compile_pattern = lambda pattern: lambda name: True
        set_policy(world, "p", "(?=q)", max_length=2)
        later = restarted(world)
        assert "policy 'p' in vhost '/' matches nothing: pattern '(?=q)' uses a lookahead" in caplog.text
        assert later.vhost.queues["q"].policy is None and "p" in later.vhost.policies.user.by_name

    def test_a_deleted_vhost_leaves_no_records(self, world: World) -> None:
        set_policy(world, "p", ".*", max_length=2)
        set_policy(world, "o", ".*", operator=True, max_length=2)
        world.vhost.parameters.set("shovel", "s", {"src-uri": "amqp://"})
        world.broker.remove_vhost("/")
        world.run()
        kinds = {kind for kind, _ in world.held_log.metadata}
        assert not kinds & {metadata.POLICY, metadata.OPERATOR_POLICY, metadata.PARAMETER}


class TestParameters:
    def test_components(self, world: World) -> None:
        parameters = world.vhost.parameters
        assert parameters.set("shovel", "s", {"src-uri": ["a", "b"], "count": None})
        assert not parameters.set("shovel", "s", {"src-uri": "c"})
        assert parameters.set("operator_policy", "o", {"pattern": ".*", "definition": {"max-length": 4}})
        assert parameters.get("operator_policy", "o") == {
            "pattern": ".*",
            "definition": {"max-length": 4},
            "priority": 0,
            "apply-to": "queues",
        }
        assert world.queue("q").settings.max_length == 4
        later = restarted(world)
        assert sorted(component for component, _, _ in later.vhost.parameters.items()) == ["operator_policy", "shovel"]
        assert later.vhost.parameters.get("shovel", "s") == {"src-uri": "c"}
        later.vhost.parameters.delete("shovel", "s")
        later.vhost.parameters.delete("operator_policy", "o")
        assert later.vhost.policies.operator.by_name == {}
        with pytest.raises(NotFound, match="no parameter 's' of component 'shovel' in vhost '/'"):
            later.vhost.parameters.get("shovel", "s")

    @pytest.mark.parametrize(
        ("component", "name", "value", "says"),
        [
            ("sparrow", "x", {}, "component 'sparrow' does not exist; expected one of vhost-limits"),
            ("federation-upstream", "x", {"uri": "amqp://far"}, "component 'federation-upstream' is not supported"),
            ("federation-upstream-set", "x", [], "component 'federation-upstream-set' is not supported"),
            ("shovel", "", {}, "the name of the parameter is empty"),
            ("shovel", "x", 1, "parameter 'x' of component 'shovel' is not an object"),
            ("shovel", "x", {"a": 1 << 70}, "parameter 'x' has a value that cannot be stored"),
            ("vhost-limits", "x", {}, "parameter 'x' of component 'vhost-limits' is unknown; expected 'limits'"),
            ("vhost-limits", "limits", {"max-channels": 1}, "limit 'max-channels' is unknown"),
            ("vhost-limits", "limits", {"max-queues": "1"}, "limit 'max-queues' is not an integer"),
            ("operator_policy", "o", {"definition": {"expires": 1}}, "'pattern' and 'apply-to' must be strings"),
            ("operator_policy", "o", {"pattern": "", "definition": []}, "'definition' must be an object"),
        ],
    )
    def test_wrong_values(self, world: World, component: str, name: str, value: Any, says: str) -> None:
        with pytest.raises(PreconditionFailed, match=says):
            world.vhost.parameters.set(component, name, value)

    def test_vhost_limits(self, world: World) -> None:
        parameters = world.vhost.parameters
        parameters.set("vhost-limits", "limits", {"max-queues": 1, "max-connections": 0})
        assert world.vhost.max_connections == 0
        world.queue("a")
        with pytest.raises(PreconditionFailed, match="limit of 1 queues; the limit is set by the parameter 'limits'"):
            world.queue("b")
        world.broker.add_vhost("/", VhostSettings(max_queues=5, max_connections=7))
        assert (world.vhost.max_queues, world.vhost.max_connections) == (1, 0)
        assert (restarted(world).vhost.max_queues, world.vhost.max_queues) == (1, 1)
        parameters.set("vhost-limits", "limits", {"max-queues": -1})
        assert (world.vhost.max_queues, world.vhost.max_connections) == (5, 7)
        parameters.delete("vhost-limits", "limits")
        assert (world.vhost.max_queues, world.vhost.max_connections) == (5, 7)

    def test_global_parameters(self, world: World) -> None:
        parameters = world.broker.global_parameters
        assert parameters.set("cluster_name", "rabbit@here")
        assert not parameters.set("cluster_name", "rabbit@there")
        world.run()
        later = restarted(world).broker.global_parameters
        assert later.values == {"cluster_name": "rabbit@there"}
        later.delete("cluster_name")
        with pytest.raises(NotFound, match="no global parameter 'cluster_name'"):
            later.get("cluster_name")

    def test_global_parameters_are_limited(self, world: World) -> None:
        value = "x" * 1_000_000
        names = [f"p{number}" for number in range(17)]
        for name in names[:16]:
            world.broker.global_parameters.set(name, value)
        world.run()
        for parameters in (world.broker.global_parameters, restarted(world).broker.global_parameters):
            with pytest.raises(PreconditionFailed, match=r"'p16' makes a total of 17.* bytes; expected at most 16777216"):
                parameters.set("p16", value)
            parameters.set("p0", value)  # no more than before
            parameters.set("p0", "")
            parameters.set("p16", value)
            parameters.delete("p16")

    def test_the_number_of_global_parameters_is_limited(self, world: World) -> None:
        parameters = world.broker.global_parameters
        for number in range(10_000):
            parameters.set(str(number), None)
        with pytest.raises(PreconditionFailed, match="'new' is one too many; expected at most 10000"):
            parameters.set("new", None)
        assert not parameters.set("0", 1)
        parameters.delete("0")
        assert parameters.set("new", None)


def test_records_in_the_log_are_versioned(world: World) -> None:
    set_policy(world, "p", ".*", max_length=1)
    world.vhost.parameters.set("shovel", "s", {})
    world.run()
    log = world.held_log
    assert isinstance(log, HeldLog)
    stored = [value for (kind, _), value in log.metadata.items() if kind in (metadata.POLICY, metadata.PARAMETER)]
    assert [metadata.unpack(value)["version"] for value in stored] == [1, 1]
