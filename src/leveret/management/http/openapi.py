"""The OpenAPI document of the HTTP API, and a page that shows it.

Paths, methods, variables and rights come from the table of routes, texts from the docstrings of handlers, and schemas from
the structs in `schemas`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from leveret.management.http import (
    alert_rules,
    alerts,
    bindings,
    connections,
    definitions,
    deliveries,
    diagnosis,
    exchanges,
    health,
    history,
    in_place,
    limits,
    listings,
    log,
    log_records,
    marks,
    message_files,
    messages,
    operations,
    overview,
    parameters,
    payload_schemas,
    performance,
    queues,
    roles,
    schemas,
    session,
    shards,
    shovels,
    streams,
    users,
    vhosts,
)
from leveret.management.http.control import Row
from leveret.management.http.identity import ADMIN, ANY, MONITOR, POLICY
from leveret.management.http.lists import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from leveret.management.http.policies import OPERATOR_POLICIES, POLICIES
from leveret.management.http.request import Answer, Request

if TYPE_CHECKING:
    from leveret.management.http.table import Handler, Route

Arguments: TypeAlias = dict[str, Any]

_TEMPLATE: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_HTML: Final = "text/html; charset=utf-8"
_RIGHTS: Final = {
    ANY: "any tag for management",
    ADMIN: "the tag administrator",
    MONITOR: "the tag monitoring or administrator",
    POLICY: "the tag policymaker or administrator, or the role policymaker for the vhost",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """The document's entry about a handler, beside its route.

    Attributes:
        answer: The type of the answer; None for one without a body.
        body: The type of the body of requests; None for none.
        is_list: Whether the answer is a list, which has the parameters of lists.
        status: The status code of success.
        text: The summary; "" for the first line of the handler's docstring.
    """

    answer: type | None = None
    body: type | None = None
    is_list: bool = False
    status: int = 200
    text: str = ""


def _lists(answer: type, *handlers: Handler, text: str = "") -> dict[Handler, Operation]:
    return dict.fromkeys(handlers, Operation(answer, is_list=True, text=text))


def _listing(answer: Any, handlers: listings.Listing, text: str) -> dict[Handler, Operation]:
    return _lists(answer, handlers.list_all, handlers.list_in_vhost, text=text)


# PUT answers 201 for a new object and 204 for a changed one; other changes answer 204.
OPERATIONS: Final[Mapping[Handler, Operation]] = {
    **_lists(schemas.Vhost, vhosts.list_all, text="List the vhosts that the user may see."),
    **_lists(schemas.User, users.list_all, users.list_without_permissions, text="List users."),
    **_lists(
        schemas.Permission,
        users.list_permissions,
        users.list_permissions_in_vhost,
        users.list_permissions_of_user,
        text="List permissions.",
    ),
    **_lists(
        schemas.TopicPermission,
        users.list_topic_permissions,
        users.list_topic_permissions_in_vhost,
        users.list_topic_permissions_of_user,
        users.show_topic_permissions,
        text="List topic permissions.",
    ),
    **_lists(schemas.Queue, queues.list_all, queues.list_in_vhost, queues.list_of_user, text="List queues and streams."),
    **_lists(schemas.Exchange, exchanges.list_all, exchanges.list_in_vhost, text="List exchanges."),
    **_lists(
        schemas.Binding,
        bindings.list_all,
        bindings.list_in_vhost,
        bindings.list_by_source,
        bindings.list_by_destination,
        bindings.list_of_queue,
        bindings.list_between,
        text="List bindings.",
    ),
    **_lists(
        schemas.Connection,
        connections.list_all,
        connections.list_in_vhost,
        connections.list_of_user,
        text="List connections.",
    ),
    **_lists(
        schemas.Channel,
        connections.list_channels,
        connections.list_channels_in_vhost,
        connections.list_channels_of_connection,
        text="List channels.",
    ),
    **_lists(schemas.Consumer, connections.list_consumers, connections.list_consumers_in_vhost, text="List consumers."),
    **_lists(schemas.ConsumerState, diagnosis.list_consumers),
    **_lists(schemas.ReadyQueue, diagnosis.list_ready_queues),
    **_lists(schemas.UnackedQueue, diagnosis.list_unacked_queues),
    **_lists(schemas.UnackedChannel, diagnosis.list_unacked_channels),
    diagnosis.show_ready: Operation(schemas.Ready),
    diagnosis.show_unacked: Operation(schemas.Unacked),
    diagnosis.show_throttling: Operation(schemas.Throttling),
    **_lists(schemas.VhostLimits, limits.list_of_vhosts, limits.list_of_vhost, text="List the limits of vhosts."),
    **_lists(schemas.UserLimits, limits.list_of_users, limits.list_of_user, text="List the limits of users."),
    **_lists(schemas.Policy, POLICIES.list_all, POLICIES.list_in_vhost, text="List policies."),
    **_lists(schemas.Policy, OPERATOR_POLICIES.list_all, OPERATOR_POLICIES.list_in_vhost, text="List operator policies."),
    **_lists(
        schemas.Parameter,
        parameters.list_all,
        parameters.list_of_component,
        parameters.list_in_vhost,
        text="List parameters.",
    ),
    **_lists(schemas.GlobalParameter, parameters.list_global, text="List global parameters."),
    **_listing(schemas.Link, listings.LINKS, "List AMQP 1.0 links, attached and suspended."),
    **_listing(schemas.Transaction, listings.TRANSACTIONS, "List open transactions."),
    **_listing(schemas.Branch, listings.BRANCHES, "List branches of distributed transactions."),
    **_listing(schemas.Lease, listings.LEASES, "List the leases of queues by readers."),
    **_listing(schemas.Sink, listings.SINKS, "List sinks, which publish batches atomically."),
    **_listing(schemas.SinkTransaction, listings.SINK_TRANSACTIONS, "List the open transactions of sinks."),
    **_listing(schemas.StreamConsumer, listings.STREAM_CONSUMERS, "List the named consumers of streams with their lag."),
    **_lists(schemas.Shovel, shovels.list_all, shovels.list_in_vhost, text="List shovels with their states."),
    shovels.show: Operation(schemas.Shovel, text="Return a shovel."),
    shovels.restart: Operation(status=204),
    **_lists(schemas.Node, overview.list_nodes, text="List the node."),
    **_lists(alerts.Alert, alert_rules.list_raised),
    **_lists(schemas.AlertRule, alert_rules.list_rules),
    **_lists(schemas.ChartMark, marks.list_marks),
    marks.put: Operation(body=marks.Mark, status=201),
    **_lists(payload_schemas.ListedSchema, payload_schemas.list_schemas),
    payload_schemas.put: Operation(body=payload_schemas.PayloadSchema, status=201),
    payload_schemas.decode: Operation(payload_schemas.DecodedPayload, payload_schemas.Payload),
    alert_rules.list_webhooks: Operation(list[str]),
    alert_rules.list_addresses: Operation(list[str]),
    **_lists(deliveries.Deliveries, alert_rules.list_deliveries),
    alert_rules.put_rule: Operation(body=alerts.Rule, status=201),
    overview.overview: Operation(schemas.Overview),
    overview.whoami: Operation(schemas.Whoami, text="Return the user of the request."),
    overview.version: Operation(str, text="Return the RabbitMQ version that the API follows."),
    overview.empty: Operation(list[schemas.Json]),
    overview.auth: Operation(schemas.Auth),
    overview.cluster_name: Operation(schemas.ClusterName, text="Return the name of the cluster."),
    overview.set_cluster_name: Operation(body=schemas.ClusterName, status=204),
    overview.show_node: Operation(schemas.Node, text="Return the node."),
    overview.show_relative_memory: Operation(schemas.RelativeMemory),
    overview.show_node_memory: Operation(schemas.NodeMemory, text="Return the memory of the node."),
    **_lists(schemas.RoleOfUser, roles.list_all, roles.list_of_user, text="List roles of users."),
    roles.put: Operation(body=schemas.RolesToSet, status=204),
    roles.delete: Operation(status=204),
    roles.show_own: Operation(schemas.OwnRole),
    roles.list_own: Operation(list[schemas.OwnRole], schemas.OwnNames),
    overview.list_providers: Operation(list[schemas.Provider]),
    session.login: Operation(body=schemas.SignIn, status=204),
    session.show: Operation(schemas.Session),
    session.open_session: Operation(schemas.Session, schemas.SignIn, status=201),
    session.close_session: Operation(status=204),
    session.list_sessions: Operation(list[schemas.OwnSession]),
    session.list_all_sessions: Operation(list[schemas.AnySession]),
    session.end_any_session: Operation(status=204),
    session.end_other_sessions: Operation(status=204),
    session.end_session: Operation(status=204),
    definitions.download: Operation(schemas.Definitions, text="Export definitions."),
    definitions.upload: Operation(body=schemas.Definitions, status=204),
    operations.execute: Operation(schemas.OperationResult, Arguments),
    history.show: Operation(schemas.History),
    history.list_queues: Operation(list[schemas.ConsumerQueue]),
    vhosts.show: Operation(schemas.Vhost, text="Return a vhost."),
    vhosts.put: Operation(body=schemas.VhostBody, status=201),
    vhosts.protect: Operation(status=204, text="Protect a vhost from deletion."),
    vhosts.unprotect: Operation(status=204, text="Allow the deletion of a vhost."),
    users.show: Operation(schemas.User, text="Return a user."),
    users.put: Operation(body=schemas.UserBody, status=201),
    users.delete_many: Operation(body=schemas.UserNames, status=204, text="Delete users."),
    users.hash_password: Operation(schemas.HashedPassword, schemas.Password),
    users.show_permission: Operation(schemas.Permission, text="Return the permissions of a user in a vhost."),
    users.put_permission: Operation(body=schemas.PermissionBody, status=201, text="Set the permissions of a user."),
    users.put_topic_permission: Operation(
        body=schemas.TopicPermissionBody, status=201, text="Set the topic permissions of a user for an exchange."
    ),
    limits.put_of_vhost: Operation(body=schemas.Limit, status=204, text="Set a limit of a vhost."),
    limits.put_of_user: Operation(body=schemas.Limit, status=204, text="Set a limit of a user."),
    POLICIES.show: Operation(schemas.Policy, text="Return a policy."),
    POLICIES.put: Operation(body=schemas.PolicyBody, status=201, text="Set a policy."),
    OPERATOR_POLICIES.show: Operation(schemas.Policy, text="Return an operator policy."),
    OPERATOR_POLICIES.put: Operation(body=schemas.PolicyBody, status=201, text="Set an operator policy."),
    parameters.show: Operation(schemas.Parameter, text="Return a parameter."),
    parameters.put: Operation(body=schemas.Value, status=201, text="Set a parameter."),
    parameters.show_global: Operation(schemas.GlobalParameter, text="Return a global parameter."),
    parameters.put_global: Operation(body=schemas.Value, status=201, text="Set a global parameter."),
    exchanges.show: Operation(schemas.Exchange, text="Return an exchange."),
    exchanges.declare: Operation(body=schemas.ExchangeBody, status=201, text="Declare an exchange."),
    messages.publish: Operation(schemas.Published, schemas.Publish),
    messages.find_destinations: Operation(schemas.Destinations, schemas.DestinationsBody),
    messages.get: Operation(list[schemas.Message], schemas.Get),
    queues.show: Operation(schemas.Queue, text="Return a queue or stream."),
    queues.declare: Operation(body=schemas.QueueBody, status=201, text="Declare a queue or stream."),
    queues.purge: Operation(status=204, text="Purge a queue."),
    queues.act: Operation(body=schemas.Action, status=204),
    bindings.add: Operation(body=schemas.BindingBody, status=201, text="Bind an exchange to a queue or another exchange."),
    bindings.show: Operation(schemas.Binding, text="Return a binding."),
    connections.show: Operation(schemas.Connection, text="Return a connection."),
    connections.list_sessions: Operation(list[schemas.AmqpSession]),
    connections.show_channel: Operation(schemas.Channel, text="Return a channel."),
    **dict.fromkeys(
        (
            health.alarms,
            health.running,
            health.running_node,
            health.single_node,
            health.ready_to_serve_clients,
            health.connection_limit,
            health.certificate_expiration,
        ),
        Operation(schemas.Status),
    ),
    in_place.browse: Operation(schemas.Browsed),
    in_place.search: Operation(schemas.Browsed, schemas.SearchBody),
    in_place.count: Operation(schemas.Counted, schemas.CountBody, text="Count the ready messages that meet conditions."),
    in_place.dead_letters: Operation(
        schemas.DeadLetters, schemas.DeadLettersBody, text="Count the messages of a queue by their last death."
    ),
    in_place.preview: Operation(schemas.Relocated, schemas.TargetBody, text="Count the messages that a move would move."),
    in_place.read_payload: Operation(schemas.Payload),
    message_files.export_selected: Operation(body=schemas.ExportBody),
    **dict.fromkeys(
        (message_files.import_messages, message_files.import_to_exchange, message_files.import_to_queue),
        Operation(schemas.ImportReport),
    ),
    shards.list_all: Operation(list[schemas.Shard]),
    shards.move: Operation(body=schemas.MoveBody, status=204),
    shards.show_cluster: Operation(schemas.Cluster),
    shards.list_nodes: Operation(list[schemas.ClusterNode]),
    shards.drain: Operation(body=schemas.DrainBody, status=204),
    shards.forget: Operation(status=204),
    performance.show: Operation(schemas.Performance),
    log.show: Operation(log_records.LogPage),
    streams.show: Operation(schemas.Stream),
    in_place.move: Operation(schemas.Relocated, schemas.TargetBody, text="Move messages of a queue."),
    in_place.copy: Operation(schemas.Relocated, schemas.TargetBody, text="Copy messages of a queue."),
    in_place.delete: Operation(schemas.Relocated, schemas.SelectBody, text="Delete messages of a queue."),
    in_place.resend: Operation(schemas.Relocated, schemas.ResendBody, text="Edit and resend a message of a queue."),
    in_place.pause: Operation(status=204, text="Pause a queue."),
    in_place.resume: Operation(status=204, text="Resume a queue."),
    in_place.change_queues: Operation(schemas.ChangedQueues, schemas.ChangeQueuesBody),
    in_place.delete_matching: Operation(schemas.DeletedObjects, schemas.DeleteBody),
    health.port_listener: Operation(schemas.Status, text="Check that the broker listens on a port."),
    health.protocol_listener: Operation(schemas.Status, text="Check that the broker listens for a protocol."),
}

_LIST_PARAMETERS: Final = (
    ("page", "integer", "The page, from 1. Without it, the answer is the whole list."),
    ("page_size", "integer", f"Items per page: 1 to {MAX_PAGE_SIZE}, by default {DEFAULT_PAGE_SIZE}."),
    ("name", "string", "With a page: only items whose name contains this text, in either case."),
    ("use_regex", "boolean", "With a page: whether `name` is a regular expression."),
    ("sort", "string", "The key to sort by; dots separate the keys of nested objects."),
    ("sort_reverse", "boolean", "Whether to sort in descending order."),
    ("columns", "string", "The keys to return, with commas."),
)


class Document:
    """The document of a table of routes.

    Args:
        routes: The routes by their paths, which must not change after the first request.
    """

    def __init__(self, routes: Mapping[str, Mapping[str, Route]]) -> None:
        self._routes = routes
        self._made: Row | None = None

    async def show(self, request: Request) -> Answer:
        """Return this document."""
        return Answer(body=self._document(request))

    async def show_page(self, request: Request) -> Answer:
        """Show the operations of the API on a page."""
        style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
        policy = (
            f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = (("content-type", _HTML), ("content-security-policy", policy))
        return Answer(headers=headers, content=_page(self._document(request)).encode())

    def _document(self, request: Request) -> Row:
        if self._made is None:
            self._made = describe(self._routes, request.settings.version, request.settings.path_prefix)
        return self._made


def describe(routes: Mapping[str, Mapping[str, Route]], version: str, path_prefix: str) -> Row:
    """Return the document of routes."""
    types = {operation.answer: None for operation in OPERATIONS.values() if operation.answer is not None}
    types |= {operation.body: None for operation in OPERATIONS.values() if operation.body is not None}
    found, components = msgspec.json.schema_components([*types, schemas.Error, schemas.Rate], ref_template=_TEMPLATE)
    for schema in components.values():
        _expand_rates(schema)
    known = dict(zip(types, found, strict=False))
    paths: Row = {}
    for path, methods in routes.items():
        paths[f"/api{path}"] = {method.lower(): _operation(method, path, route, known) for method, route in methods.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Leveret",
            "version": version,
            "description": "The HTTP API of Leveret, with the paths and keys of RabbitMQ's management API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": path_prefix or "/"}],
        "security": [{"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "Refused": {
                    "description": "The reason why the request failed.",
                    "content": {_JSON: {"schema": {"$ref": _TEMPLATE.format(name="Error")}}},
                }
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def _expand_rates(schema: Row) -> None:
    """Add the rate of each statistic to the schema of an object."""
    properties = schema.get("properties", {})
    for name in [name for name, inner in properties.items() if inner.pop("x-rated", False)]:
        properties[f"{name}_details"] = {"$ref": _TEMPLATE.format(name="Rate")}
        schema["required"].append(f"{name}_details")


def _operation(method: str, path: str, route: Route, known: Mapping[type, Row]) -> Row:
    operation = OPERATIONS.get(route.handler, Operation(status=200 if method == "GET" else 204))
    rights = "no credentials" if route.public else _RIGHTS[route.access]
    found: Row = {
        "operationId": _identifier(method, path),
        "summary": operation.text or _summary(route.handler) or f"{method} {path}",
        "description": f"Requires {rights}.",
        "tags": [path.split("/")[1]],
        "parameters": list(_parameters(path, operation)),
        "responses": _responses(method, route, operation, known),
    }
    if route.public:
        found["security"] = []
    if operation.body is not None and method != "GET":
        found["requestBody"] = {"content": {_JSON: {"schema": known[operation.body]}}}
    return found


def _parameters(path: str, operation: Operation) -> Iterator[Row]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if operation.is_list:
        for name, kind, text in _LIST_PARAMETERS:
            yield {"name": name, "in": "query", "description": text, "schema": {"type": kind}}


def _responses(method: str, route: Route, operation: Operation, known: Mapping[type, Row]) -> Row:
    found: Row = {"default": {"$ref": "#/components/responses/Refused"}}
    success: Row = {"description": "Success."}
    if operation.answer is not None:
        schema = known[operation.answer]
        success["content"] = {_JSON: {"schema": _listed(schema) if operation.is_list else schema}}
    elif method == "GET":
        success["content"] = {"*/*": {"schema": {}}}
    found[str(operation.status)] = success
    if method == "PUT" and operation.status == 201:
        found["204"] = {"description": "The object existed, and has these properties now."}
    if operation.answer is schemas.Status:
        found["503"] = {"description": "The check failed.", "content": success["content"]}
    return found


def _listed(item: Row) -> Row:
    """Return the schema of a list: an array, or a page."""
    array = {"type": "array", "items": item}
    counts = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
    paged = {
        "type": "object",
        "properties": {"items": array, **{name: {"type": "integer"} for name in counts}},
        "required": ["items", *counts],
    }
    return {"oneOf": [array, paged]}


def _identifier(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _summary(handler: Callable[..., object]) -> str:
    return (inspect.getdoc(handler) or "").partition("\n")[0]


_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; }
summary { cursor: pointer; padding: .2rem 0; }
code { font-family: ui-monospace, monospace; }
.method { display: inline-block; min-width: 5rem; font-weight: bold; }
pre { overflow: auto; padding: .7rem; border: 1px solid; border-radius: .3rem; }
"""


