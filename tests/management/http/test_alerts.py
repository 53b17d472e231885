"""Rules of alerts, and the alerts that they raise."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leveret.config import MailConfig
from leveret.management.http.alerts import MAX_ALERTS, MAX_RULES, Alerts, Rule, read_rules
from leveret.management.http.cache import Cache
from leveret.management.http.control import Control, Row
from leveret.management.http.events import Events
from leveret.management.http.identity import Identity
from leveret.management.http.mail import Mailer
from leveret.management.http.objects import CachedQueue, VhostTotals
from leveret.management.http.prometheus_rules import describe
from leveret.management.http.webhooks import Webhooks
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import promtool
from tests.management.http.test_events import subscribe
from tests.management.http.test_history import queue_item
from tests.management.http.test_process import make
from tests.support.polling import wait_until

ADMIN = Identity("admin", frozenset({"administrator"}), frozenset())


class Broker:
    """The copies of a broker's objects, and the alerts over them."""

    def __init__(self) -> None:
        self.events = Events()
        self.cache = Cache(Control(Path("unused")))
        self.alerts = Alerts(Control(Path("unused")), self.cache, self.events, Webhooks(()), Mailer(MailConfig(), "node"))
        self.now = 1000.0
        self.subscriber = self.events.subscribe(ADMIN, (), "")

    def queue(self, name: str, vhost: str = "/", kind: str = "classic") -> Row:
        item: Row = queue_item(name) | {"vhost": vhost, "type": kind}
        number = len(self.cache.queues)
        self.cache.queues[number] = CachedQueue(number, item, VhostTotals())
        return item

    def after(self, seconds: float, **rules: Rule) -> list[str]:
        """Evaluate rules after some seconds, and return the names of raised rules with their queues."""
        self.now += seconds
        asyncio.run(self.alerts.evaluate(rules, self.now))
        return sorted(f"{subject.rule} {subject.vhost}{subject.queue}" for subject in self.alerts.raised)

    def published(self) -> list[str]:
        """Return the names of new events."""
        text = asyncio.run(self.subscriber.next()).decode()
        return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_the_depth_of_queues_whose_names_match(broker: Broker) -> None:
    rule = Rule(kind="depth", pattern="^orders", vhost="/", threshold=10)
    orders, other, elsewhere = broker.queue("orders"), broker.queue("other"), broker.queue("orders", "far")
    for item in (orders, other, elsewhere):
        item["ready"], item["unacked"] = 6, 4
    assert broker.after(1, deep=rule) == []
    orders["ready"] = elsewhere["ready"] = other["ready"] = 7
    assert broker.after(1, deep=rule) == ["deep /orders"]
    [alert] = broker.alerts.raised.values()
    assert (alert.value, alert.threshold, alert.since) == (11, 10, 1_002_000)
    assert broker.published() == ["hello", "alert.raised"]
    assert broker.after(1, deep=rule) == ["deep /orders"]
    assert broker.after(1) == []
    assert broker.published() == ["alert.cleared"]


def test_a_condition_that_must_hold_for_some_time(broker: Broker) -> None:
    rule = Rule(kind="depth", threshold=10, seconds=5)
    item = broker.queue("orders")
    item["ready"] = 11
    assert broker.after(0, deep=rule) == []
    assert broker.after(4, deep=rule) == []
    item["ready"] = 0
    assert broker.after(1, deep=rule) == []
    item["ready"] = 11
    assert broker.after(1, deep=rule) == []
    assert broker.after(5, deep=rule) == ["deep /orders"]


def test_growth_per_second(broker: Broker) -> None:
    rule = Rule(kind="growth", threshold=5)
    item = broker.queue("orders")
    item["ready"] = 1000
    assert broker.after(0, fast=rule) == []  # nothing to compare with
    item["ready"] = 1010
    assert broker.after(2, fast=rule) == []
    item["ready"] = 1022
    assert broker.after(2, fast=rule) == ["fast /orders"]
    item["ready"] = 900
    assert broker.after(2, fast=rule) == []


