"""Alerts: rules over queues and the node, evaluated every few seconds on the copies of the broker's objects.

A rule is a global parameter of the broker, so that it survives restarts and is part of the definitions. Alerts that are
raised or cleared are events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from leveret.management.http.cache import Cache
from leveret.management.http.control import Control, Row
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable
from leveret.management.http.events import Events
from leveret.management.http.mail import Mailer
from leveret.management.http.objects import CachedQueue
from leveret.management.http.places import user_of
from leveret.management.http.webhooks import Webhooks
from leveret.security.patterns import Pattern

logger = logging.getLogger("leveret.http")

# The prefix of the names of global parameters with rules.
PREFIX: Final = "alert."
# Seconds between two evaluations.
INTERVAL: Final = 3.0
MAX_RULES: Final = 100
# Maximum number of subjects for which the condition of a rule holds. Further ones are ignored: users, and the rules of
# each, have equal shares of what the others leave.
MAX_ALERTS: Final = 500
# Maximum number of mail addresses of a rule.
MAX_RECIPIENTS: Final = 10
# Queues to examine before other requests are served.
_STEP: Final = 100

_Key = TypeVar("_Key")

Kind: TypeAlias = Literal["depth", "growth", "no_consumers", "no_acks", "ready_age", "unacked_age", "memory", "disk"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule. An alert is raised for each subject whose measure exceeds the threshold for some time.

    Attributes:
        kind: `depth`: messages of a queue. `growth`: increase of messages per second. `no_consumers`: messages of a queue
            without consumers. `no_acks`: seconds since the last acknowledgement of a queue with unacked messages.
            `ready_age`, `unacked_age`: age of the oldest ready or unacked message of a queue in seconds. `memory`, `disk`:
            the alarm of the node.
        vhost: The vhost of the queues; None for all.
        pattern: A regular expression over the names of queues; "" for all.
        threshold: The measure that must be exceeded. Alarms have none.
        seconds: How long it must be exceeded.
        silenced_until: Until this time, in milliseconds of Unix time, the rule raises no alerts.
        webhook: The URL that alerts are sent to; "" for none.
        mail: The addresses that get mails of alerts.
    """

    kind: Kind
    vhost: Annotated[str, Meta(max_length=255)] | None = None
    pattern: Annotated[str, Meta(max_length=1000)] = ""
    threshold: Annotated[float, Meta(ge=0, le=1e15)] = 0
    seconds: Annotated[int, Meta(ge=0, le=86_400)] = 0
    silenced_until: Annotated[int, Meta(ge=0, le=10**14)] = 0
    webhook: Annotated[str, Meta(max_length=2000)] = ""
    mail: Annotated[tuple[Annotated[str, Meta(max_length=254)], ...], Meta(max_length=MAX_RECIPIENTS)] = ()

    def compiled(self) -> Pattern | None:
        """Return the pattern; None for all names. Raises `ValueError`."""
        return Pattern(self.pattern) if self.pattern else None


class Subject(NamedTuple):
    """The subject of an alert: the name of the rule, and a queue, or the node if the names are empty."""

    rule: str
    vhost: str
    queue: str


class Alert(msgspec.Struct, kw_only=True):
    """An alert that is raised. `since` is the time in milliseconds at which the threshold was first exceeded."""

    rule: str
    kind: Kind
    vhost: str
    queue: str
    value: float
    threshold: float
    since: int


class _Measures(NamedTuple):
    """The measures of a queue, and when it was last acknowledged or had no unacked messages."""

    at: float
    depth: int
    growth: float
    unattended: int
    acked: int
    acked_at: float
    ready_age: int
    unacked_age: int

    def of(self, kind: Kind) -> float:
        if kind == "depth":
            return self.depth
        if kind == "growth":
            return self.growth
        if kind == "ready_age":
            return self.ready_age
        if kind == "unacked_age":
            return self.unacked_age
        return self.unattended if kind == "no_consumers" else self.at - self.acked_at


def _measure(queue: CachedQueue, now: float, before: _Measures | None) -> _Measures:
    item = queue.item
    depth = item["ready"] + item["delayed"] + item["leased"] + item["unacked"]
    growth = 0.0 if before is None else (depth - before.depth) / max(now - before.at, 0.001)
    idle = before is not None and item["unacked"] and item["acked"] == before.acked
    acked_at = before.acked_at if before is not None and idle else now
    unattended = 0 if item["consumers"] else depth
    ages = queue.oldest_ready_age(now) or 0, queue.oldest_unacked_age(now) or 0
    return _Measures(now, depth, growth, unattended, item["acked"], acked_at, *ages)


def read_rules(parameters: list[Row]) -> dict[str, Rule]:
    """Return the rules in global parameters by their names. Others, and those that are invalid, are ignored."""
    rules: dict[str, Rule] = {}
    for item in parameters:
        if not item["name"].startswith(PREFIX):
            continue
        try:
            rule = msgspec.convert(item["value"], Rule)
            rule.compiled()
        except ValueError as error:
            logger.warning("global parameter '%s' is no rule of an alert: %s", item["name"], error)
            continue
        if len(rules) < MAX_RULES:
            rules[item["name"].removeprefix(PREFIX)] = rule
    return rules