def _page(found: Row) -> str:
    """Return the page: all operations by their first part, and all schemas. It needs no script and no other file."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>HTTP API of Leveret</title><style>{_STYLE}</style>"
        f"<h1>HTTP API of Leveret {html.escape(found['info']['version'])}</h1>"
        "<p>This page shows the <a href=openapi.json>OpenAPI document</a> of this broker.</p>"
    ]
    groups: dict[str, list[str]] = {}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_shown(method, path, operation))
    for name in sorted(groups):
        parts += [f"<h2>{html.escape(name)}</h2>", *groups[name]]
    parts.append("<h2 id=schemas>Schemas</h2>")
    for name, schema in sorted(found["components"]["schemas"].items()):
        parts.append(f"<details id='{name}'><summary><code>{name}</code></summary>{_pre(schema)}</details>")
    return "".join(parts)


def _shown(method: str, path: str, operation: Row) -> str:
    summary = html.escape(operation["summary"].replace("`", ""))
    return (
        f"<details><summary><code class=method>{method.upper()}</code><code>{html.escape(path)}</code> {summary}</summary>"
        f"<p>{html.escape(operation['description'])}</p>{_pre(operation)}</details>"
    )


def _pre(value: Row) -> str:
    return f"<pre>{html.escape(msgspec.json.format(msgspec.json.encode(value)).decode())}</pre>"
