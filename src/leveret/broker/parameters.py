"""Runtime parameters of vhosts and of the broker: values that operators store under a component and a name.

The component `vhost-limits` limits the queues and connections of the vhost. `operator_policy` is another way to set
operator policies. `Broker.parameter_watches` has what acts on the parameters of other components.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.broker import metadata
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.policies import QUEUES, Definition, Policy

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import Log
    from leveret.broker.metadata import Record
    from leveret.broker.vhost import Vhost

# A JSON value.
Value: TypeAlias = Any

VHOST_LIMITS: Final = "vhost-limits"
# The only name of a parameter of VHOST_LIMITS.
LIMITS: Final = "limits"
MAX_QUEUES: Final = "max-queues"
MAX_CONNECTIONS: Final = "max-connections"
OPERATOR_POLICY: Final = "operator_policy"
SHOVEL: Final = "shovel"
UPSTREAM: Final = "federation-upstream"
UPSTREAM_SET: Final = "federation-upstream-set"
# The global parameter with the name of the cluster.
CLUSTER_NAME: Final = "cluster_name"
COMPONENTS: Final = (VHOST_LIMITS, OPERATOR_POLICY, SHOVEL)
# Components of RabbitMQ's federation. An earlier version may have stored their parameters.
FEDERATION: Final = (UPSTREAM, UPSTREAM_SET)
# Version of the records in the log.
VERSION: Final = 1
# Bytes of a value in the log.
MAX_VALUE_SIZE: Final = 1 << 20
# Maximum number of global parameters, and bytes of all names and values in the log: every process keeps them in memory.
MAX_GLOBAL: Final = 10_000
MAX_GLOBAL_SIZE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Setter:
    """The user who set a parameter.

    Attributes:
        user: The name of the user of the store; "" for an operator, or if it is unknown.
        is_operator: Whether it was an operator of the broker, or the configuration.
        is_deleted: Whether the user was deleted since. Another user may have the name.
    """

    user: str = ""
    is_operator: bool = False
    is_deleted: bool = False


# The setter of parameters that an earlier version has stored, or a user who is not in the store.
UNKNOWN: Final = Setter()
OPERATOR: Final = Setter(is_operator=True)


class ParameterWatch(ABC):
    """User of the parameters of a component."""

    @abstractmethod
    async def prepare(self) -> None:
        """Do the slow part of the first `check` or `changed` in a thread. They work without it, too."""

    @abstractmethod
    def check(self, name: str, value: Value, setter: Setter) -> None:
        """Raise PreconditionFailed if a value is invalid, or its setter may not set it."""

    @abstractmethod
    def keeps(self, name: str, value: Value, setter: Setter) -> bool:
        """Return whether a stored value keeps its setter when another user sets the same value."""

    @abstractmethod
    def changed(self, vhost: str, name: str, value: Value | None, setter: Setter) -> None:
        """Handle that a parameter has a new value, None if it was deleted."""


async def prepare(broker: Broker, component: str) -> None:
    """Prepare for changes of the parameters of a component."""
    watch = broker.parameter_watches.get(component)
    if watch is not None:
        await watch.prepare()


class Parameters:
    """The parameters of one vhost, by component and name."""

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self._values: dict[tuple[str, str], Value] = {}
        # The setters of the parameters of watched components.
        self._setters: dict[tuple[str, str], Setter] = {}

    def set(
        self,
        component: str,
        name: str,
        value: Value,
        done: Callable[[], None] | None = None,
        setter: Setter = OPERATOR,
    ) -> bool:
        """Store a parameter, and call `done` once it is applied.

        Returns:
            Whether it is new.

        Raises:
            PreconditionFailed: The component is unknown, the value is invalid, or the setter may not set it.
        """
        self.check(component, name, value, setter)
        if component == OPERATOR_POLICY:
            policies = self.vhost.policies
            pattern, definition, apply_to, priority = _policy_fields(name, value)
            return policies.set(
                policies.operator, name, pattern, definition, apply_to=apply_to, priority=priority, done=done
            )
        watched = component in self.vhost.broker.parameter_watches
        record = _pack(name, value, setter if watched else None)
        is_new = (component, name) not in self._values
        self._values[component, name] = value
        if watched:
            self._setters[component, name] = setter
        self.vhost.broker.log.put(metadata.PARAMETER, metadata.make_key(self.vhost.name, component, name), record)
        self._changed(component, name, value, done)
        return is_new

    def check(self, component: str, name: str, value: Value, setter: Setter) -> None:
        """Raise the errors of `set`."""
        if component in FEDERATION:
            raise PreconditionFailed(
                f"component '{component}' is not supported, because there is no federation; use component '{SHOVEL}'"
            )
        if component not in COMPONENTS:
            raise PreconditionFailed(f"component '{component}' does not exist; expected one of {', '.join(COMPONENTS)}")
        if component == OPERATOR_POLICY:
            pattern, definition, apply_to, priority = _policy_fields(name, value)
            self.vhost.policies.operator.make(self.vhost.broker, name, pattern, definition, apply_to, priority)
            return
        _check_name(self.vhost, name)
        if component == VHOST_LIMITS:
            _check_limits(name, value)
        elif not isinstance(value, dict):
            raise PreconditionFailed(f"parameter '{name}' of component '{component}' is not an object")
        watch = self.vhost.broker.parameter_watches.get(component)
        if watch is not None:
            watch.check(name, value, setter)
        _pack(name, value, setter)

    def is_unchanged(self, component: str, name: str, value: Value) -> bool:
        """Return whether a value, such as one that a client writes back, leaves a watched parameter as it is."""
        watch = self.vhost.broker.parameter_watches.get(component)
        key = component, name
        if watch is None or key not in self._values or not _is_same(self._values[key], value):
            return False
        return watch.keeps(name, value, self.setter(component, name))

    def delete(self, component: str, name: str, done: Callable[[], None] | None = None) -> None:
        """Delete a parameter, and call `done` once that is applied. Raises NotFound."""
        self.get(component, name)
        if component == OPERATOR_POLICY:
            policies = self.vhost.policies
            policies.delete(policies.operator, name, done)
            return
        del self._values[component, name]
        self._setters.pop((component, name), None)
        self.vhost.broker.log.put(metadata.PARAMETER, metadata.make_key(self.vhost.name, component, name), None)
        self._changed(component, name, None, done)

    def get(self, component: str, name: str) -> Value:
        """Return the value of a parameter. Raises NotFound."""
        if component == OPERATOR_POLICY:
            policy = self.vhost.policies.operator.by_name.get(name)
            if policy is not None:
                return _policy_value(policy)
        elif (component, name) in self._values:
            return self._values[component, name]
        raise NotFound(f"no parameter '{name}' of component '{component}' in vhost '{self.vhost.name}'")

    def setter(self, component: str, name: str) -> Setter:
        """Return the setter of a parameter; `UNKNOWN` unless its component is watched."""
        return self._setters.get((component, name), UNKNOWN)

    def mark_deleted(self, component: str, users: Collection[str]) -> dict[str, Setter]:
        """Mark the setters of parameters of a component who are among deleted users, and return them by parameter."""
        marked = {
            name: replace(setter, is_deleted=True)
            for (known, name), setter in self._setters.items()
            if known == component and setter.user in users and not setter.is_deleted
        }
        for name, setter in marked.items():
            self._setters[component, name] = setter
            record = _record(self._values[component, name], setter)
            self.vhost.broker.log.put(metadata.PARAMETER, metadata.make_key(self.vhost.name, component, name), record)
        return marked

    def setters(self, component: str) -> Iterator[str]:
        """Yield the name of the user who set each parameter of a component, unless it was an operator or is unknown."""
        return (setter.user for (known, _), setter in self._setters.items() if known == component and setter.user)

    def items(self) -> Iterator[tuple[str, str, Value]]:
        """Yield the component, the name and the value of each parameter, operator policies included."""
        for (component, name), value in list(self._values.items()):
            yield component, name, value
        for policy in list(self.vhost.policies.operator.by_name.values()):
            yield OPERATOR_POLICY, policy.name, _policy_value(policy)

    def limit(self, name: str) -> int:
        """Return a limit of the vhost, -1 if there is none."""
        return self._limits().get(name, -1)

    def set_limit(self, name: str, value: int) -> None:
        """Set a limit of the vhost. A negative one means no limit."""
        self.set(VHOST_LIMITS, LIMITS, {**self._limits(), name: value})

    def clear_limits(self, *names: str) -> None:
        """Remove limits of the vhost. Missing ones are ignored."""
        limits = self._limits()
        kept = {name: value for name, value in limits.items() if name not in names}
        if kept:
            self.set(VHOST_LIMITS, LIMITS, kept)
        elif (VHOST_LIMITS, LIMITS) in self._values:
            self.delete(VHOST_LIMITS, LIMITS)

    def restore(self, component: str, name: str, record: Record) -> None:
        """Restore a parameter from the log."""
        self._values[component, name] = record["value"]
        if "user" in record:
            self._setters[component, name] = Setter(record["user"], record["operator"], record.get("deleted", False))
        self.vhost.update_limits()

    def clear(self) -> None:
        """Delete the records of a deleted vhost."""
        for component, name in self._values:
            self.vhost.broker.log.put(metadata.PARAMETER, metadata.make_key(self.vhost.name, component, name), None)
            self._notify(component, name, None)

    def _notify(self, component: str, name: str, value: Value | None) -> None:
        watch = self.vhost.broker.parameter_watches.get(component)
        if watch is not None:
            watch.changed(self.vhost.name, name, value, self.setter(component, name))

    def _limits(self) -> dict[str, int]:
        limits: dict[str, int] = self._values.get((VHOST_LIMITS, LIMITS), {})
        return limits

    def _changed(self, component: str, name: str, value: Value | None, done: Callable[[], None] | None) -> None:
        if component == VHOST_LIMITS:
            self.vhost.update_limits()
        self._notify(component, name, value)
        if done is not None:
            done()


class GlobalParameters:
    """The parameters of the broker as a whole, by name."""

    def __init__(self, log: Log) -> None:
        # Writes metadata; the caller ends the turn.
        self.put: Callable[[str, str, bytes | None], None] = log.put
        self.values: dict[str, Value] = {}
        # The bytes of each parameter in the log, and of all.
        self._sizes: dict[str, int] = {}
        self._size = 0

    def set(self, name: str, value: Value) -> bool:
        """Store a parameter; return whether it is new. Raises PreconditionFailed."""
        if not 1 <= _name_size(name) <= 255:
            raise PreconditionFailed("invalid parameter name; expected 1 to 255 bytes")
        if name == CLUSTER_NAME and not (isinstance(value, str) and 1 <= len(value.encode("utf-8", "replace")) <= 255):
            raise PreconditionFailed("invalid cluster name; expected a string of 1 to 255 bytes")
        record = _pack(name, value)
        is_new = name not in self.values
        self._check_total(name, len(record))
        self._keep(name, value, len(record))
        self.put(metadata.GLOBAL_PARAMETER, metadata.make_key(name), record)
        return is_new

    def delete(self, name: str) -> None:
        """Delete a parameter. Raises NotFound."""
        self.get(name)
        self._drop(name)
        self.put(metadata.GLOBAL_PARAMETER, metadata.make_key(name), None)

    def get(self, name: str) -> Value:
        """Return the value of a parameter. Raises NotFound."""
        if name not in self.values:
            raise NotFound(f"no global parameter '{name}'")
        return self.values[name]

    def apply(self, records: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Apply records that another process has stored: kind, key and value, None for a deleted one.

        Records of other kinds are ignored.
        """
        for kind, key, value in records:
            if kind == metadata.GLOBAL_PARAMETER:
                name = metadata.split_key(key)[0]
                if value is None:
                    self._drop(name)
                else:
                    self.restore(name, metadata.unpack(value))

    def restore(self, name: str, record: Record) -> None:
        """Restore a parameter from the log."""
        self._keep(name, record["value"], len(metadata.pack(record)))

    def _check_total(self, name: str, size: int) -> None:
        """Raise PreconditionFailed if a new parameter, or a larger value, exceeds a limit."""
        if name not in self.values and len(self.values) >= MAX_GLOBAL:
            raise PreconditionFailed(
                f"global parameter '{name}' is one too many; expected at most {MAX_GLOBAL}: delete some"
            )
        size += _name_size(name)
        before = self._sizes.get(name, 0)
        total = self._size - before + size
        if size > before and total > MAX_GLOBAL_SIZE:
            raise PreconditionFailed(
                f"global parameter '{name}' makes a total of {total} bytes; expected at most {MAX_GLOBAL_SIZE}: delete some"
            )

    def _keep(self, name: str, value: Value, size: int) -> None:
        self._drop(name)
        self.values[name] = value
        self._sizes[name] = size + _name_size(name)
        self._size += self._sizes[name]

    def _drop(self, name: str) -> None:
        self.values.pop(name, None)
        self._size -= self._sizes.pop(name, 0)