def test_a_queue_without_consumers(broker: Broker) -> None:
    item = broker.queue("orders")
    assert broker.after(1, alone=Rule(kind="no_consumers")) == []
    item["ready"] = 1
    assert broker.after(1, alone=Rule(kind="no_consumers")) == ["alone /orders"]
    item["consumers"] = 1
    assert broker.after(1, alone=Rule(kind="no_consumers")) == []


def test_unacked_messages_that_no_consumer_acknowledges(broker: Broker) -> None:
    rule = Rule(kind="no_acks", threshold=30)
    item = broker.queue("orders")
    item["unacked"] = 3
    assert broker.after(0, stuck=rule) == []
    assert broker.after(20, stuck=rule) == []
    item["acked"] += 1
    assert broker.after(20, stuck=rule) == []
    assert broker.after(31, stuck=rule) == ["stuck /orders"]
    item["unacked"] = 0
    assert broker.after(1, stuck=rule) == []


def test_a_silenced_rule_raises_no_alerts_until_a_time(broker: Broker) -> None:
    item = broker.queue("orders")
    item["ready"] = 11
    assert broker.after(1, deep=Rule(kind="depth", threshold=10)) == ["deep /orders"]
    silenced = Rule(kind="depth", threshold=10, silenced_until=1_010_000)
    assert broker.after(1, deep=silenced) == []
    assert broker.published() == ["hello", "alert.raised", "alert.cleared"]
    assert broker.after(7, deep=silenced) == []
    assert broker.after(1, deep=silenced) == ["deep /orders"]
    [alert] = broker.alerts.raised.values()
    assert alert.since == 1_001_000


def test_rules_for_prometheus(tmp_path: Path) -> None:
    rules = {
        "deep": Rule(kind="depth", vhost='a"b', pattern=r"^orders\.\d+$", threshold=1e9, seconds=60),
        "grows {{ fast }}": Rule(kind="growth", threshold=0.5),
        "alone": Rule(kind="no_consumers", pattern="x|y"),
        "stuck: '1'\n": Rule(kind="no_acks", threshold=300, vhost="/"),
        "old": Rule(kind="unacked_age", threshold=60, pattern="^orders"),
        "late": Rule(kind="ready_age", threshold=60),
        "memory": Rule(kind="memory"),
        "disk": Rule(kind="disk", seconds=5),
    }
    path = tmp_path / "rules.yml"
    path.write_text(describe(rules), "utf-8")
    assert "SUCCESS: 8 rules found" in promtool("check", "rules", str(path))
    path.write_text(describe({}), "utf-8")
    assert "SUCCESS: 0 rules found" in promtool("check", "rules", str(path))
    text = describe(rules)
    assert (
        r"rabbitmq_detailed_queue_messages{vhost=\"a\\\"b\",queue=~\".*(?:^orders\\\\.\\\\d+$).*\"} > 1000000000.0" in text
    )


def test_the_age_of_the_oldest_unacked_message(broker: Broker) -> None:
    rule = Rule(kind="unacked_age", threshold=30)
    item = broker.queue("orders")
    queue = broker.cache.queues[0]
    item["unacked"] = 2
    assert broker.after(1, old=rule) == []
    queue.unacked_since = 990_000
    assert broker.after(19, old=rule) == []
    assert broker.after(1, old=rule) == ["old /orders"]
    [alert] = broker.alerts.raised.values()
    assert alert.value == 31
    item["unacked"] = 0
    assert broker.after(1, old=rule) == []


def test_the_age_of_the_oldest_ready_message(broker: Broker) -> None:
    rule = Rule(kind="ready_age", threshold=30)
    broker.queue("orders")
    queue = broker.cache.queues[0]
    assert broker.after(1, old=rule) == []
    queue.ready_since = 990_000
    assert broker.after(19, old=rule) == []
    assert broker.after(1, old=rule) == ["old /orders"]
    [alert] = broker.alerts.raised.values()
    assert alert.value == 31
    queue.ready_since = 0
    assert broker.after(1, old=rule) == []


