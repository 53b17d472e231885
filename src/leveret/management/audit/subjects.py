"""The object of each operation: its kind, its name, and its definition before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Binding, Exchange
from leveret.broker.queues.queue import Queue
from leveret.broker.vhost import Vhost
from leveret.management.json_values import encode_json
from leveret.management.operations.connections import Cancel, Close
from leveret.management.operations.importing import Import
from leveret.management.operations.nodes import Move
from leveret.management.operations.operation import Context, VhostContext
from leveret.management.operations.table import DEFINITIONS, OPERATIONS, VHOST_OPERATIONS
from leveret.management.structs import Arguments

# Fields of requests that name the object, or have the content of a message.
_NOT_SHOWN: Final = frozenset(
    ("vhost", "name", "queue", "payload", "properties", "messages", "password", "password_hash", "scram_keys")
)
# The key of the identifier of a password in the state of a user, which records do not show.
CREDENTIAL: Final = "credential"
# Maximum number of bindings in the record of a deleted queue or exchange, and their bytes as JSON.
MAX_BINDINGS: Final = 100
MAX_BINDINGS_SIZE: Final = 32 << 10


# A context, and the request of an operation.
C = TypeVar("C")
Q = TypeVar("Q")


class _Named(Protocol):
    name: str


class _MaybeNamed(Protocol):
    @property
    def name(self) -> str | None: ...


class _InVhost(Protocol):
    @property
    def vhost(self) -> str | None: ...


class _NamedInVhost(_Named, _InVhost, Protocol): ...


class _MaybeNamedInVhost(_MaybeNamed, _InVhost, Protocol): ...


class _AboutUser(Protocol):
    user: str


class _AboutUserInVhost(_AboutUser, Protocol):
    vhost: str


class _AboutQueue(Protocol):
    queue: str


class _AboutQueueInVhost(_AboutQueue, _InVhost, Protocol): ...


class _AboutBinding(Protocol):
    @property
    def kind(self) -> str: ...

    source: str
    destination: str
    routing_key: str
    arguments: Arguments


class _AboutBindingInVhost(_AboutBinding, _InVhost, Protocol): ...


class _AboutDirectory(Protocol):
    directory: str


class _AboutParameter(_Named, Protocol):
    component: str
    vhost: str


class _AboutLimit(_MaybeNamed, Protocol):
    vhost: str


class _AboutSinkTransactions(Protocol):
    stages: list[str]


class _AboutSinkTransactionsInVhost(_AboutSinkTransactions, _InVhost, Protocol): ...


N = TypeVar("N", bound=_Named)
B = TypeVar("B", bound=_AboutBinding)


@dataclass(frozen=True, slots=True)
class Subject(Generic[C, Q]):
    """The object of an operation.

    Attributes:
        kind: The kind of the object.
        name: Returns its name from the request.
        vhost: Returns the name of its vhost, "" for none.
        state: Returns its definition, None if it does not exist. Without it, a record has the request and the result.
    """

    kind: str
    name: Callable[[Q], str]
    state: Callable[[C, Q], object] | None
    vhost: Callable[[C, Q], str]


def shown(request: msgspec.Struct, result: object) -> dict[str, object]:
    """Return the request and the result of an operation that changes no definition."""
    fields = {
        name: value
        for name, value in msgspec.structs.asdict(request).items()
        if name not in _NOT_SHOWN and value not in (None, "", [])
    }
    return {"request": fields, "result": result} if result is not None else {"request": fields}


def _named_vhost(context: Context, request: _InVhost) -> Vhost | None:
    return None if request.vhost is None else context.broker.vhosts.get(request.vhost)


def _own_vhost(context: VhostContext, request: object) -> Vhost | None:
    return context.vhost


def _name(request: _Named) -> str:
    return request.name


def _name_or_all(request: _MaybeNamed) -> str:
    return request.name or "all"


def _queue_name(request: _AboutQueue) -> str:
    return request.queue


def _import_target(request: Import) -> str:
    return request.queue or request.exchange or ""


def _user_name(request: _AboutUser) -> str:
    return request.user


def _transaction_names(request: _AboutSinkTransactions) -> str:
    return " ".join(request.stages)


def _vhost_name(context: Context, request: _InVhost) -> str:
    return request.vhost or ""


def _own_vhost_name(context: VhostContext, request: object) -> str:
    return context.vhost.name


def _no_vhost(context: Context, request: object) -> str:
    return ""


def _is_vhost(context: Context, request: _Named) -> str:
    return request.name


def _queue(find: Callable[[C, N], Vhost | None]) -> Callable[[C, N], object]:
    def state(context: C, request: N) -> object:
        vhost = find(context, request)
        queue = None if vhost is None else vhost.find_queue(request.name)
        return None if queue is None else _describe_queue(queue)

    return state


def _deleted_queue(find: Callable[[C, N], Vhost | None]) -> Callable[[C, N], object]:
    """Return the definition of a queue with its bindings, which go with it."""

    def state(context: C, request: N) -> object:
        vhost = find(context, request)
        queue = None if vhost is None else vhost.find_queue(request.name)
        if vhost is None or queue is None:
            return None
        return {**_describe_queue(queue), **_some_bindings(_bindings_to(vhost, queue))}

    return state


def _deleted_exchange(find: Callable[[C, N], Vhost | None]) -> Callable[[C, N], object]:
    """Return the definition of an exchange with its bindings, which go with it."""

    def state(context: C, request: N) -> object:
        vhost = find(context, request)
        exchange = None if vhost is None else vhost.exchanges.get(request.name)
        if vhost is None or exchange is None:
            return None
        bindings = chain(_bindings_from(exchange), _bindings_to(vhost, exchange))
        return {**_describe_exchange(exchange), **_some_bindings(bindings)}

    return state


def _bindings_to(vhost: Vhost, destination: Destination) -> Iterator[dict[str, object]]:
    for exchange in vhost.sources.get((destination.kind, destination.name), {}).values():
        for binding in exchange.bindings_to(destination):
            yield _describe_binding(exchange, binding)


def _bindings_from(exchange: Exchange) -> Iterator[dict[str, object]]:
    for bindings in exchange.by_destination.values():
        for binding in bindings.values():
            yield _describe_binding(exchange, binding)


def _some_bindings(bindings: Iterator[dict[str, object]]) -> dict[str, object]:
    """Return the first bindings up to a number and a size, and whether there are more."""
    found: list[dict[str, object]] = []
    size = 0
    for binding in bindings:
        size += len(encode_json(binding))
        if len(found) == MAX_BINDINGS or size > MAX_BINDINGS_SIZE:
            return {"bindings": found, "more_bindings": True}
        found.append(binding)
    return {"bindings": found, "more_bindings": False}


def _describe_queue(queue: Queue) -> dict[str, object]:
    return {
        "type": queue.settings.type,
        "durable": queue.durable,
        "auto_delete": queue.lifetime.auto_delete,
        "exclusive": queue.lifetime.exclusive_owner is not None,
        "arguments": queue.arguments,
        "paused": queue.paused,
    }


def _messages(find: Callable[[C, N], Vhost | None]) -> Callable[[C, N], object]:
    def state(context: C, request: N) -> object:
        vhost = find(context, request)
        queue = None if vhost is None else vhost.find_queue(request.name)
        return None if queue is None else {"messages": queue.ready_count + queue.delayed_count}

    return state


def _exchange(find: Callable[[C, N], Vhost | None]) -> Callable[[C, N], object]:
    def state(context: C, request: N) -> object:
        vhost = find(context, request)
        exchange = None if vhost is None else vhost.exchanges.get(request.name)
        return None if exchange is None else _describe_exchange(exchange)

    return state


def _describe_exchange(exchange: Exchange) -> dict[str, object]:
    return {
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }


def _binding(find: Callable[[C, B], Vhost | None]) -> Callable[[C, B], object]:
    def state(context: C, request: B) -> object:
        vhost = find(context, request)
        exchange = None if vhost is None else vhost.exchanges.get(request.source)
        target = None if vhost is None else vhost.find_destination(request.kind, request.destination)
        if exchange is None or target is None:
            return None
        binding = exchange.find(target, request.routing_key, request.arguments)
        return None if binding is None else _describe_binding(exchange, binding)

    return state


def _describe_binding(exchange: Exchange, binding: Binding) -> dict[str, object]:
    return {
        "source": exchange.name,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        "arguments": binding.arguments,
    }


def _binding_name(request: _AboutBinding) -> str:
    return f"{request.source} -> {request.destination}"


def _user(context: Context, request: _Named) -> object:
    user = context.users.get(request.name)
    if user is None:
        return None
    return {
        "tags": list(user.tags),
        "limits": msgspec.structs.asdict(user.limits),
        "logs_in_by_password": context.users.has_password(user),
        CREDENTIAL: context.users.credential(request.name),
    }


def _limits_of_user(context: Context, request: _AboutUser) -> object:
    user = context.users.get(request.user)
    return None if user is None else msgspec.structs.asdict(user.limits)


def _permission(context: Context, request: _AboutUserInVhost) -> object:
    user = context.users.get(request.user)
    permission = None if user is None else user.permissions.get(request.vhost)
    return None if permission is None else msgspec.structs.asdict(permission)


def _topic_permissions(context: Context, request: _AboutUserInVhost) -> object:
    user = context.users.get(request.user)
    found = None if user is None else user.topic_permissions.get(request.vhost)
    return {name: msgspec.structs.asdict(permission) for name, permission in found.items()} if found else None


def _roles(context: Context, request: _AboutUser) -> object:
    return msgspec.to_builtins(context.managed.roles.of(request.user).listed) or None


def _vhost_state(context: Context, request: _Named) -> object:
    vhost = context.broker.vhosts.get(request.name)
    if vhost is None:
        return None
    return {**msgspec.structs.asdict(context.managed.vhost_config(request.name)), "tracing": vhost.firehose.on}


def _policy(kind: str) -> Callable[[Context, _NamedInVhost], object]:
    def state(context: Context, request: _NamedInVhost) -> object:
        vhost = _named_vhost(context, request)
        policy = None if vhost is None else getattr(vhost.policies, kind).by_name.get(request.name)
        if policy is None:
            return None
        return {
            "pattern": policy.pattern,
            "definition": policy.definition,
            "apply_to": policy.apply_to,
            "priority": policy.priority,
        }

    return state


def _parameters(context: Context, vhost: str, component: str, name: str | None) -> object:
    """Return the parameters of a component in a vhost, or the one with this name; None if there are none."""
    found = context.broker.vhosts.get(vhost)
    if found is None:
        return None
    return {key: value for of, key, value in found.parameters.items() if of == component and name in (None, key)} or None


def _parameter(context: Context, request: _AboutParameter) -> object:
    return _parameters(context, request.vhost, request.component, request.name)


def _vhost_limits(context: Context, request: _AboutLimit) -> object:
    return _parameters(context, request.vhost, "vhost-limits", None)


def _parameter_name(request: _AboutParameter) -> str:
    return f"{request.component}/{request.name}"


def _global_parameter(context: Context, request: _Named) -> object:
    return context.broker.global_parameters.values.get(request.name)


_QUEUE: Final[Subject[Context, _NamedInVhost]] = Subject("queue", _name, _queue(_named_vhost), _vhost_name)
_PURGED_QUEUE: Final[Subject[Context, _NamedInVhost]] = Subject("queue", _name, _messages(_named_vhost), _vhost_name)
_IMPORT: Final[Subject[Context, Import]] = Subject("messages", _import_target, None, _vhost_name)
_MESSAGES: Final[Subject[Context, _AboutQueueInVhost]] = Subject("messages", _queue_name, None, _vhost_name)
_BINDING: Final[Subject[Context, _AboutBindingInVhost]] = Subject(
    "binding", _binding_name, _binding(_named_vhost), _vhost_name
)
_USER: Final[Subject[Context, _Named]] = Subject("user", _name, _user, _no_vhost)
_PERMISSION: Final[Subject[Context, _AboutUserInVhost]] = Subject("permission", _user_name, _permission, _vhost_name)
_TOPIC: Final[Subject[Context, _AboutUserInVhost]] = Subject(
    "topic_permission", _user_name, _topic_permissions, _vhost_name
)
_ROLES: Final[Subject[Context, _AboutUser]] = Subject("role", _user_name, _roles, _no_vhost)
_VHOST: Final[Subject[Context, _Named]] = Subject("vhost", _name, _vhost_state, _is_vhost)
_POLICY: Final[Subject[Context, _NamedInVhost]] = Subject("policy", _name, _policy("user"), _vhost_name)
_OPERATOR_POLICY: Final[Subject[Context, _NamedInVhost]] = Subject(
    "operator_policy", _name, _policy("operator"), _vhost_name
)
_PARAMETER: Final[Subject[Context, _AboutParameter]] = Subject("parameter", _parameter_name, _parameter, _vhost_name)
_VHOST_LIMIT: Final[Subject[Context, _AboutLimit]] = Subject("vhost_limit", _name_or_all, _vhost_limits, _vhost_name)
_USER_LIMIT: Final[Subject[Context, _AboutUser]] = Subject("user_limit", _user_name, _limits_of_user, _no_vhost)
_STREAM: Final[Subject[Context, _NamedInVhost]] = Subject("stream", _name, None, _vhost_name)
_STREAMS: Final[Subject[Context, _MaybeNamedInVhost]] = Subject("stream", _name_or_all, None, _vhost_name)
_LEASE: Final[Subject[Context, _NamedInVhost]] = Subject("lease", _name, None, _vhost_name)
_LINK: Final[Subject[Context, _NamedInVhost]] = Subject("link", _name, None, _vhost_name)
_SHOVEL: Final[Subject[Context, _NamedInVhost]] = Subject("shovel", _name, None, _vhost_name)
_BRANCH: Final[Subject[Context, _NamedInVhost]] = Subject("dtx_branch", _name, None, _vhost_name)
_SINK_TRANSACTIONS: Final[Subject[Context, _AboutSinkTransactionsInVhost]] = Subject(
    "sink_transaction", _transaction_names, None, _vhost_name
)
_CONNECTION: Final[Subject[Context, Close]] = Subject("connection", lambda request: str(request.number), None, _no_vhost)
_USERS_CONNECTIONS: Final[Subject[Context, _AboutUser]] = Subject("connection", _user_name, None, _no_vhost)
_CONSUMER: Final[Subject[Context, Cancel]] = Subject("consumer", lambda request: request.tag, None, _vhost_name)
_SHARD: Final[Subject[Context, Move]] = Subject("shard", lambda request: str(request.shard), None, _no_vhost)
_BACKUP: Final[Subject[Context, _AboutDirectory]] = Subject("backup", lambda request: request.directory, None, _no_vhost)
_NODE: Final[Subject[Context, _Named]] = Subject("node", _name, None, _no_vhost)
_OWN_PURGED_QUEUE: Final[Subject[VhostContext, _Named]] = Subject("queue", _name, _messages(_own_vhost), _own_vhost_name)
_OWN_BINDING: Final[Subject[VhostContext, _AboutBinding]] = Subject(
    "binding", _binding_name, _binding(_own_vhost), _own_vhost_name
)
_OWN_LEASE: Final[Subject[VhostContext, _AboutQueue]] = Subject("lease", _queue_name, None, _own_vhost_name)
_OWN_SINK_TRANSACTIONS: Final[Subject[VhostContext, _AboutSinkTransactions]] = Subject(
    "sink_transaction", _transaction_names, None, _own_vhost_name
)

_BY_NAME: Final[dict[str, Subject[Context, Any]]] = {
    "nodes.move": _SHARD,
    **dict.fromkeys(("backup.start", "backup.end"), _BACKUP),
    **dict.fromkeys(("nodes.drain", "nodes.forget"), _NODE),
    **dict.fromkeys(("queues.add", "queues.pause", "queues.resume"), _QUEUE),
    "queues.delete": Subject("queue", _name, _deleted_queue(_named_vhost), _vhost_name),
    "queues.purge": _PURGED_QUEUE,
    **dict.fromkeys(("messages.move", "messages.copy", "messages.delete", "messages.resend"), _MESSAGES),
    "messages.import": _IMPORT,
    "exchanges.add": Subject("exchange", _name, _exchange(_named_vhost), _vhost_name),
    "exchanges.delete": Subject("exchange", _name, _deleted_exchange(_named_vhost), _vhost_name),
    **dict.fromkeys(("bindings.add", "bindings.delete"), _BINDING),
    **dict.fromkeys(("users.add", "users.set", "users.change", "users.delete"), _USER),
    **dict.fromkeys(("permissions.set", "permissions.delete"), _PERMISSION),
    **dict.fromkeys(("roles.set", "roles.grant", "roles.revoke"), _ROLES),
    **dict.fromkeys(("topic_permissions.set", "topic_permissions.clear"), _TOPIC),
    **dict.fromkeys(("vhosts.add", "vhosts.change", "vhosts.trace", "vhosts.delete"), _VHOST),
    **dict.fromkeys(("policies.set", "policies.delete"), _POLICY),
    **dict.fromkeys(("operator_policies.set", "operator_policies.delete"), _OPERATOR_POLICY),
    **dict.fromkeys(("parameters.set", "parameters.delete"), _PARAMETER),
    **dict.fromkeys(
        ("global_parameters.set", "global_parameters.delete"),
        Subject("global_parameter", _name, _global_parameter, _no_vhost),
    ),
    **dict.fromkeys(("vhost_limits.set", "vhost_limits.clear"), _VHOST_LIMIT),
    **dict.fromkeys(("user_limits.set", "user_limits.clear"), _USER_LIMIT),
    "connections.close": _CONNECTION,
    "connections.close_user": _USERS_CONNECTIONS,
    "consumers.cancel": _CONSUMER,
    "leases.release": _LEASE,
    **dict.fromkeys(("links.release", "links.delete"), _LINK),
    "shovels.restart": _SHOVEL,
    **dict.fromkeys(("dtx.prepare", "dtx.commit", "dtx.rollback", "dtx.forget"), _BRANCH),
    "staged.discard": Subject("upload", _name, None, _vhost_name),
    "stages.discard": _SINK_TRANSACTIONS,
    "stages.forget": Subject("sink", _name, None, _vhost_name),
    **dict.fromkeys(
        ("streams.set_offset", "streams.add_super", "streams.delete_super", "streams.seal", "streams.erase"), _STREAM
    ),
    "streams.sync_tables": _STREAMS,
}
_BY_NAME_IN_VHOST: Final[dict[str, Subject[VhostContext, Any]]] = {
    "queue.declare": Subject("queue", _name, _queue(_own_vhost), _own_vhost_name),
    "queue.delete": Subject("queue", _name, _deleted_queue(_own_vhost), _own_vhost_name),
    "queue.purge": _OWN_PURGED_QUEUE,
    "exchange.declare": Subject("exchange", _name, _exchange(_own_vhost), _own_vhost_name),
    "exchange.delete": Subject("exchange", _name, _deleted_exchange(_own_vhost), _own_vhost_name),
    **dict.fromkeys(("binding.add", "binding.delete"), _OWN_BINDING),
    **dict.fromkeys(("lease.acquire", "lease.release"), _OWN_LEASE),
    "stage.discard": _OWN_SINK_TRANSACTIONS,
}
# Names and subjects by the identity of the operation.
SUBJECTS: Final[dict[int, tuple[str, Subject[Any, Any]]]] = {
    **{id(OPERATIONS[name]): (name, subject) for name, subject in _BY_NAME.items()},
    **{id({**DEFINITIONS, **VHOST_OPERATIONS}[name]): (name, subject) for name, subject in _BY_NAME_IN_VHOST.items()},
}
