"""Export of definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.broker.parameters import CLUSTER_NAME
from leveret.management.definitions.conversation import Call, Conversation, Row
from leveret.management.definitions.document import Origin
from leveret.management.definitions.sections import (
    BINDINGS,
    ENCODED,
    EXCHANGES,
    QUEUES,
    RESERVED,
    SECTIONS,
    USERS,
    VHOSTS,
    Entry,
    Key,
)
from leveret.security.passwords import ARGON2ID

# The password of the default user, which every broker without users has.
_DEFAULT_PASSWORD: Final = "guest"


class NoSuchVhost(Exception):
    """The vhost to export or to import into does not exist."""


@dataclass(frozen=True, slots=True)
class Export:
    """Exported definitions.

    Attributes:
        document: The contents of the file.
        without_passwords: The users whose password hash the file does not have, because RabbitMQ does not know argon2id.
    """

    document: Row
    without_passwords: list[str]


def export(origin: Origin, vhost: str | None = None, *, for_rabbitmq: bool = False) -> Conversation[Export]:
    """Export the definitions of a vhost, or of the broker as a whole, sorted.

    Args:
        origin: The broker.
        vhost: The vhost; None for all.
        for_rabbitmq: Whether RabbitMQ imports the file, which refuses other password hashes than its own, and bindings of
            the default exchange, and does not know the types of arguments.

    Raises:
        NoSuchVhost: The vhost does not exist.
    """
    named: list[Row] = yield Call("global_parameters.list", {"prefix": CLUSTER_NAME})
    names = [row["value"] for row in named if row["name"] == CLUSTER_NAME]
    document = origin.head(vhost, names[0] if names else origin.node)
    without_passwords: list[str] = []
    exported: dict[str, set[Key]] = {}
    if vhost is not None:
        document |= yield from _properties(vhost)
    for section in SECTIONS:
        if vhost is not None and not section.in_vhost_file:
            continue
        rows: list[Row] = yield Call(section.list_call, section.list_arguments(vhost))
        if section is USERS and for_rabbitmq:
            yield from _add_default_hash(rows)
        entries = [section.entry_of(row) for row in rows if section.is_exported(row)]
        if section is USERS and for_rabbitmq:
            without_passwords = _remove_hashes(entries)
        elif section is BINDINGS:
            entries = [
                entry for entry in entries if _has_destination(entry, exported) and (entry["source"] or not for_rabbitmq)
            ]
        elif section in (QUEUES, EXCHANGES):
            exported[section.name] = {section.key(entry) for entry in entries}
        entries.sort(key=section.key)
        if for_rabbitmq:
            entries = [{name: value for name, value in entry.items() if name != ENCODED} for entry in entries]
        document[section.name] = entries if vhost is None else [_without_vhost(entry) for entry in entries]
    return Export(document, without_passwords)


def _add_default_hash(rows: list[Row]) -> Conversation[None]:
    """Give the default user a hash in RabbitMQ's format, which makes it a user like any other in the file."""
    for row in rows:
        if row["source"] == "default":
            row |= yield Call("users.hash_password", {"password": _DEFAULT_PASSWORD})


def _remove_hashes(entries: list[Entry]) -> list[str]:
    """Remove what RabbitMQ does not know from users, and return the names of those without a password hash."""
    removed = []
    for entry in entries:
        entry.pop("scram_keys", None)
        if entry["hashing_algorithm"] == ARGON2ID:
            del entry["password_hash"], entry["hashing_algorithm"]
            removed.append(entry["name"])
    return removed


def _has_destination(binding: Entry, exported: dict[str, set[Key]]) -> bool:
    """Return whether the destination of a binding is exported or predeclared."""
    vhost, name = binding["vhost"], binding["destination"]
    if binding["destination_type"] == "queue":
        return (vhost, name) in exported[QUEUES.name]
    return name.startswith(RESERVED) or (vhost, name) in exported[EXCHANGES.name]


def _without_vhost(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "vhost"}


def _properties(vhost: str) -> Conversation[Entry]:
    """Return the properties of a vhost in the file of that vhost."""
    rows: list[Row] = yield Call(VHOSTS.list_call, {})
    found = next((row for row in rows if row["name"] == vhost), None)
    if found is None:
        raise NoSuchVhost(f"vhost '{vhost}' does not exist")
    entry = VHOSTS.entry_of(found)
    limits: list[Row] = yield Call("vhost_limits.list", {"vhost": vhost})
    return {
        "metadata": entry["metadata"],
        "description": entry["description"],
        "default_queue_type": entry["default_queue_type"],
        "limits": limits[0]["value"] if limits else {},
    }