def test_alarms_of_the_node(broker: Broker) -> None:
    rules = {"m": Rule(kind="memory"), "d": Rule(kind="disk")}
    assert broker.after(1, **rules) == []
    broker.cache.process["alarm"] = "memory is above the limit"
    assert broker.after(1, **rules) == ["m "]


def test_streams_raise_no_alerts(broker: Broker) -> None:
    broker.queue("events", kind="stream")["ready"] = 1000
    assert broker.after(1, deep=Rule(kind="depth", threshold=10)) == []


def test_the_number_of_alerts_is_limited(broker: Broker) -> None:
    for number in range(MAX_ALERTS + 5):
        broker.queue(f"q{number}")["ready"] = 1
    assert len(broker.after(1, deep=Rule(kind="depth"))) == MAX_ALERTS


def test_each_user_and_rule_has_a_share_of_the_alerts(broker: Broker) -> None:
    for number in range(MAX_ALERTS + 5):
        broker.queue(f"q{number}")["ready"] = 1
    broker.queue("late")["ready"] = 100
    greedy = {f"greedy{number}": Rule(kind="depth") for number in range(4)}
    rules = {**greedy, "kept": Rule(kind="depth", pattern="^late$"), "wide": Rule(kind="depth")}
    users = dict.fromkeys(greedy, "eve") | {"kept": "ann"}
    asyncio.run(broker.alerts.evaluate(rules, 1000.0, users))
    counts = Counter(subject.rule for subject in broker.alerts.raised)
    assert sum(counts.values()) == MAX_ALERTS
    assert counts["kept"] == 1
    assert counts["wide"] == 249  # of no user
    assert sorted(counts[name] for name in greedy) == [62, 62, 63, 63]


def test_parameters_that_are_no_rules_are_ignored() -> None:
    values: list[tuple[str, Any]] = [
        ("alert.good", {"kind": "depth", "threshold": 5}),
        ("alert.unknown", {"kind": "phase of the moon"}),
        ("alert.text", "depth"),
        ("alert.pattern", {"kind": "depth", "pattern": "("}),
        ("cluster_name", "x"),
    ]
    rules = read_rules([{"name": name, "value": value} for name, value in values])
    assert rules == {"good": Rule(kind="depth", threshold=5)}


# Over HTTP


@pytest.fixture
def queue(api: HttpBroker) -> Iterator[str]:
    assert api("PUT", "/queues/%2F/alerting", {"durable": True}).status == 201
    yield "alerting"
    api("DELETE", "/queues/%2F/alerting")


def put(api: HttpBroker, name: str, user: str = "guest", **rule: Any) -> int:
    return api("PUT", f"/leveret/alert-rules/{name}", rule, user=user).status


def test_an_alert_is_raised_and_cleared(api: HttpBroker, queue: str) -> None:
    with subscribe(api, "?kinds=alert") as stream, subscribe(api, "?kinds=alert", "monitor") as monitor:
        assert put(api, "deep", kind="depth", pattern="^alerting$", threshold=2) == 201
        assert put(api, "deep", kind="depth", pattern="^alerting$", threshold=1) == 204
        [rule] = [rule for rule in api.get("/leveret/alert-rules") if rule["name"] == "deep"]
        assert rule["threshold"] == 1 and rule["vhost"] is None
        for _ in range(2):
            api("POST", "/exchanges/%2F/amq.default/publish", {
                "routing_key": queue, "payload": "x", "payload_encoding": "string", "properties": {},
            })  # fmt: skip
        raised = stream.until("alert.raised", rule="deep")
        assert (raised["queue"], raised["value"], raised["kind"]) == (queue, 2, "depth")
        monitor.until("alert.raised", rule="deep")
        assert [(row["rule"], row["queue"]) for row in api.get("/leveret/alerts")] == [("deep", queue)]
        assert [row["queue"] for row in api.get("/leveret/alerts", "manager")] == [queue]
        assert api("DELETE", "/leveret/alert-rules/deep", user="monitor").status == 401
        assert api("DELETE", "/leveret/alert-rules/deep").status == 204
        stream.until("alert.cleared", rule="deep")
    assert api.get("/leveret/alerts") == []
    assert api("DELETE", "/leveret/alert-rules/deep").status == 404


