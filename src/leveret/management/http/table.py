"""All routes: method, path, handler and access rule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from leveret.management.http import (
    alert_rules,
    audit,
    bindings,
    connections,
    definitions,
    diagnosis,
    event_stream,
    exchanges,
    health,
    history,
    in_place,
    limits,
    listings,
    log,
    marks,
    message_files,
    messages,
    openapi,
    operations,
    overview,
    parameters,
    payload_schemas,
    performance,
    queues,
    roles,
    session,
    shards,
    shovels,
    streams,
    tails,
    users,
    vhosts,
)
from leveret.management.http.identity import ADMIN, ANY, MONITOR, POLICY, Access
from leveret.management.http.places import DECODED, EVENTS, FILES, SEARCHES, TAILS, UPLOADS, Kind
from leveret.management.http.policies import OPERATOR_POLICIES, POLICIES, Policies
from leveret.management.http.request import Answer, Request

Handler: TypeAlias = Callable[[Request], Awaitable[Answer]]
# Vhosts that a path may name: those that the user may use, those whose objects the user sees, or all of them.
Scope: TypeAlias = Literal["own", "visible", "all"]


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a path.

    Attributes:
        handler: Called with the request.
        access: The tags that the method requires.
        scope: The vhosts that the path may name. Others do not exist for the user.
        public: Whether the method requires no credentials.
        payloads: Whether answers have payloads of messages.
        large: Whether a body may be larger than those of requests to the broker.
        reads: Whether the method changes nothing, although it is POST.
        streamed: Whether the body is processed while it is received.
        has_dry_run: Whether it changes nothing with `dry_run` in the query.
        place: What the method occupies until its answer has ended, which is limited.
    """

    handler: Handler
    access: Access = ANY
    scope: Scope = "own"
    public: bool = False
    payloads: bool = False
    large: bool = False
    reads: bool = False
    streamed: bool = False
    has_dry_run: bool = False
    place: Kind | None = None


@dataclass(slots=True)
class Node:
    """One part of a path: the next parts by their texts, the part that stands for any text, and the methods."""

    children: dict[str, Node] = field(default_factory=dict)
    variable: str = ""
    other: Node | None = None
    methods: dict[str, Route] = field(default_factory=dict)


_DEFINITIONS: Final = {
    "GET": Route(definitions.download, ADMIN, "all"),
    "POST": Route(definitions.upload, ADMIN, "all", large=True, has_dry_run=True, place=FILES),
}
_LOGIN_ATTEMPTS: Final = {
    "GET": Route(overview.list_login_attempts, MONITOR),
    "DELETE": Route(overview.forget_login_attempts, ADMIN),
}
_TOPIC_PERMISSIONS: Final = {
    "GET": Route(users.show_topic_permissions, ADMIN, "all"),
    "PUT": Route(users.put_topic_permission, ADMIN, "all"),
    "DELETE": Route(users.delete_topic_permissions, ADMIN, "all"),
}


def _policies(path: str, handlers: Policies, change: Access) -> dict[str, dict[str, Route]]:
    """Return the paths of a kind of policies, whose changes require this access."""
    return {
        path: {"GET": Route(handlers.list_all)},
        f"{path}/{{vhost}}": {"GET": Route(handlers.list_in_vhost, ANY, "visible")},
        f"{path}/{{vhost}}/{{name}}": {
            "GET": Route(handlers.show, ANY, "visible"),
            "PUT": Route(handlers.put, change),
            "DELETE": Route(handlers.delete, change),
        },
    }


def _listings(path: str, handlers: listings.Listing) -> dict[str, dict[str, Route]]:
    """Return the paths of the lists of a kind of object."""
    return {
        path: {"GET": Route(handlers.list_all)},
        f"{path}/{{vhost}}": {"GET": Route(handlers.list_in_vhost, ANY, "visible")},
    }


