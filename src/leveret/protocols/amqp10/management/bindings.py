"""Bindings in the management node.

POST /bindings                                  204
DELETE /bindings/src=X;dstq=Q;key=KEY;args=HASH  204, also if the binding does not exist (dste= for an exchange)
GET /bindings?src=X&dstq=Q&key=KEY              200 and a list of maps; `location` is the path for DELETE
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from leveret.broker.exchanges.base import Binding, freeze
from leveret.protocols import definitions
from leveret.protocols.amqp10.management.messages import Answer, Request, RequestRefused, fields_of, name_in, shown
from leveret.protocols.convert.values import text_of

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

FIELDS: Final[dict[str, type]] = {
    "source": str, "destination_queue": str, "destination_exchange": str, "binding_key": str, "arguments": dict,
}
# By the parameter of the destination: whether it is a queue, and its field in a map.
DESTINATIONS: Final[dict[str, tuple[bool, str]]] = {
    "dstq": (True, "destination_queue"), "dste": (False, "destination_exchange"),
}
# Maximum number of bindings that one reply lists or that are compared with a hash, which limits the time.
MAX_LISTED: Final = 1000
MAX_HASHED: Final = 5000
# Units of work to list a binding, and to compare one.
LISTED: Final = 8
HASHED: Final = 2
# Bindings (as a power of two) scanned in 1 µs.
SEARCH_SHIFT: Final = 4
EXPECTED: Final = "src=EXCHANGE;dstq=QUEUE;key=KEY;args=HASH (or dste=EXCHANGE)"


def bind(connection: Connection, request: Request) -> Answer:
    fields = fields_of(request, "binding", FIELDS)
    source = fields.get("source")
    queue = fields.get("destination_queue")
    exchange = fields.get("destination_exchange")
    key = fields.get("binding_key", "")
    arguments = fields.get("arguments", {})
    if source is not None and queue is not None and exchange is None:
        definitions.bind_queue(connection, queue, source, key, arguments)
    elif source is not None and exchange is not None and queue is None:
        definitions.bind_exchange(connection, exchange, source, key, arguments)
    else:
        raise RequestRefused(400, "a binding was expected to have a source, and a destination_queue or a"
                                  " destination_exchange")
    return Answer(204, kept=True)


def unbind(connection: Connection, request: Request, segment: str) -> Answer:
    parts = dict(part.partition("=")[::2] for part in segment.split(";"))
    wanted = [name for name in DESTINATIONS if name in parts]
    if set(parts) != {"src", "key", "args", *wanted} or len(wanted) != 1:
        raise RequestRefused(400, f"'{segment}' names no binding: expected {EXPECTED}")
    is_queue, _ = DESTINATIONS[wanted[0]]
    source = name_in(parts["src"], "an exchange")
    destination = name_in(parts[wanted[0]], "a destination")
    key = name_in(parts["key"], "a binding key")
    if is_queue:
        definitions.check_queue_binding(connection, destination, source)
    else:
        definitions.check_exchange_binding(connection, destination, source)
    if not parts["args"]:
        found = _without_arguments(connection, source, is_queue, destination, key)
    else:
        found = _between(connection, source, is_queue, destination, key, MAX_HASHED, HASHED)
    for binding in found:
        if hash_of(binding.arguments) == parts["args"]:
            remove = definitions.unbind_queue if is_queue else definitions.unbind_exchange
            remove(connection, destination, source, key, binding.arguments)
            break
    return Answer(204, kept=True)


def show(connection: Connection, request: Request) -> Answer:
    query = request.query
    wanted = [name for name in DESTINATIONS if name in query]
    if "src" not in query or "key" not in query or len(wanted) != 1:
        raise RequestRefused(400, f"the query of '{request.target}' was expected to be src=EXCHANGE&dstq=QUEUE&key=KEY (or"
                                  " dste=EXCHANGE)")
    is_queue, field = DESTINATIONS[wanted[0]]
    source = query["src"]
    destination = query[wanted[0]]
    key = query["key"]
    connection.check_any(source)
    connection.check_any(destination)
    return Answer(200, [
        {"source": text_of(source), field: text_of(destination), "binding_key": text_of(key),
         "arguments": shown(binding.arguments),
         "location": f"/bindings/src={_quoted(source)};{wanted[0]}={_quoted(destination)};key={_quoted(key)}"
                     f";args={hash_of(binding.arguments)}"}
        for binding in _between(connection, source, is_queue, destination, key, MAX_LISTED, LISTED)])


def _own(connection: Connection, source: str, is_queue: bool, destination: str) -> dict[tuple[str, Any], Binding]:
    """Return the bindings from an exchange to a destination."""
    vhost = connection.vhost
    exchange = vhost.exchanges.get(source)
    target: Any = vhost.find_queue(destination) if is_queue else vhost.exchanges.get(destination)
    if exchange is None or target is None:
        return {}
    own: dict[tuple[str, Any], Binding] = exchange.by_destination.get(target, {})
    return own


def _without_arguments(connection: Connection, source: str, is_queue: bool, destination: str, key: str) -> list[Binding]:
    """Return the binding with this key and no arguments, in a list; empty if there is none."""
    binding = _own(connection, source, is_queue, destination).get((key, freeze({})))
    return [] if binding is None else [binding]


def _between(connection: Connection, source: str, is_queue: bool, destination: str, key: str, limit: int,
             work: int) -> list[Binding]:
    """Return the bindings with this key from an exchange to a destination, at `work` units of work each.

    Raises RequestRefused for more than `limit`.
    """
    own = _own(connection, source, is_queue, destination)
    found = [binding for binding in own.values() if binding.routing_key == key]
    connection.broker.work += len(own) >> SEARCH_SHIFT
    if len(found) > limit:
        raise RequestRefused(400, f"{len(found)} bindings lead from exchange '{source}' to '{destination}' with this key;"
                                  f" the management node takes at most {limit}: unbind over AMQP 0-9-1, or list them with"
                                  " `leveret bindings list`")
    connection.broker.work += len(found) * work
    return found


def hash_of(arguments: dict[str, Any]) -> str:
    """Return the hash of binding arguments for a path; empty for no arguments."""
    if not arguments:
        return ""
    digest = hashlib.sha256(repr(freeze(arguments)).encode("utf-8", "surrogateescape")).digest()
    return base64.urlsafe_b64encode(digest[:12]).decode()


def _quoted(name: str) -> str:
    return quote(name, safe="-._~", errors="surrogateescape")