def test_rules_that_are_refused(api: HttpBroker) -> None:
    for rule, reason in (
        ({"kind": "phase"}, "Invalid enum value 'phase'"),
        ({}, "the field 'kind' is missing"),
        ({"kind": "depth", "pattern": "("}, "regular expression"),
        ({"kind": "depth", "threshold": -1}, "threshold"),
        ({"kind": "depth", "threshold": "many"}, "threshold"),
        ({"kind": "depth", "seconds": 1e9}, "seconds"),
    ):
        reply = api("PUT", "/leveret/alert-rules/refused", rule)
        assert (reply.status, reason in reply.json["reason"]) == (400, True), reply.content
    assert put(api, "a" * 201, kind="disk") == 400
    assert put(api, "refused", "monitor", kind="disk") == 401
    assert put(api, "refused", "viewer", kind="disk") == 401
    assert api.get("/leveret/alert-rules") == []


def test_a_policymaker_sets_a_quarter_of_the_rules(api: HttpBroker) -> None:
    share = MAX_RULES // 4
    with ThreadPoolExecutor(8) as threads:
        statuses = list(
            threads.map(lambda number: put(api, f"rule-{number}", "maker", kind="disk", vhost="/"), range(share + 10))
        )
    assert sorted(statuses) == [201] * share + [400] * 10
    assert len(api.get("/leveret/alert-rules")) == share
    reply = api("PUT", "/leveret/alert-rules/more", {"kind": "disk", "vhost": "/"}, user="maker")
    assert (reply.status, f"{share} rules of alerts of user 'maker' exist" in reply.json["reason"]) == (400, True)
    kept = api.get("/leveret/alert-rules")[0]["name"]
    assert put(api, kept, "maker", kind="memory", vhost="/") == 204
    # An object keeps the user who has added it.
    assert put(api, kept, "operator", kind="disk", vhost="/") == 204
    assert put(api, "more", "maker", kind="disk", vhost="/") == 400
    assert put(api, "other", "operator", kind="disk", vhost="/") == 201
    for number in range(MAX_RULES - share - 1):
        assert put(api, f"admin-{number}", kind="disk") == 201
    reply = api("PUT", "/leveret/alert-rules/more", {"kind": "disk"})
    assert (reply.status, f"{MAX_RULES} rules" in reply.json["reason"]) == (400, True)
    for rule in api.get("/leveret/alert-rules"):
        assert api("DELETE", f"/leveret/alert-rules/{rule['name']}").status == 204


@pytest.mark.slow
def test_rules_survive_a_restart_and_are_definitions(tmp_path: Path) -> None:
    with make(tmp_path).start() as process:
        api = HttpBroker(process)
        assert put(api, "kept", kind="no_consumers", seconds=1) == 201
        names = [item["name"] for item in api.get("/definitions")["global_parameters"]]
        assert "alert.kept" in names
        api("PUT", "/queues/%2F/alone", {"durable": True})
        api("POST", "/exchanges/%2F/amq.default/publish", {
            "routing_key": "alone", "payload": "x", "payload_encoding": "string", "properties": {"delivery_mode": 2},
        })  # fmt: skip
        wait_until(lambda: api.get("/leveret/alerts"), "the alert")
    with make(tmp_path).start() as process:
        api = HttpBroker(process)
        assert [rule["name"] for rule in api.get("/leveret/alert-rules")] == ["kept"]
        wait_until(lambda: [row["queue"] for row in api.get("/leveret/alerts")] == ["alone"], "the alert")
