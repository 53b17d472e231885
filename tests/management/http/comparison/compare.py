"""The differences between two answers to the same request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from tests.management.http.client import Reply

# Headers that clients read.
HEADERS: Final = (
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "allow",
    "cache-control",
    "content-disposition",
    "content-type",
    "location",
    "vary",
    "www-authenticate",
)
_SETS: Final = ("allow", "vary")
# Numbers that depend only on the requests. Of the others, only the type is compared.
EXACT: Final = frozenset(
    {
        "consumers",
        "filtered_count",
        "item_count",
        "max-channels",
        "max-connections",
        "max-length",
        "max-queues",
        "message_count",
        "missing",
        "page",
        "page_count",
        "page_size",
        "payload_bytes",
        "prefetch_count",
        "priority",
        "total_count",
        "x-max-length",
        "x-message-ttl",
    }
)
# Texts that depend on the machine, on time or on the product.
VOLATILE: Final = frozenset(
    {"consumer_tag", "description", "explanation", "idle_since", "os_pid", "password_hash", "reason"}
)
# Keys whose keys depend on the machine or the client.
OPEN: Final = frozenset({"client_properties", "cluster_state", "explanation"})
# Whether the list of samples includes the oldest one depends on the moment of the request.
SAMPLES: Final = "samples"
# Keys that identify the items of a list.
_IDENTITY: Final = (
    "vhost",
    "name",
    "user",
    "component",
    "exchange",
    "source",
    "destination",
    "properties_key",
    "redelivered",
)


_CONNECTION: Final = re.compile(rb"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+")


def differences(ours: Reply, theirs: Reply, nodes: tuple[str, str]) -> Iterator[str]:
    """Yield the differences of our answer from theirs: `what: their value | our value`."""
    if ours.status != theirs.status:
        yield f"status: {theirs.status} | {ours.status}"
        return
    for name in HEADERS:
        expected_header, header = _header(theirs, name), _header(ours, name)
        if expected_header != header:
            yield f"header {name}: {expected_header} | {header}"
    expected, found = _body(theirs, nodes[1]), _body(ours, nodes[0])
    if isinstance(expected, bytes) or isinstance(found, bytes):
        if expected != found:
            yield f"body: {_shown(expected)} | {_shown(found)}"
        return
    yield from _compare("body", "", expected, found)


def _header(reply: Reply, name: str) -> str | None:
    value = reply.headers.get(name)
    return value if value is None or name not in _SETS else ", ".join(sorted(value.split(", ")))


def _body(reply: Reply, node: str) -> Any:
    content = _CONNECTION.sub(b"CONNECTION", reply.content.replace(node.encode(), b"NODE"))
    try:
        return json.loads(content)
    except ValueError:
        return content


def _shown(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:60] + "..."


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {dict: "object", list: "list", str: "string", type(None): "null"}[type(value)]


def _compare(where: str, key: str, theirs: Any, ours: Any) -> Iterator[str]:
    if key == "reason":
        return
    if _kind(theirs) != _kind(ours):
        yield f"{where}: {_shown(theirs)} | {_shown(ours)}"
    elif key in OPEN:
        return
    elif isinstance(theirs, dict):
        for name in sorted(theirs.keys() - ours.keys()):
            yield f"{where}.{name}: {_shown(theirs[name])} | missing"
        for name in sorted(ours.keys() - theirs.keys()):
            yield f"{where}.{name}: missing | {_shown(ours[name])}"
        for name in sorted(theirs.keys() & ours.keys()):
            yield from _compare(f"{where}.{name}", name, theirs[name], ours[name])
    elif isinstance(theirs, list):
        if key == SAMPLES and abs(len(theirs) - len(ours)) <= 1:
            common = min(len(theirs), len(ours))
            theirs, ours = theirs[:common], ours[:common]
        yield from _compare_lists(where, theirs, ours)
    elif theirs != ours and (key in EXACT if _kind(theirs) == "number" else key not in VOLATILE):
        yield f"{where}: {_shown(theirs)} | {_shown(ours)}"


def _compare_lists(where: str, theirs: list[Any], ours: list[Any]) -> Iterator[str]:
    if not all(isinstance(item, dict) for item in theirs + ours):
        if theirs != ours:
            yield f"{where}: {_shown(theirs)} | {_shown(ours)}"
        return
    expected, found = _named(theirs), _named(ours)
    for name in sorted(expected.keys() - found.keys()):
        yield f"{where}[{name}]: {_shown(expected[name])} | missing"
    for name in sorted(found.keys() - expected.keys()):
        yield f"{where}[{name}]: missing | {_shown(found[name])}"
    for name in sorted(expected.keys() & found.keys()):
        yield from _compare(f"{where}[]", "", expected[name], found[name])


def _named(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the items by what identifies them, and by their number among those that are equal in this."""
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        identity = " ".join(str(item[key]) for key in _IDENTITY if key in item)
        number = 0
        while f"{identity}#{number}" in found:
            number += 1
        found[f"{identity}#{number}"] = item
    return found
