"""Objects that a migration cannot carry over, or carries over with another meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from leveret.broker.parameters import FEDERATION, OPERATOR_POLICY
from leveret.broker.policies import KEYS
from leveret.cli.migration.source import Row
from leveret.cli.output import counted
from leveret.management.definitions.document import Document, value_of

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
    "rabbitmq_amqp1_0": "other addresses: /queues/NAME and /exchanges/NAME/KEY",
    "rabbitmq_auth_mechanism_ssl": "is not in the definitions; set 'tls.verify' in the configuration of Leveret",
    "rabbitmq_delayed_message_exchange": "messages that wait in exchanges are not moved; keep the source until then",
    "rabbitmq_jms_topic_exchange": "Leveret has no exchange type x-jms-topic",
    "rabbitmq_recent_history_exchange": "the messages that exchanges keep are not moved",
    "rabbitmq_shovel": "static shovels are not in the definitions; set them in the configuration of Leveret",
    "rabbitmq_sharding": "its queues are moved, but Leveret does not declare more when the policy changes",
    "rabbitmq_tracing": "Leveret has a firehose, but no trace files",
}
# Plugins that clients do not see, or whose features Leveret has, too.
_COVERED: Final = frozenset(
    {
        "rabbitmq_auth_backend_cache",
        "rabbitmq_auth_backend_internal_loopback",
        "rabbitmq_consistent_hash_exchange",
        "rabbitmq_federation_management",
        "rabbitmq_federation_prometheus",
        "rabbitmq_management",
        "rabbitmq_management_agent",
        "rabbitmq_prometheus",
        "rabbitmq_random_exchange",
        "rabbitmq_shovel_management",
        "rabbitmq_shovel_prometheus",
        "rabbitmq_stream_common",
        "rabbitmq_stream_management",
        "rabbitmq_top",
        "rabbitmq_web_dispatch",
    }
)
_PEER_DISCOVERY: Final = "rabbitmq_peer_discovery_"
QUORUM: Final = "quorum"
# The types of queues whose messages are moved.
_MOVED_TYPES: Final = ("classic", QUORUM)
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
    sections["vhosts"] = [item for item in document.of("vhosts") if value_of(item, "name") == vhost]
    users = {value_of(item, "user") for item in sections.get("permissions", ())}
    sections["users"] = [item for item in document.of("users") if value_of(item, "name") in users]
    sections["global_parameters"] = []
    return Document(sections)


def findings(document: Document, plugins: Iterable[str], queues: Sequence[Row]) -> Iterator[Finding]:
    """Yield what does not carry over as it is."""
    for plugin in sorted(plugins):
        if plugin not in _COVERED and not plugin.startswith(_PEER_DISCOVERY):
            effect = _PLUGINS.get(plugin, "unknown to Leveret; check whether clients depend on it")
            yield Finding(object=f"plugin {plugin}", effect=effect)
    yield from _of_parameters(document)
    yield from _of_policies(document)
    yield from _of_queues(queues)


def _of_parameters(document: Document) -> Iterator[Finding]:
    for item in document.of("parameters"):
        component, label = value_of(item, "component"), f"'{value_of(item, 'name')}' in vhost '{value_of(item, 'vhost')}'"
        if component in FEDERATION:
            yield Finding(object=f"{component} {label}", effect="imported, without effect")
        elif component == OPERATOR_POLICY:
            yield from _of_policy(f"operator policy {label}", value_of(value_of(item, "value"), "definition"))


def _of_policies(document: Document) -> Iterator[Finding]:
    for item in document.of("policies"):
        label = f"policy '{value_of(item, 'name')}' in vhost '{value_of(item, 'vhost')}'"
        yield from _of_policy(label, value_of(item, "definition"))


def _of_policy(label: str, definition: object) -> Iterator[Finding]:
    known = definition if isinstance(definition, dict) else {}
    ignored = sorted(key for key in known if key in KEYS and not KEYS[key].setting)
    if ignored:
        yield Finding(object=label, effect=f"imported; without effect: {', '.join(ignored)}")


def _of_queues(queues: Sequence[Row]) -> Iterator[Finding]:
    quorum = sum(row["type"] == QUORUM for row in queues)
    if quorum:
        effect = "imported as durable with a delivery limit; replicated only if PostgreSQL stores the messages"
        yield Finding(object=counted(quorum, "quorum queue"), effect=effect)
    for row in queues:
        reason = reason_to_stay(row)
        if reason:
            noun = STREAM if row["type"] == STREAM else "queue"
            yield Finding(object=f"{noun} '{row['name']}' in vhost '{row['vhost']}'", effect=reason)


def reason_to_stay(row: Row) -> str:
    """Return why the messages of a queue are not moved; "" if they are."""
    if row["type"] == STREAM:
        return f"its {counted(row['messages_ready'] or 0, 'message')} are not moved: a stream keeps what is read"
    if row["type"] not in _MOVED_TYPES:
        return f"not moved: its type is '{row['type']}'"
    if row["exclusive"]:
        return "not moved: it is exclusive, and its client declares it again"
    if not row["durable"]:
        return "not moved: it is transient, and its clients declare it again"
    if row["auto_delete"]:
        return "not moved: RabbitMQ deletes it with its messages when the command stops consuming; wait until it is empty"
    return ""


def _in_vhost(item: object, vhost: str) -> bool:
    return bool(value_of(item, "vhost") == vhost)