class Alerts:
    """The alerts of one broker.

    Args:
        control: The calls of the broker.
        cache: The copies of its objects.
        events: Receives alerts that are raised or cleared.
        webhooks: Receive those of rules with a webhook.
        mailer: Sends those of rules with mail addresses.

    Attributes:
        raised: The alerts that are raised.
    """

    def __init__(self, control: Control, cache: Cache, events: Events, webhooks: Webhooks, mailer: Mailer) -> None:
        self._control = control
        self._cache = cache
        self._events = events
        self._webhooks = webhooks
        self._mailer = mailer
        # The rules of alerts as they were raised: a rule may change before its alerts are cleared.
        self._rule_of: dict[Subject, Rule] = {}
        self._measures: dict[int, _Measures] = {}
        # When the threshold of each subject was first exceeded.
        self._since: dict[Subject, float] = {}
        self.raised: dict[Subject, Alert] = {}

    async def rules(self) -> dict[str, Rule]:
        """Return the rules by their names. Raises `BrokerUnavailable`."""
        return read_rules(await self._stored())

    async def _stored(self) -> list[Row]:
        found: list[Row] = await self._control.call("global_parameters.list", {"prefix": PREFIX})
        return found

    async def run(self) -> None:
        """Evaluate the rules until the task is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                stored = await self._stored()
                users = {item["name"].removeprefix(PREFIX): user_of(item) for item in stored}
                await self.evaluate(read_rules(stored), time.time(), users)
            except (BrokerUnavailable, BrokerRefused) as error:
                logger.debug("no alerts: %s", error)

    async def evaluate(self, rules: dict[str, Rule], now: float, users: Mapping[str, str | None] | None = None) -> None:
        """Evaluate rules, and publish an event for each alert that is raised or cleared.

        Args:
            rules: The rules by their names.
            now: The time.
            users: The users who have added the rules. Rules of no user count as those of one user.
        """
        of_rule: dict[str, dict[Subject, float]] = {name: {} for name in rules}
        for subject in self._alarms(rules):
            of_rule[subject.rule][subject] = 1.0
        of_queues = [(name, rule, rule.compiled()) for name, rule in rules.items() if rule.kind not in ("memory", "disk")]
        measured: dict[int, _Measures] = {}
        queues = list(self._cache.queues.items()) if of_queues else []
        for at in range(0, len(queues), _STEP):
            for number, queue in queues[at : at + _STEP]:
                if queue.item["type"] == "stream":
                    continue
                measures = measured[number] = _measure(queue, now, self._measures.get(number))
                for name, rule, pattern in of_queues:
                    value = measures.of(rule.kind)
                    subjects = of_rule[name]
                    if value > rule.threshold and len(subjects) < MAX_ALERTS and _applies(rule, pattern, queue.item):
                        subjects[Subject(name, queue.item["vhost"], queue.item["name"])] = value
            await asyncio.sleep(0)
        found = _limited(of_rule, users or {})
        self._measures = measured
        self._since = {subject: self._since.get(subject, now) for subject in found}
        self._set(
            {
                subject: _alert(subject, rules[subject.rule], value, self._since[subject])
                for subject, value in found.items()
                if now - self._since[subject] >= rules[subject.rule].seconds
                and 1000 * now >= rules[subject.rule].silenced_until
            },
            rules,
        )

    def _alarms(self, rules: dict[str, Rule]) -> Iterator[Subject]:
        alarm = self._cache.process.get("alarm", "")
        for name, rule in rules.items():
            if rule.kind in ("memory", "disk") and rule.kind in alarm:
                yield Subject(name, "", "")

    def _set(self, raised: dict[Subject, Alert], rules: dict[str, Rule]) -> None:
        before, self.raised = self.raised, raised
        for subject in before.keys() - raised.keys():
            self._publish("cleared", before[subject], self._rule_of.pop(subject))
        for subject in raised.keys() - before.keys():
            self._rule_of[subject] = rules[subject.rule]
            self._publish("raised", raised[subject], rules[subject.rule])

    def _publish(self, action: str, alert: Alert, rule: Rule) -> None:
        data: Row = msgspec.structs.asdict(alert)
        self._events.publish("alert", action, data, alert.vhost)
        if rule.webhook:
            self._webhooks.put(rule.webhook, {"action": action, **data})
        if rule.mail:
            self._mailer.put(rule.mail, action, data)


def _limited(of_rule: dict[str, dict[Subject, float]], users: Mapping[str, str | None]) -> dict[Subject, float]:
    """Return at most MAX_ALERTS subjects with their values."""
    of_user: dict[str | None, Counter[str]] = {}
    for name, subjects in of_rule.items():
        of_user.setdefault(users.get(name), Counter())[name] = len(subjects)
    found: dict[Subject, float] = {}
    for user, total in _shares({user: counts.total() for user, counts in of_user.items()}, MAX_ALERTS).items():
        for name, count in _shares(of_user[user], total).items():
            found.update(islice(of_rule[name].items(), count))
    return found


def _shares(wanted: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """Distribute a total: who wants less than an equal share leaves the rest to the others."""
    shares: dict[_Key, int] = {}
    for left, key in zip(range(len(wanted), 0, -1), sorted(wanted, key=wanted.__getitem__), strict=True):
        shares[key] = min(wanted[key], total // left)
        total -= shares[key]
    return shares


def _applies(rule: Rule, pattern: Pattern | None, item: Row) -> bool:
    return rule.vhost in (None, item["vhost"]) and (pattern is None or pattern.matches(item["name"]))


def _alert(subject: Subject, rule: Rule, value: float, since: float) -> Alert:
    return Alert(
        rule=subject.rule,
        kind=rule.kind,
        vhost=subject.vhost,
        queue=subject.queue,
        value=value,
        threshold=rule.threshold,
        since=int(1000 * since),
    )
