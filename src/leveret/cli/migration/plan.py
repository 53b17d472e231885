"""Objects that a migration cannot carry over, or carries over with another meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from leveret.broker.parameters import SHOVEL, UPSTREAM, UPSTREAM_SET
from leveret.broker.policies import KEYS
from leveret.cli.migration.source import Row
from leveret.management.definitions.document import Document

# Plugins whose clients or features Leveret does not have, and what to do instead.
_PLUGINS: Final = {
    "rabbitmq_mqtt": "Leveret does not speak MQTT",
    "rabbitmq_web_mqtt": "Leveret does not speak MQTT",
    "rabbitmq_stomp": "Leveret does not speak STOMP",
    "rabbitmq_web_stomp": "Leveret does not speak STOMP",
    "rabbitmq_stream": "Leveret serves streams over AMQP 0-9-1 and 1.0, not over RabbitMQ's stream protocol",
    "rabbitmq_federation": "Leveret has no federation; use shovels",
    "rabbitmq_auth_backend_ldap": "Leveret has no LDAP; it has users of its own and OAuth 2",
    "rabbitmq_auth_backend_http": "Leveret has no HTTP authentication backend; it has users of its own and OAuth 2",
    "rabbitmq_auth_backend_oauth2": "is not in the definitions; set 'auth.oauth' in the configuration of Leveret",
    "rabbitmq_event_exchange": "Leveret publishes other events, to the exchange amq.leveret.events",
}
QUORUM: Final = "quorum"
STREAM: Final = "stream"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An object that does not carry over as it is.

    Attributes:
        object: What it is.
        effect: What happens.
    """

    object: str
    effect: str


def only_vhost(document: Document, vhost: str | None) -> Document:
    """Return the definitions of a vhost with its users, or all of them if None."""
    if vhost is None:
        return document
    sections = {name: [item for item in items if _in_vhost(item, vhost)] for name, items in document.sections.items()}
    sections["vhosts"] = [item for item in document.of("vhosts") if _value(item, "name") == vhost]
    users = {_value(item, "user") for item in sections.get("permissions", ())}
    sections["users"] = [item for item in document.of("users") if _value(item, "name") in users]
    sections["global_parameters"] = []
    return Document(sections)


def without_shovels(document: Document) -> Document:
    """Return the definitions without shovels, which would run on both brokers."""
    kept = [item for item in document.of("parameters") if _value(item, "component") != SHOVEL]
    return Document({**document.sections, "parameters": kept})


def findings(document: Document, plugins: Iterable[str], queues: Sequence[Row]) -> Iterator[Finding]:
    """Yield what does not carry over as it is."""
    for plugin in sorted(plugins):
        if plugin in _PLUGINS:
            yield Finding(object=f"plugin {plugin}", effect=_PLUGINS[plugin])
    yield from _of_parameters(document)
    yield from _of_policies(document)
    yield from _of_queues(queues)


def _of_parameters(document: Document) -> Iterator[Finding]:
    for item in document.of("parameters"):
        component, label = _value(item, "component"), f"'{_value(item, 'name')}' in vhost '{_value(item, 'vhost')}'"
        if component == SHOVEL:
            effect = "not imported, because it would run on both brokers; set it when the source has stopped"
            yield Finding(object=f"shovel {label}", effect=effect)
        elif component in (UPSTREAM, UPSTREAM_SET):
            yield Finding(object=f"{component} {label}", effect="imported, without effect")


def _of_policies(document: Document) -> Iterator[Finding]:
    for item in document.of("policies"):
        definition = _value(item, "definition")
        ignored = sorted(key for key in definition if key in KEYS and not KEYS[key].setting) if definition else []
        if ignored:
            label = f"policy '{_value(item, 'name')}' in vhost '{_value(item, 'vhost')}'"
            yield Finding(object=label, effect=f"imported; without effect: {', '.join(ignored)}")


def _of_queues(queues: Sequence[Row]) -> Iterator[Finding]:
    quorum = sum(row["type"] == QUORUM for row in queues)
    if quorum:
        effect = "become durable queues with a delivery limit; PostgreSQL replicates them if it stores the messages"
        yield Finding(object=f"{quorum} quorum queues", effect=effect)
    for row in queues:
        label = f"queue '{row['name']}' in vhost '{row['vhost']}'"
        if row["type"] == STREAM:
            effect = f"its {row.get('messages_ready', 0)} messages are not moved: a stream keeps what is read"
            yield Finding(object=f"stream '{row['name']}' in vhost '{row['vhost']}'", effect=effect)
        elif row.get("exclusive"):
            yield Finding(object=label, effect="not moved: it is exclusive, and its client declares it again")
        elif not row["durable"]:
            yield Finding(object=label, effect="not moved: it is transient, and its clients declare it again")


def movable(row: Row) -> bool:
    """Return whether the messages of a queue are moved."""
    return row["type"] != STREAM and not row.get("exclusive") and bool(row["durable"])


def _in_vhost(item: object, vhost: str) -> bool:
    return bool(_value(item, "vhost") == vhost)


def _value(item: object, key: str) -> Any:
    """Return a value of an object of a file, which may be anything."""
    return item.get(key) if isinstance(item, dict) else None