def _name_size(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))


def _check_name(vhost: Vhost, name: str) -> None:
    vhost.broker.check_name("parameter", name)
    if not name:
        raise PreconditionFailed("the name of the parameter is empty; expected 1 to 255 bytes")


def _policy_fields(name: str, value: Value) -> tuple[str, Definition, str, int]:
    """Return pattern, definition, target and priority of a parameter of OPERATOR_POLICY. Raises PreconditionFailed."""
    if not isinstance(value, dict):
        raise PreconditionFailed(f"parameter '{name}' of component '{OPERATOR_POLICY}' is not an object")
    pattern = value.get("pattern")
    definition = value.get("definition")
    priority = value.get("priority", 0)
    apply_to = value.get("apply-to", QUEUES)
    if not isinstance(pattern, str) or not isinstance(apply_to, str):
        raise PreconditionFailed(f"operator policy '{name}': 'pattern' and 'apply-to' must be strings")
    if not isinstance(definition, dict) or not isinstance(priority, int) or isinstance(priority, bool):
        raise PreconditionFailed(f"operator policy '{name}': 'definition' must be an object and 'priority' an integer")
    return pattern, definition, apply_to, priority


def _check_limits(name: str, value: Value) -> None:
    if name != LIMITS:
        raise PreconditionFailed(f"parameter '{name}' of component '{VHOST_LIMITS}' is unknown; expected '{LIMITS}'")
    if not isinstance(value, dict):
        raise PreconditionFailed(f"parameter '{LIMITS}' of component '{VHOST_LIMITS}' is not an object")
    for key, limit in value.items():
        if key not in (MAX_QUEUES, MAX_CONNECTIONS):
            raise PreconditionFailed(f"limit '{key}' is unknown; expected '{MAX_QUEUES}' or '{MAX_CONNECTIONS}'")
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise PreconditionFailed(f"limit '{key}' is not an integer; a negative limit means none")


def _pack(name: str, value: Value, setter: Setter | None = None) -> bytes:
    try:
        record = _record(value, setter)
    except (OverflowError, ValueError, TypeError):
        raise PreconditionFailed(f"parameter '{name}' has a value that cannot be stored") from None
    if len(record) > MAX_VALUE_SIZE:
        raise PreconditionFailed(f"parameter '{name}' has {len(record)} bytes; expected at most {MAX_VALUE_SIZE}")
    return record


def _record(value: Value, setter: Setter | None) -> bytes:
    known = {} if setter is None else {"user": setter.user, "operator": setter.is_operator}
    deleted = {"deleted": True} if setter is not None and setter.is_deleted else {}
    return metadata.pack({"version": VERSION, "value": value, **known, **deleted})


def _is_same(first: Value, second: Value) -> bool:
    """Return whether two values are equal as JSON, which distinguishes true, 1 and 1.0."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_is_same(item, second[name]) for name, item in first.items())
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_is_same, first, second))
    return bool(first == second)


def _policy_value(policy: Policy) -> Value:
    return {
        "pattern": policy.pattern,
        "definition": policy.definition,
        "priority": policy.priority,
        "apply-to": policy.apply_to,
    }
