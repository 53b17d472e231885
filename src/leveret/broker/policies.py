"""Policies and operator policies: settings of queues and exchanges by name patterns, which operators change at any time.

At most one policy and one operator policy apply to an object: of those that match, the one with the highest priority. The
settings of a queue are its arguments, merged with both (`merge_settings`, `merge_definitions`). As in RabbitMQ, a policy
with a key that a queue type does not support does not match queues of that type.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.broker import metadata
from leveret.broker.arguments import (
    ANYTHING,
    INTERVAL,
    SHARED_QUEUE_ARGUMENTS,
    TEN_YEARS,
    TEXT,
    WHOLE,
    Argument,
    QueueSettings,
    declared_by_name,
)
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.exchanges.base import Exchange, text_argument
from leveret.broker.exchanges.control import CONTROL
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.registry import QUEUE_ARGUMENTS, TYPES
from leveret.broker.values import interval_of

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.metadata import Record
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

# Compiles a pattern to a function that searches it in a name. Raises ValueError, with the reason after "pattern '...'".
Matcher: TypeAlias = Callable[[str], bool]
PatternCompiler: TypeAlias = Callable[[str], Matcher]
Definition: TypeAlias = dict[str, Any]

ALL: Final = "all"
QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
TARGETS: Final = (ALL, QUEUES, "classic_queues", "quorum_queues", "streams", EXCHANGES)
# Names of the queues of direct reply-to, which no policy matches.
REPLY_QUEUES: Final = "amq.rabbitmq.reply-to."
# Prefix of the keys of RabbitMQ's federation.
_FEDERATION: Final = "federation-upstream"
# Version of the records in the log.
VERSION: Final = 1
# Units of work to visit an object, to match its name with one policy, and to apply changed settings to it.
VISIT_WORK: Final = 2
MATCH_WORK: Final = 4
APPLY_WORK: Final = 10
MIN_PRIORITY: Final = -(1 << 31)
MAX_PRIORITY: Final = (1 << 31) - 1


class PolicyKey:
    """A key of policy definitions.

    argument      the declaration of its values
    setting       the argument of a queue or an exchange with the same meaning, "" for a key without effect
    takes_smaller  the smaller of two values counts; otherwise that of the argument or the operator policy
    unlimited     the value that stands for no limit; None if there is none
    operator      operator policies may contain it
    """

    def __init__(
        self,
        argument: Argument,
        setting: str = "",
        *,
        takes_smaller: bool = False,
        unlimited: int | None = None,
        operator: bool = False,
    ) -> None:
        self.argument = argument
        self.name = argument.name
        self.setting = setting
        self.takes_smaller = takes_smaller
        self.unlimited = unlimited
        self.operator = operator

    def merge(self, preferred: Any, other: Any) -> Any:
        """Return the value that counts; `preferred` is that of the argument or the operator policy."""
        if not self.takes_smaller or other == self.unlimited:
            return preferred
        if preferred == self.unlimited:
            return other
        if self.argument.kind == INTERVAL:
            return other if (interval_of(other) or 0) < (interval_of(preferred) or 0) else preferred
        return min(preferred, other)


def _of_argument(
    name: str, *, takes_smaller: bool = False, unlimited: int | None = None, operator: bool = False
) -> PolicyKey:
    """Return the key with the values of the queue argument `x-NAME`."""
    setting = f"x-{name}"
    return PolicyKey(
        QUEUE_ARGUMENTS[setting].renamed(name), setting, takes_smaller=takes_smaller, unlimited=unlimited, operator=operator
    )


def _without_effect(argument: Argument, *, operator: bool = False) -> PolicyKey:
    return PolicyKey(argument, operator=operator)


_SHARED: Final = declared_by_name(*SHARED_QUEUE_ARGUMENTS)

KEYS: Final = {
    key.name: key
    for key in (
        _of_argument("message-ttl", takes_smaller=True, operator=True),
        _of_argument("expires", takes_smaller=True, operator=True),
        _of_argument("max-length", takes_smaller=True, operator=True),
        _of_argument("max-length-bytes", takes_smaller=True, operator=True),
        _of_argument("overflow", operator=True),
        _of_argument("dead-letter-exchange"),
        _of_argument("dead-letter-routing-key"),
        _of_argument("dead-letter-strategy"),
        _of_argument("delivery-limit", takes_smaller=True, unlimited=-1, operator=True),
        _of_argument("retry-delays"),
        _of_argument("consumer-timeout", takes_smaller=True, unlimited=0),
        _of_argument("max-age", takes_smaller=True),
        _of_argument("stream-max-segment-size-bytes"),
        PolicyKey(Argument("alternate-exchange", TEXT), "alternate-exchange"),
        # RabbitMQ's keys without a counterpart: accepted for compatibility, without effect.
        _without_effect(_SHARED["x-queue-mode"].renamed("queue-mode")),
        _without_effect(_SHARED["x-queue-version"].renamed("queue-version"), operator=True),
        _without_effect(_SHARED["x-queue-leader-locator"].renamed("queue-leader-locator")),
        _without_effect(_SHARED["x-queue-master-locator"].renamed("queue-master-locator")),
        _without_effect(_SHARED["x-stream-filter-size-bytes"].renamed("stream-filter-size-bytes")),
        _without_effect(_SHARED["x-max-in-memory-length"].renamed("max-in-memory-length"), operator=True),
        _without_effect(_SHARED["x-max-in-memory-bytes"].renamed("max-in-memory-bytes"), operator=True),
        _without_effect(_SHARED["x-initial-cluster-size"].renamed("initial-cluster-size")),
        _without_effect(Argument("target-group-size", WHOLE, 1), operator=True),
        _without_effect(Argument("consumer-disconnected-timeout", WHOLE, 0, TEN_YEARS, "milliseconds")),
        _without_effect(Argument("delayed-retry-type", TEXT)),
        _without_effect(Argument("delayed-retry-min", WHOLE, 0, TEN_YEARS, "milliseconds")),
        _without_effect(Argument("delayed-retry-max", WHOLE, 0, TEN_YEARS, "milliseconds")),
        _without_effect(Argument("ha-mode", TEXT, choices=("all", "exactly", "nodes")), operator=True),
        _without_effect(Argument("ha-params", ANYTHING), operator=True),
        _without_effect(Argument("ha-sync-mode", TEXT, choices=("manual", "automatic")), operator=True),
        _without_effect(Argument("ha-sync-batch-size", WHOLE, 1)),
        _without_effect(Argument("ha-promote-on-shutdown", TEXT, choices=("always", "when-synced"))),
        _without_effect(Argument("ha-promote-on-failure", TEXT, choices=("always", "when-synced"))),
    )
}
OPERATOR_KEYS: Final = {name: key for name, key in KEYS.items() if key.operator}


class Policy:
    """A policy or an operator policy. It never changes: a new one replaces it.

    matches      the compiled pattern
    unsupported  names of the queue types that do not support one of its keys
    """

    def __init__(
        self, name: str, pattern: str, apply_to: str, definition: Definition, priority: int, matches: Matcher
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.apply_to = apply_to
        self.definition = definition
        self.priority = priority
        self.matches = matches
        self.unsupported = frozenset(
            queue_type.name for queue_type in TYPES.values() if any(_is_refused(queue_type.name, key) for key in definition)
        )

    def applies_to_queue(self, queue: Queue) -> bool:
        name = queue.settings.type
        if self.apply_to not in (ALL, QUEUES, TYPES[name].apply_to) or name in self.unsupported:
            return False
        return self.matches(queue.name)

    def applies_to_exchange(self, exchange: Exchange) -> bool:
        return self.apply_to in (ALL, EXCHANGES) and self.matches(exchange.name)


def _is_refused(type_name: str, key: str) -> bool:
    """Return whether a queue type does not have the argument with the meaning of a key."""
    setting = KEYS[key].setting
    return setting in TYPES[type_name].refused or any(
        argument.name == setting for other in TYPES.values() if other.name != type_name for argument in other.own
    )


class PolicyTable:
    """The policies, or the operator policies, of a vhost.

    kind     their kind in the metadata
    noun     what one is called in errors
    keys     the keys that definitions may have
    ordered  the policies by descending priority, then by name
    """

    def __init__(self, kind: str, noun: str, keys: dict[str, PolicyKey]) -> None:
        self.kind = kind
        self.noun = noun
        self.keys = keys
        self.by_name: dict[str, Policy] = {}
        self.ordered: list[Policy] = []

    def put(self, policy: Policy) -> None:
        self.by_name[policy.name] = policy
        self._sort()

    def remove(self, name: str) -> None:
        del self.by_name[name]
        self._sort()

    def _sort(self) -> None:
        self.ordered = sorted(self.by_name.values(), key=lambda policy: (-policy.priority, policy.name))

    def for_queue(self, queue: Queue) -> Policy | None:
        for policy in self.ordered:
            if policy.applies_to_queue(queue):
                return policy
        return None

    def for_exchange(self, exchange: Exchange) -> Policy | None:
        for policy in self.ordered:
            if policy.applies_to_exchange(exchange):
                return policy
        return None

    def make(self, broker: Broker, name: str, pattern: str, definition: Definition, apply_to: str, priority: int) -> Policy:
        """Return a new policy, without adding it.

        Raises PreconditionFailed if a value is invalid, a key is unknown, or RE2 does not support the pattern.
        """
        broker.check_name(self.noun, name)
        if not name:
            raise PreconditionFailed(f"the name of the {self.noun} is empty; expected 1 to 255 bytes")
        if apply_to not in TARGETS:
            raise PreconditionFailed(
                f"{self.noun} '{name}': apply-to is '{apply_to[:60]}'; expected one of {', '.join(TARGETS)}"
            )
        if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
            raise PreconditionFailed(
                f"{self.noun} '{name}': priority is {priority}; expected {MIN_PRIORITY} to {MAX_PRIORITY}"
            )
        checked = self.check(name, definition)
        try:
            matches = broker.compile_pattern(pattern)
        except ValueError as error:
            raise PreconditionFailed(f"{self.noun} '{name}': pattern '{pattern[:60]}' {error}") from None
        return Policy(name, pattern, apply_to, checked, priority, matches)

    def check(self, name: str, definition: Definition) -> Definition:
        """Validate a definition. Raises PreconditionFailed."""
        what = f"{self.noun} '{name}'"
        if not definition:
            raise PreconditionFailed(f"{what} has an empty definition; expected at least one of {', '.join(self.keys)}")
        checked: Definition = {}
        for key, value in definition.items():
            known = self.keys.get(key)
            if key.startswith(_FEDERATION):
                raise PreconditionFailed(
                    f"{what}: key '{key}' is not supported, because there is no federation; use a shovel"
                )
            if known is None:
                reason = "not allowed in operator policies" if key in KEYS else "unknown"
                raise PreconditionFailed(f"{what}: key '{key}' is {reason}; expected one of {', '.join(self.keys)}")
            checked[key] = known.argument.parse(value, "key")
        return checked


class Policies:
    """The policies and operator policies of one vhost, and their application to its queues and exchanges."""

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.user = PolicyTable(metadata.POLICY, "policy", KEYS)
        self.operator = PolicyTable(metadata.OPERATOR_POLICY, "operator policy", OPERATOR_KEYS)

    # Changes

    def set(
        self,
        table: PolicyTable,
        name: str,
        pattern: str,
        definition: Definition,
        *,
        apply_to: str = ALL,
        priority: int = 0,
        done: Callable[[], None] | None = None,
    ) -> bool:
        """Add or replace a policy, and apply it in steps, followed by `done`.

        Returns:
            Whether it is new.

        Raises:
            PreconditionFailed: A value is invalid, a key is unknown, or RE2 does not support the pattern.
        """
        broker = self.vhost.broker
        policy = table.make(broker, name, pattern, definition, apply_to, priority)
        record = _pack(table, policy)
        is_new = name not in table.by_name
        table.put(policy)
        broker.log.put(table.kind, metadata.make_key(self.vhost.name, name), record)
        self._apply_all(done)
        return is_new

    def delete(self, table: PolicyTable, name: str, done: Callable[[], None] | None = None) -> None:
        """Delete a policy, and apply the remaining ones in steps, followed by `done`. Raises NotFound."""
        self.get(table, name)
        table.remove(name)
        self.vhost.broker.log.put(table.kind, metadata.make_key(self.vhost.name, name), None)
        self._apply_all(done)

    def get(self, table: PolicyTable, name: str) -> Policy:
        """Return a policy. Raises NotFound."""
        found = table.by_name.get(name)
        if found is None:
            raise NotFound(f"no {table.noun} '{name}' in vhost '{self.vhost.name}'")
        return found

    def clear(self) -> None:
        """Delete the records of a deleted vhost."""
        for table in (self.user, self.operator):
            for name in table.by_name:
                self.vhost.broker.log.put(table.kind, metadata.make_key(self.vhost.name, name), None)

    # Recovery

    def restore(self, kind: str, name: str, record: Record) -> None:
        """Restore a policy from the log; `apply_restored` applies it."""
        table = self.user if kind == metadata.POLICY else self.operator
        pattern = record["pattern"]
        try:
            matches = self.vhost.broker.compile_pattern(pattern)
        except ValueError as error:  # the version of RE2 has changed
            logger.error(
                "%s '%s' in vhost '%s' matches nothing: pattern '%s' %s",
                table.noun, name, self.vhost.name, pattern, error,
            )  # fmt: skip
            matches = _matches_nothing
        definition = {key: value for key, value in record["definition"].items() if key in KEYS}
        table.put(Policy(name, pattern, record["apply_to"], definition, record["priority"], matches))

    def apply_restored(self) -> None:
        """Apply the restored policies, before the queues are started."""
        if self.user.ordered or self.operator.ordered:
            for queue in self.vhost.queues.values():
                self.apply(queue)
            for exchange in self.vhost.exchanges.values():
                self.apply_to_exchange(exchange)

    # Application

    def apply(self, queue: Queue) -> bool:
        """Apply the matching policies to a queue. Returns whether its settings may have changed."""
        policy = operator = None
        if self._note_matching() and not queue.name.startswith(REPLY_QUEUES):
            policy = self.user.for_queue(queue)
            operator = self.operator.for_queue(queue)
        if policy is queue.policy and operator is queue.operator_policy:
            return False
        queue.policy = policy
        queue.operator_policy = operator
        self.configure(queue)
        queue.redefined()
        return True

    def configure(self, queue: Queue) -> None:
        """Give a queue the settings of its arguments, its policies and its vhost."""
        queue.configure(
            self.vhost.limit_deliveries(queue.name, merge_settings(queue.declared, effective_definition(queue)))
        )

    def apply_to_exchange(self, exchange: Exchange) -> bool:
        """Apply the matching policies to an exchange. Returns whether its alternate exchange has changed."""
        if not exchange.name or exchange.name == CONTROL:
            return False
        self._note_matching()
        policy = self.user.for_exchange(exchange)
        operator = self.operator.for_exchange(exchange)
        if policy is exchange.policy and operator is exchange.operator_policy:
            return False
        exchange.policy = policy
        exchange.operator_policy = operator
        exchange.redefined()
        alternate = text_argument(exchange.arguments, "alternate-exchange")
        if alternate is None:
            alternate = effective_definition(exchange).get("alternate-exchange")
        if alternate == exchange.alternate:
            return False
        exchange.alternate = alternate
        return True

    def _note_matching(self) -> int:
        """Note the work to match one object; return the number of policies."""
        count = len(self.user.ordered) + len(self.operator.ordered)
        self.vhost.broker.work += count * MATCH_WORK
        return count

    def _apply_all(self, done: Callable[[], None] | None) -> None:
        if self.vhost.broker.jobs.run_steps(self._applying(), done, done) and done is not None:
            done()

    def _applying(self) -> Iterator[int]:
        """Apply the current policies to all objects."""
        vhost = self.vhost
        changed = False
        for exchange in list(vhost.exchanges.values()):
            if not exchange.deleted and self.apply_to_exchange(exchange):
                changed = True
            yield VISIT_WORK
        if changed:
            vhost.topology_changed()
        for queue in vhost.queue_list.walk():
            if queue.deleted or vhost.removed:
                continue
            timeout = queue.settings.consumer_timeout
            try:
                if self.apply(queue):
                    queue.reconfigured()
                    yield APPLY_WORK
                    if queue.settings.consumer_timeout != timeout:
                        for consumer in list(queue.consumers):
                            if not consumer.left:
                                consumer.queue_reconfigured()
                            yield 1
            except Exception:  # the others must still be changed
                logger.exception("cannot apply policies to queue '%s' in vhost '%s'", queue.name, vhost.name)
            yield VISIT_WORK


def effective_definition(target: Queue | Exchange) -> Definition:
    """Return the merged definition of the policies that apply to an object; empty if there are none."""
    return merge_definitions(target.policy, target.operator_policy)


def merge_definitions(policy: Policy | None, operator: Policy | None) -> Definition:
    """Merge a policy and an operator policy: the minimum of limits, otherwise the operator's value."""
    merged: Definition = {} if policy is None else dict(policy.definition)
    if operator is not None:
        for name, value in operator.definition.items():
            merged[name] = KEYS[name].merge(value, merged[name]) if name in merged else value
    return merged


def merge_settings(declared: QueueSettings, definition: Definition) -> QueueSettings:
    """Merge the arguments of a queue and an effective definition: the smaller limit, otherwise the argument's value."""
    if not definition:
        return declared
    known = dict(declared.given)
    for name, value in definition.items():
        key = KEYS[name]
        setting = key.setting
        if setting in QUEUE_ARGUMENTS:
            known[setting] = key.merge(known[setting], value) if setting in known else value
    return QueueSettings(known, declared.unknown, declared.defaults)


def _pack(table: PolicyTable, policy: Policy) -> bytes:
    """Return the record of a policy for the log. Raises PreconditionFailed."""
    record = {
        "version": VERSION,
        "pattern": policy.pattern,
        "apply_to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }
    try:
        return metadata.pack(record)
    except (OverflowError, ValueError, TypeError):
        raise PreconditionFailed(
            f"{table.noun} '{policy.name}': the definition has a value that cannot be stored"
        ) from None


def _matches_nothing(name: str) -> bool:
    return False