# Paths below `/api`. `{name}` stands for one part of the path.
ROUTES: Final[dict[str, dict[str, Route]]] = {
    "/overview": {"GET": Route(overview.overview)},
    "/whoami": {"GET": Route(overview.whoami)},
    "/version": {"GET": Route(overview.version)},
    "/extensions": {"GET": Route(overview.extensions)},
    "/auth": {"GET": Route(overview.auth, public=True)},
    "/login": {"POST": Route(session.login, public=True)},
    "/leveret/providers": {"GET": Route(overview.list_providers, public=True)},
    "/leveret/session": {
        "GET": Route(session.show, public=True),
        "POST": Route(session.open_session, public=True),
        "DELETE": Route(session.close_session, public=True),
    },
    "/leveret/sessions": {
        "GET": Route(session.list_sessions),
        # A user who may change nothing else may end own sessions.
        "DELETE": Route(session.end_other_sessions, reads=True),
    },
    "/leveret/sessions/{id}": {"DELETE": Route(session.end_session, reads=True)},
    "/leveret/all-sessions": {"GET": Route(session.list_all_sessions, ADMIN)},
    "/leveret/all-sessions/{id}": {"DELETE": Route(session.end_any_session, ADMIN)},
    "/leveret/roles": {"GET": Route(roles.list_all, ADMIN)},
    "/leveret/roles/{user}": {
        "GET": Route(roles.list_of_user, ADMIN),
        "PUT": Route(roles.put, ADMIN),
        "DELETE": Route(roles.delete, ADMIN),
    },
    "/leveret/role/{vhost}": {"POST": Route(roles.list_own, ANY, "visible", reads=True)},
    "/leveret/role/{vhost}/{name}": {"GET": Route(roles.show_own, ANY, "visible")},
    "/cluster-name": {"GET": Route(overview.cluster_name), "PUT": Route(overview.set_cluster_name, ADMIN)},
    "/nodes": {"GET": Route(overview.list_nodes, MONITOR)},
    "/nodes/{node}": {"GET": Route(overview.show_node, MONITOR)},
    "/nodes/{node}/memory": {"GET": Route(overview.show_node_memory, MONITOR)},
    "/nodes/{node}/memory/relative": {"GET": Route(overview.show_relative_memory, MONITOR)},
    "/definitions": _DEFINITIONS,
    "/definitions/{vhost}": _DEFINITIONS,
    "/all-configuration": _DEFINITIONS,
    "/leveret/history": {"GET": Route(history.show)},
    "/leveret/history/queues": {"GET": Route(history.list_queues)},
    "/leveret/queues/{vhost}/{name}/messages": {"GET": Route(in_place.browse, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/search": {"POST": Route(in_place.search, reads=True, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/count": {"POST": Route(in_place.count, reads=True, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/dead-letters": {
        "POST": Route(in_place.dead_letters, reads=True, place=SEARCHES)
    },
    "/leveret/queues/{vhost}/{name}/messages/preview": {"POST": Route(in_place.preview, reads=True, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/move": {"POST": Route(in_place.move, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/copy": {"POST": Route(in_place.copy, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/delete": {"POST": Route(in_place.delete, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/resend": {"POST": Route(in_place.resend, place=SEARCHES)},
    "/leveret/queues/{vhost}/{name}/messages/export": {
        "GET": Route(message_files.export, payloads=True),
        "POST": Route(message_files.export_selected, payloads=True, reads=True),
    },
    "/leveret/queues/{vhost}/{name}/messages/import": {
        "POST": Route(message_files.import_to_queue, streamed=True, place=UPLOADS)
    },
    "/leveret/exchanges/{vhost}/{name}/messages/import": {
        "POST": Route(message_files.import_to_exchange, streamed=True, place=UPLOADS)
    },
    "/leveret/vhosts/{vhost}/messages/import": {"POST": Route(message_files.import_messages, streamed=True, place=UPLOADS)},
    "/leveret/queues/{vhost}/{name}/messages/tail": {"GET": Route(tails.follow_queue, payloads=True, place=TAILS)},
    "/leveret/exchanges/{vhost}/{name}/messages/tail": {"GET": Route(tails.follow_exchange, payloads=True, place=TAILS)},
    "/leveret/queues/{vhost}/{name}/messages/{id}/payload": {"GET": Route(in_place.read_payload, payloads=True)},
    "/leveret/shards": {"GET": Route(shards.list_all, MONITOR)},
    "/leveret/shards/{shard}/move": {"POST": Route(shards.move, ADMIN)},
    "/leveret/cluster": {"GET": Route(shards.show_cluster, MONITOR)},
    "/leveret/cluster/nodes": {"GET": Route(shards.list_nodes, MONITOR)},
    "/leveret/cluster/nodes/{node}": {"DELETE": Route(shards.forget, ADMIN)},
    "/leveret/cluster/nodes/{node}/drain": {"POST": Route(shards.drain, ADMIN)},
    "/leveret/performance": {"GET": Route(performance.show, MONITOR)},
    "/leveret/streams/{vhost}/{name}": {"GET": Route(streams.show, MONITOR, "visible")},
    "/leveret/queues/{vhost}/{name}/pause": {"POST": Route(in_place.pause)},
    "/leveret/queues/{vhost}/{name}/resume": {"POST": Route(in_place.resume)},
    "/leveret/queues/{vhost}/{name}/ready": {"GET": Route(diagnosis.show_ready, ANY, "visible")},
    "/leveret/queues/{vhost}/{name}/unacked": {"GET": Route(diagnosis.show_unacked, ANY, "visible")},
    "/leveret/ready/queues": {"GET": Route(diagnosis.list_ready_queues)},
    "/leveret/unacked/queues": {"GET": Route(diagnosis.list_unacked_queues)},
    "/leveret/unacked/channels": {"GET": Route(diagnosis.list_unacked_channels)},
    "/leveret/queues/{vhost}/{name}/consumers": {"GET": Route(diagnosis.list_consumers, ANY, "visible")},
    "/leveret/queues/{vhost}/{name}/consumers/{tag}": {"DELETE": Route(in_place.cancel_consumer, ADMIN)},
    "/leveret/connections/{name}/throttling": {"GET": Route(diagnosis.show_throttling)},
    "/leveret/alerts": {"GET": Route(alert_rules.list_raised)},
    "/leveret/alert-rules": {"GET": Route(alert_rules.list_rules)},
    "/leveret/alert-rules/{name}": {
        "PUT": Route(alert_rules.put_rule, POLICY),
        "DELETE": Route(alert_rules.delete_rule, POLICY),
    },
    "/leveret/alert-webhooks": {"GET": Route(alert_rules.list_webhooks, POLICY)},
    "/leveret/alert-addresses": {"GET": Route(alert_rules.list_addresses, POLICY)},
    "/leveret/alert-deliveries": {"GET": Route(alert_rules.list_deliveries, POLICY)},
    "/leveret/prometheus-rules": {"GET": Route(alert_rules.download)},
    "/leveret/marks": {"GET": Route(marks.list_marks)},
    "/leveret/marks/{name}": {"PUT": Route(marks.put, POLICY), "DELETE": Route(marks.delete, POLICY)},
    "/leveret/payload-schemas": {"GET": Route(payload_schemas.list_schemas)},
    "/leveret/payload-schemas/{name}": {
        "PUT": Route(payload_schemas.put, POLICY),
        "DELETE": Route(payload_schemas.delete, POLICY),
    },
    "/leveret/decode-payload": {"POST": Route(payload_schemas.decode, reads=True, place=DECODED)},
    "/leveret/audit": {"GET": Route(audit.search, ADMIN)},
    "/leveret/log": {"GET": Route(log.show, ADMIN)},
    "/leveret/events": {"GET": Route(event_stream.subscribe, place=EVENTS)},
    "/leveret/exchanges/{vhost}/{name}/destinations": {"POST": Route(messages.find_destinations, reads=True)},
    "/leveret/flows/{vhost}": {"GET": Route(queues.flows, ANY, "visible")},
    **_listings("/leveret/links", listings.LINKS),
    **_listings("/leveret/transactions", listings.TRANSACTIONS),
    **_listings("/leveret/branches", listings.BRANCHES),
    **_listings("/leveret/leases", listings.LEASES),
    **_listings("/leveret/sinks", listings.SINKS),
    **_listings("/leveret/sink-transactions", listings.SINK_TRANSACTIONS),
    **_listings("/leveret/stream-consumers", listings.STREAM_CONSUMERS),
    "/leveret/change-queues": {"POST": Route(in_place.change_queues)},
    "/leveret/delete": {"POST": Route(in_place.delete_matching)},
    "/leveret/operations/{name}": {"POST": Route(operations.execute, ADMIN, payloads=True)},
    "/vhosts": {"GET": Route(vhosts.list_all)},
    "/vhosts/{vhost}": {
        "GET": Route(vhosts.show, ANY, "visible"),
        "PUT": Route(vhosts.put, ADMIN, "all"),
        "DELETE": Route(vhosts.delete, ADMIN, "all"),
    },
    "/vhosts/{vhost}/deletion/protection": {
        "POST": Route(vhosts.protect, ADMIN, "all"),
        "DELETE": Route(vhosts.unprotect, ADMIN, "all"),
    },
    "/vhosts/{vhost}/permissions": {"GET": Route(users.list_permissions_in_vhost, ADMIN, "all")},
    "/vhosts/{vhost}/topic-permissions": {"GET": Route(users.list_topic_permissions_in_vhost, ADMIN, "all")},
    "/vhosts/{vhost}/connections": {"GET": Route(connections.list_in_vhost, ANY, "visible")},
    "/vhosts/{vhost}/channels": {"GET": Route(connections.list_channels_in_vhost, ANY, "visible")},
    "/users": {"GET": Route(users.list_all, ADMIN)},
    "/users/bulk-delete": {"POST": Route(users.delete_many, ADMIN)},
    "/users/without-permissions": {"GET": Route(users.list_without_permissions, ADMIN)},
    "/users/{user}": {
        "GET": Route(users.show, ADMIN),
        "PUT": Route(users.put, ADMIN),
        "DELETE": Route(users.delete, ADMIN),
    },
    "/users/{user}/permissions": {"GET": Route(users.list_permissions_of_user, ADMIN)},
    "/users/{user}/topic-permissions": {"GET": Route(users.list_topic_permissions_of_user, ADMIN)},
    "/users/{user}/queues": {"GET": Route(queues.list_of_user, ADMIN)},
    "/permissions": {"GET": Route(users.list_permissions, ADMIN)},
    "/permissions/{vhost}/{user}": {
        "GET": Route(users.show_permission, ADMIN, "all"),
        "PUT": Route(users.put_permission, ADMIN, "all"),
        "DELETE": Route(users.delete_permission, ADMIN, "all"),
    },
    "/topic-permissions": {"GET": Route(users.list_topic_permissions, ADMIN)},
    "/topic-permissions/{vhost}/{user}": _TOPIC_PERMISSIONS,
    "/topic-permissions/{vhost}/{user}/{exchange}": _TOPIC_PERMISSIONS,
    "/vhost-limits": {"GET": Route(limits.list_of_vhosts)},
    "/vhost-limits/{vhost}": {"GET": Route(limits.list_of_vhost, ANY, "visible")},
    "/vhost-limits/{vhost}/{name}": {
        "PUT": Route(limits.put_of_vhost, ADMIN),
        "DELETE": Route(limits.delete_of_vhost, ADMIN),
    },
    "/user-limits": {"GET": Route(limits.list_of_users, ADMIN)},
    "/user-limits/{user}": {"GET": Route(limits.list_of_user, ADMIN)},
    "/user-limits/{user}/{name}": {
        "PUT": Route(limits.put_of_user, ADMIN),
        "DELETE": Route(limits.delete_of_user, ADMIN),
    },
    **_policies("/policies", POLICIES, POLICY),
    **_policies("/operator-policies", OPERATOR_POLICIES, ADMIN),
    "/parameters": {"GET": Route(parameters.list_all, POLICY)},
    "/parameters/{component}": {"GET": Route(parameters.list_of_component, POLICY)},
    "/parameters/{component}/{vhost}": {"GET": Route(parameters.list_in_vhost, POLICY)},
    "/parameters/{component}/{vhost}/{name}": {
        "GET": Route(parameters.show, POLICY),
        "PUT": Route(parameters.put, POLICY),
        "DELETE": Route(parameters.delete, POLICY),
    },
    "/global-parameters": {"GET": Route(parameters.list_global, POLICY)},
    "/global-parameters/{name}": {
        "GET": Route(parameters.show_global, POLICY),
        "PUT": Route(parameters.put_global, POLICY),
        "DELETE": Route(parameters.delete_global, POLICY),
    },
    "/exchanges": {"GET": Route(exchanges.list_all)},
    "/exchanges/{vhost}": {"GET": Route(exchanges.list_in_vhost, ANY, "visible")},
    "/exchanges/{vhost}/{name}": {
        "GET": Route(exchanges.show, ANY, "visible"),
        "PUT": Route(exchanges.declare),
        "DELETE": Route(exchanges.delete),
    },
    "/exchanges/{vhost}/{name}/publish": {"POST": Route(messages.publish)},
    "/exchanges/{vhost}/{name}/bindings/source": {"GET": Route(bindings.list_by_source, ANY, "visible")},
    "/exchanges/{vhost}/{name}/bindings/destination": {"GET": Route(bindings.list_by_destination, ANY, "visible")},
    "/queues": {"GET": Route(queues.list_all)},
    "/queues/detailed": {"GET": Route(queues.list_all)},
    "/queues/{vhost}": {"GET": Route(queues.list_in_vhost, ANY, "visible")},
    "/queues/{vhost}/{name}": {
        "GET": Route(queues.show, ANY, "visible"),
        "PUT": Route(queues.declare),
        "DELETE": Route(queues.delete),
    },
    "/queues/{vhost}/{name}/bindings": {"GET": Route(bindings.list_of_queue, ANY, "visible")},
    "/queues/{vhost}/{name}/contents": {"DELETE": Route(queues.purge)},
    "/queues/{vhost}/{name}/get": {"POST": Route(messages.get, payloads=True)},
    "/queues/{vhost}/{name}/actions": {"POST": Route(queues.act, ADMIN)},
    "/queues/quorum/{vhost}/{name}/status": {"GET": Route(queues.show_replicas, MONITOR, "all")},
    "/queues/quorum/{vhost}/{name}/replicas/add": {"POST": Route(queues.change_replicas, ADMIN, "all")},
    "/queues/quorum/{vhost}/{name}/replicas/delete": {"DELETE": Route(queues.change_replicas, ADMIN, "all")},
    "/queues/quorum/replicas/on/{node}/grow": {"POST": Route(queues.change_all_replicas, ADMIN)},
    "/queues/quorum/replicas/on/{node}/shrink": {"DELETE": Route(queues.change_all_replicas, ADMIN)},
    "/bindings": {"GET": Route(bindings.list_all)},
    "/bindings/{vhost}": {"GET": Route(bindings.list_in_vhost, ANY, "visible")},
    "/bindings/{vhost}/e/{source}/{kind}/{destination}": {
        "GET": Route(bindings.list_between, ANY, "visible"),
        "POST": Route(bindings.add),
    },
    "/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}": {
        "GET": Route(bindings.show, ANY, "visible"),
        "DELETE": Route(bindings.delete),
    },
    "/connections": {"GET": Route(connections.list_all)},
    "/connections/{name}": {"GET": Route(connections.show), "DELETE": Route(connections.close)},
    "/connections/{name}/channels": {"GET": Route(connections.list_channels_of_connection)},
    "/connections/{name}/sessions": {"GET": Route(connections.list_sessions)},
    "/connections/username/{user}": {
        "GET": Route(connections.list_of_user),
        "DELETE": Route(connections.close_of_user),
    },
    "/channels": {"GET": Route(connections.list_channels)},
    "/channels/{name}": {"GET": Route(connections.show_channel)},
    "/consumers": {"GET": Route(connections.list_consumers)},
    "/consumers/{vhost}": {"GET": Route(connections.list_consumers_in_vhost, ANY, "visible")},
    "/aliveness-test/{vhost}": {"GET": Route(health.running)},
    "/healthchecks/node": {"GET": Route(health.running)},
    "/healthchecks/node/{node}": {"GET": Route(health.running_node)},
    "/reset": {"DELETE": Route(health.reset, ADMIN)},
    "/reset/{node}": {"DELETE": Route(health.reset, ADMIN)},
    "/feature-flags": {"GET": Route(overview.feature_flags, ADMIN)},
    "/feature-flags/{name}/enable": {"PUT": Route(overview.enable_feature_flag, ADMIN)},
    "/deprecated-features": {"GET": Route(overview.empty)},
    "/deprecated-features/used": {"GET": Route(overview.empty)},
    "/auth/hash_password": {"POST": Route(users.hash_password, ADMIN)},
    "/auth/hash_password/{password}": {"GET": Route(users.hash_password, ADMIN)},
    "/auth/attempts/{node}": _LOGIN_ATTEMPTS,
    "/auth/attempts/{node}/source": _LOGIN_ATTEMPTS,
    "/rebalance/queues": {"POST": Route(overview.rebalance, ADMIN)},
    "/shovels": {"GET": Route(shovels.list_all, MONITOR)},
    "/shovels/{vhost}": {"GET": Route(shovels.list_in_vhost, MONITOR, "visible")},
    "/shovels/vhost/{vhost}/{name}": {
        "GET": Route(shovels.show, MONITOR, "visible"),
        "DELETE": Route(shovels.delete, POLICY),
    },
    "/shovels/vhost/{vhost}/{name}/restart": {"DELETE": Route(shovels.restart, POLICY)},
    "/federation-links": {"GET": Route(overview.empty, MONITOR)},
    "/federation-links/{vhost}": {"GET": Route(overview.empty, MONITOR, "visible")},
    "/federation-links/state/down": {"GET": Route(overview.empty, MONITOR)},
    "/federation-links/{vhost}/state/down": {"GET": Route(overview.empty, MONITOR, "visible")},
    "/traces": {"GET": Route(overview.empty, ADMIN)},
    "/traces/{vhost}": {"GET": Route(overview.empty, ADMIN, "visible")},
    "/trace-files": {"GET": Route(overview.empty, ADMIN)},
    "/top/{node}": {"GET": Route(overview.list_processes, MONITOR)},
    "/top/ets/{node}": {"GET": Route(overview.list_tables, MONITOR)},
    "/stream/connections": {"GET": Route(overview.empty)},
    "/stream/connections/{vhost}": {"GET": Route(overview.empty, ANY, "visible")},
    "/stream/publishers": {"GET": Route(overview.empty)},
    "/stream/publishers/{vhost}": {"GET": Route(overview.empty, ANY, "visible")},
    "/stream/consumers": {"GET": Route(overview.empty)},
    "/stream/consumers/{vhost}": {"GET": Route(overview.empty, ANY, "visible")},
    "/health/checks/alarms": {"GET": Route(health.alarms)},
    "/health/checks/local-alarms": {"GET": Route(health.alarms)},
    "/health/checks/certificate-expiration/{within}/{unit}": {"GET": Route(health.certificate_expiration)},
    "/health/checks/port-listener/{port}": {"GET": Route(health.port_listener)},
    "/health/checks/protocol-listener/{protocol}": {"GET": Route(health.protocol_listener)},
    "/health/checks/virtual-hosts": {"GET": Route(health.running)},
    "/health/checks/node-is-mirror-sync-critical": {"GET": Route(health.single_node)},
    "/health/checks/node-is-quorum-critical": {"GET": Route(health.single_node)},
    "/health/checks/quorum-queues-without-elected-leaders/all-vhosts": {"GET": Route(health.running)},
    "/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}": {"GET": Route(health.running)},
    "/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}": {"GET": Route(health.running, ANY, "visible")},
    "/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}": {
        "GET": Route(health.running, ANY, "visible")
    },
    "/health/checks/is-in-service": {"GET": Route(health.in_service)},
    "/health/checks/ready-to-serve-clients": {"GET": Route(health.ready_to_serve_clients)},
    "/health/checks/below-node-connection-limit": {"GET": Route(health.connection_limit)},
    "/health/checks/reached-target-cluster-size": {"GET": Route(health.running)},
    "/health/checks/metadata-store/initialized": {"GET": Route(health.running)},
    "/health/checks/metadata-store/initialized/with-data": {"GET": Route(health.running)},
}
_DOCUMENT: Final = openapi.Document(ROUTES)
ROUTES["/openapi.json"] = {"GET": Route(_DOCUMENT.show, public=True)}
ROUTES["/docs"] = {"GET": Route(_DOCUMENT.show_page, public=True)}
# RabbitMQ has its documentation there.
ROUTES["/index.html"] = ROUTES["/docs"]


def _tree() -> Node:
    root = Node()
    for path, methods in ROUTES.items():
        node = root
        for part in path.strip("/").split("/"):
            if part.startswith("{"):
                name = part.strip("{}")
                if node.other is None:
                    node.variable, node.other = name, Node()
                assert node.variable == name, path
                node = node.other
            else:
                node = node.children.setdefault(part, Node())
        node.methods = methods
    return root


_ROOT: Final = _tree()


def find(parts: list[str]) -> tuple[dict[str, Route], dict[str, str]] | None:
    """Return the methods of a decoded path and its variables, or None for an unknown path. Fixed texts come first."""
    return _find(_ROOT, parts, 0)


def _find(node: Node, parts: list[str], at: int) -> tuple[dict[str, Route], dict[str, str]] | None:
    if at == len(parts):
        return (node.methods, {}) if node.methods else None
    child = node.children.get(parts[at])
    if child is not None:
        found = _find(child, parts, at + 1)
        if found is not None:
            return found
    if node.other is None:
        return None
    found = _find(node.other, parts, at + 1)
    if found is None:
        return None
    found[1][node.variable] = parts[at]
    return found
