"""Bindings in the management node.

POST /bindings                                  204
DELETE /bindings/src=X;dstq=Q;key=KEY;args=HASH  204, even if the binding does not exist (dste= for an exchange)
GET /bindings?src=X&dstq=Q&key=KEY              200 and a list of maps; `location` is the path for DELETE
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from leveret.broker.values import FieldTable, freeze
from leveret.management.operations.definitions import (
    BINDING_ADD,
    BINDING_COMPARE,
    BINDING_DELETE,
    BINDING_LIST,
    Bindings,
    OneBinding,
)
from leveret.management.operations.operation import perform_now
from leveret.protocols.amqp10.management.messages import (
    Answer,
    Request,
    RequestRefused,
    context_of,
    fields_of,
    name_in,
    shown,
)
from leveret.protocols.convert.values import text_of

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession

FIELDS: Final[dict[str, type]] = {
    "source": str,
    "destination_queue": str,
    "destination_exchange": str,
    "binding_key": str,
    "arguments": dict,
}
# By the parameter for the destination: its kind, and its field in a map.
DESTINATIONS: Final[dict[str, tuple[Literal["queue", "exchange"], str]]] = {
    "dstq": ("queue", "destination_queue"),
    "dste": ("exchange", "destination_exchange"),
}
EXPECTED: Final = "src=EXCHANGE;dstq=QUEUE;key=KEY;args=HASH (or dste=EXCHANGE)"


def bind(connection: VhostSession, request: Request) -> Answer:
    fields = fields_of(request, "binding", FIELDS)
    source = fields.get("source")
    queue = fields.get("destination_queue")
    exchange = fields.get("destination_exchange")
    key = fields.get("binding_key", "")
    arguments = fields.get("arguments", {})
    kind: Literal["queue", "exchange"] = "exchange" if queue is None else "queue"
    destination = exchange if queue is None else queue
    if source is None or destination is None or (queue is not None and exchange is not None):
        raise RequestRefused(400, "a binding requires a source, and a destination_queue or a destination_exchange")
    perform_now(
        BINDING_ADD,
        context_of(connection),
        OneBinding(source=source, destination=destination, kind=kind, routing_key=key, arguments=arguments),
    )
    return Answer(204, kept=True)


def unbind(connection: VhostSession, request: Request, segment: str) -> Answer:
    parts = dict(part.partition("=")[::2] for part in segment.split(";"))
    wanted = [name for name in DESTINATIONS if name in parts]
    if set(parts) != {"src", "key", "args", *wanted} or len(wanted) != 1:
        raise RequestRefused(400, f"'{segment}' is not a binding: expected {EXPECTED}")
    context = context_of(connection)
    kind, _ = DESTINATIONS[wanted[0]]
    source = name_in(parts["src"], "an exchange")
    destination = name_in(parts[wanted[0]], "a destination")
    key = name_in(parts["key"], "a binding key")
    arguments: FieldTable | None = {}
    if parts["args"]:
        candidates = perform_now(
            BINDING_COMPARE, context, Bindings(source=source, destination=destination, kind=kind, routing_key=key)
        )
        arguments = next((table.fields for table in candidates.arguments if hash_of(table.fields) == parts["args"]), None)
    if arguments is not None:
        perform_now(
            BINDING_DELETE,
            context,
            OneBinding(source=source, destination=destination, kind=kind, routing_key=key, arguments=dict(arguments)),
        )
    return Answer(204, kept=True)


def show(connection: VhostSession, request: Request) -> Answer:
    query = request.query
    wanted = [name for name in DESTINATIONS if name in query]
    if "src" not in query or "key" not in query or len(wanted) != 1:
        raise RequestRefused(
            400, f"invalid query in '{request.target}': expected src=EXCHANGE&dstq=QUEUE&key=KEY (or dste=EXCHANGE)"
        )
    kind, field = DESTINATIONS[wanted[0]]
    source = query["src"]
    destination = query[wanted[0]]
    key = query["key"]
    found = perform_now(
        BINDING_LIST, context_of(connection), Bindings(source=source, destination=destination, kind=kind, routing_key=key)
    )
    return Answer(
        200,
        [
            {
                "source": text_of(source),
                field: text_of(destination),
                "binding_key": text_of(key),
                "arguments": shown(table.fields),
                "location": f"/bindings/src={_quoted(source)};{wanted[0]}={_quoted(destination)};key={_quoted(key)}"
                f";args={hash_of(table.fields)}",
            }
            for table in found.arguments
        ],
    )


def hash_of(arguments: FieldTable) -> str:
    """Return the hash of binding arguments for a path; empty without arguments."""
    if not arguments:
        return ""
    digest = hashlib.sha256(repr(freeze(arguments)).encode("utf-8", "surrogateescape")).digest()
    return base64.urlsafe_b64encode(digest[:12]).decode()


def _quoted(name: str) -> str:
    return quote(name, safe="-._~", errors="surrogateescape")
