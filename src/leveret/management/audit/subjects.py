"""The object of each operation: its kind, its name, and its definition before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from leveret.broker.queues.queue import Queue
from leveret.broker.values import freeze
from leveret.broker.vhost import Vhost
from leveret.management.operations.operation import Context, VhostContext
from leveret.management.operations.table import DEFINITIONS, OPERATIONS, VHOST_OPERATIONS

# Fields of requests that name the object, or have the content of a message.
_NOT_SHOWN: Final = frozenset(("vhost", "name", "queue", "payload", "properties", "password", "password_hash"))


@dataclass(frozen=True, slots=True)
class Subject:
    """The object of an operation.

    Attributes:
        kind: The kind of the object.
        name: Returns its name from the request.
        vhost: Returns the name of its vhost, "" for none.
        state: Returns its definition, None if it does not exist. Without it, a record has the request and the result.
    """

    kind: str
    name: Callable[[Any], str]
    state: Callable[[Any, Any], object] | None
    vhost: Callable[[Any, Any], str]


def shown(request: msgspec.Struct, result: object) -> dict[str, object]:
    """Return the request and the result of an operation that changes no definition."""
    fields = {
        name: value
        for name, value in msgspec.structs.asdict(request).items()
        if name not in _NOT_SHOWN and value not in (None, "", [])
    }
    return {"request": fields, "result": result} if result is not None else {"request": fields}


Find = Callable[[Any, Any], Vhost | None]


def _named_vhost(context: Context, request: Any) -> Vhost | None:
    return context.broker.vhosts.get(request.vhost)


def _own_vhost(context: VhostContext, request: Any) -> Vhost | None:
    return context.vhost


def _name(request: Any) -> str:
    return str(request.name)


def _queue_name(request: Any) -> str:
    return str(request.queue)


def _vhost_name(context: Context, request: Any) -> str:
    return request.vhost or ""


def _own_vhost_name(context: VhostContext, request: Any) -> str:
    return context.vhost.name


def _no_vhost(context: Context, request: Any) -> str:
    return ""


def _is_vhost(context: Context, request: Any) -> str:
    return str(request.name)


def _queue(find: Find) -> Callable[[Any, Any], object]:
    def state(context: Any, request: Any) -> object:
        vhost = find(context, request)
        queue = None if vhost is None else vhost.find_queue(request.name)
        return None if queue is None else _describe_queue(queue)

    return state


def _describe_queue(queue: Queue) -> dict[str, object]:
    return {
        "type": queue.settings.type,
        "durable": queue.durable,
        "auto_delete": queue.lifetime.auto_delete,
        "exclusive": queue.lifetime.exclusive_owner is not None,
        "arguments": queue.arguments,
        "paused": queue.paused,
    }


def _messages(find: Find) -> Callable[[Any, Any], object]:
    def state(context: Any, request: Any) -> object:
        vhost = find(context, request)
        queue = None if vhost is None else vhost.find_queue(request.name)
        return None if queue is None else {"messages": queue.ready_count + queue.delayed_count}

    return state


def _exchange(find: Find) -> Callable[[Any, Any], object]:
    def state(context: Any, request: Any) -> object:
        vhost = find(context, request)
        exchange = None if vhost is None else vhost.exchanges.get(request.name)
        if exchange is None:
            return None
        return {
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": exchange.arguments,
        }

    return state


def _binding(find: Find) -> Callable[[Any, Any], object]:
    def state(context: Any, request: Any) -> object:
        vhost = find(context, request)
        exchange = None if vhost is None else vhost.exchanges.get(request.source)
        target = None if vhost is None else vhost.find_destination(request.kind, request.destination)
        if exchange is None or target is None:
            return None
        binding = exchange.by_destination.get(target, {}).get((request.routing_key, freeze(request.arguments)))
        return None if binding is None else {"routing_key": binding.routing_key, "arguments": binding.arguments}

    return state


def _binding_name(request: Any) -> str:
    return f"{request.source} -> {request.destination}"


def _user(context: Context, request: Any) -> object:
    user = context.users.get(request.name)
    if user is None:
        return None
    return {
        "tags": list(user.tags),
        "limits": msgspec.structs.asdict(user.limits),
        "logs_in_by_password": context.users.has_password(user),
    }


def _limits_of_user(context: Context, request: Any) -> object:
    user = context.users.get(request.user)
    return None if user is None else msgspec.structs.asdict(user.limits)


def _permission(context: Context, request: Any) -> object:
    user = context.users.get(request.user)
    permission = None if user is None else user.permissions.get(request.vhost)
    return None if permission is None else msgspec.structs.asdict(permission)


def _topic_permissions(context: Context, request: Any) -> object:
    user = context.users.get(request.user)
    found = None if user is None else user.topic_permissions.get(request.vhost)
    return {name: msgspec.structs.asdict(permission) for name, permission in found.items()} if found else None


def _vhost_state(context: Context, request: Any) -> object:
    if request.name not in context.broker.vhosts:
        return None
    return msgspec.structs.asdict(context.managed.vhost_config(request.name))


def _policy(kind: str) -> Callable[[Context, Any], object]:
    def state(context: Context, request: Any) -> object:
        vhost = context.broker.vhosts.get(request.vhost)
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


def _parameter(component: Callable[[Any], str], name: Callable[[Any], str | None]) -> Callable[[Context, Any], object]:
    def state(context: Context, request: Any) -> object:
        vhost = context.broker.vhosts.get(request.vhost)
        if vhost is None:
            return None
        found = {
            key: value
            for of, key, value in vhost.parameters.items()
            if of == component(request) and name(request) in (None, key)
        }
        return found or None

    return state


def _global_parameter(context: Context, request: Any) -> object:
    return context.broker.global_parameters.values.get(request.name)


def _limit_name(request: Any) -> str:
    return request.name or "all"


_QUEUE: Final = Subject("queue", _name, _queue(_named_vhost), _vhost_name)
_MESSAGES: Final = Subject("messages", _queue_name, None, _vhost_name)
_EXCHANGE: Final = Subject("exchange", _name, _exchange(_named_vhost), _vhost_name)
_BINDING: Final = Subject("binding", _binding_name, _binding(_named_vhost), _vhost_name)
_USER: Final = Subject("user", _name, _user, _no_vhost)
_PERMISSION: Final = Subject("permission", lambda request: str(request.user), _permission, _vhost_name)
_TOPIC: Final = Subject("topic_permission", lambda request: str(request.user), _topic_permissions, _vhost_name)
_VHOST: Final = Subject("vhost", _name, _vhost_state, _is_vhost)
_POLICY: Final = Subject("policy", _name, _policy("user"), _vhost_name)
_OPERATOR_POLICY: Final = Subject("operator_policy", _name, _policy("operator"), _vhost_name)
_PARAMETER: Final = Subject(
    "parameter",
    lambda request: f"{request.component}/{request.name}",
    _parameter(lambda request: str(request.component), _name),
    _vhost_name,
)
_VHOST_LIMIT: Final = Subject(
    "vhost_limit",
    _limit_name,
    _parameter(lambda request: "vhost-limits", lambda request: None),
    _vhost_name,
)
_USER_LIMIT: Final = Subject("user_limit", lambda request: str(request.user), _limits_of_user, _no_vhost)
_STREAM: Final = Subject("stream", _name, None, _vhost_name)
_LINK: Final = Subject("link", _name, None, _vhost_name)
_BRANCH: Final = Subject("dtx_branch", _name, None, _vhost_name)

_BY_NAME: Final[dict[str, Subject]] = {
    **dict.fromkeys(("queues.add", "queues.delete", "queues.pause", "queues.resume"), _QUEUE),
    "queues.purge": Subject("queue", _name, _messages(_named_vhost), _vhost_name),
    **dict.fromkeys(("messages.move", "messages.copy", "messages.delete", "messages.resend"), _MESSAGES),
    **dict.fromkeys(("exchanges.add", "exchanges.delete"), _EXCHANGE),
    **dict.fromkeys(("bindings.add", "bindings.delete"), _BINDING),
    **dict.fromkeys(("users.add", "users.set", "users.change", "users.delete"), _USER),
    **dict.fromkeys(("permissions.set", "permissions.delete"), _PERMISSION),
    **dict.fromkeys(("topic_permissions.set", "topic_permissions.clear"), _TOPIC),
    **dict.fromkeys(("vhosts.add", "vhosts.change", "vhosts.delete"), _VHOST),
    **dict.fromkeys(("policies.set", "policies.delete"), _POLICY),
    **dict.fromkeys(("operator_policies.set", "operator_policies.delete"), _OPERATOR_POLICY),
    **dict.fromkeys(("parameters.set", "parameters.delete"), _PARAMETER),
    **dict.fromkeys(
        ("global_parameters.set", "global_parameters.delete"),
        Subject("global_parameter", _name, _global_parameter, _no_vhost),
    ),
    **dict.fromkeys(("vhost_limits.set", "vhost_limits.clear"), _VHOST_LIMIT),
    **dict.fromkeys(("user_limits.set", "user_limits.clear"), _USER_LIMIT),
    "connections.close": Subject("connection", lambda request: str(request.number), None, _no_vhost),
    "connections.close_user": Subject("connection", lambda request: str(request.user), None, _no_vhost),
    "consumers.cancel": Subject("consumer", lambda request: str(request.tag), None, _vhost_name),
    "leases.release": Subject("lease", _name, None, _vhost_name),
    **dict.fromkeys(("links.release", "links.delete"), _LINK),
    **dict.fromkeys(("dtx.prepare", "dtx.commit", "dtx.rollback", "dtx.forget"), _BRANCH),
    "staged.discard": Subject("upload", _name, None, _vhost_name),
    "stages.discard": Subject("sink_transaction", lambda request: " ".join(request.stages), None, _vhost_name),
    "stages.forget": Subject("sink", _name, None, _vhost_name),
    **dict.fromkeys(
        ("streams.set_offset", "streams.add_super", "streams.delete_super", "streams.seal", "streams.erase"), _STREAM
    ),
    "streams.sync_tables": Subject("stream", lambda request: request.name or "all", None, _vhost_name),
}
_BY_NAME_IN_VHOST: Final[dict[str, Subject]] = {
    **dict.fromkeys(("queue.declare", "queue.delete"), Subject("queue", _name, _queue(_own_vhost), _own_vhost_name)),
    "queue.purge": Subject("queue", _name, _messages(_own_vhost), _own_vhost_name),
    **dict.fromkeys(
        ("exchange.declare", "exchange.delete"), Subject("exchange", _name, _exchange(_own_vhost), _own_vhost_name)
    ),
    **dict.fromkeys(
        ("binding.add", "binding.delete"), Subject("binding", _binding_name, _binding(_own_vhost), _own_vhost_name)
    ),
    **dict.fromkeys(("lease.acquire", "lease.release"), Subject("lease", _queue_name, None, _own_vhost_name)),
    "stage.discard": Subject("sink_transaction", lambda request: " ".join(request.stages), None, _own_vhost_name),
}
# Names and subjects by the identity of the operation.
SUBJECTS: Final[dict[int, tuple[str, Subject]]] = {
    **{id(OPERATIONS[name]): (name, subject) for name, subject in _BY_NAME.items()},
    **{id({**DEFINITIONS, **VHOST_OPERATIONS}[name]): (name, subject) for name, subject in _BY_NAME_IN_VHOST.items()},
}
