"""Reading of definitions files, and the head of written ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from leveret._text import decode_text, read_json
from leveret.management.definitions.conversation import Row
from leveret.management.definitions.sections import PERMISSIONS, SECTIONS, USERS

CLUSTER: Final = "cluster"
SINGLE_VHOST: Final = "single_virtual_host"


class InvalidDocument(Exception):
    """A file is not a definitions file. The message says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The broker that a file comes from.

    Attributes:
        rabbitmq_version: The RabbitMQ version to report.
        product_version: Leveret's version.
        node: The name of the node, which is that of the cluster unless it has another one.
    """

    rabbitmq_version: str
    product_version: str
    node: str

    def head(self, vhost: str | None, cluster_name: str) -> Row:
        """Return the keys before the sections."""
        versions = {
            "rabbit_version": self.rabbitmq_version,
            "rabbitmq_version": self.rabbitmq_version,
            "product_name": "Leveret",
            "product_version": self.product_version,
        }
        if vhost is not None:
            return {
                **versions,
                "rabbitmq_definition_format": SINGLE_VHOST,
                "original_vhost_name": vhost,
                "explanation": f"Definitions of virtual host '{vhost}'",
            }
        return {
            **versions,
            "rabbitmq_definition_format": CLUSTER,
            "original_cluster_name": cluster_name,
            "explanation": f"Definitions of cluster '{cluster_name}'",
        }


@dataclass(frozen=True, slots=True)
class Document:
    """The contents of a definitions file: the objects of each section, as decoded from JSON."""

    sections: dict[str, list[object]] = field(default_factory=dict)

    def of(self, section: str) -> list[object]:
        return self.sections.get(section, [])


def read_document(content: bytes, vhost: str | None) -> Document:
    """Read a definitions file.

    Args:
        content: The file.
        vhost: The only vhost to import into; None for files of a cluster.

    Raises:
        InvalidDocument: The file is not JSON, a section is not a list, or the file is of a single vhost.
    """
    try:
        text = decode_text(content)
        if not text.strip():
            return Document()
        found = read_json(text)
    except ValueError as error:
        raise InvalidDocument(f"invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidDocument(f"expected a JSON object, received {_kind(found)}")
    if vhost is None and found.get("rabbitmq_definition_format") == SINGLE_VHOST:
        raise InvalidDocument("the file has the definitions of a single vhost; name the vhost to import them into")
    sections: dict[str, list[object]] = {}
    for section in SECTIONS:
        items = found.get(section.name)
        if items is None or (vhost is not None and not section.in_vhost_file):
            continue
        if not isinstance(items, list):
            raise InvalidDocument(f"'{section.name}' is {_kind(items)}; expected a list")
        sections[section.name] = items
    granted = [permission for user in sections.get(USERS.name, []) for permission in _permissions_of(user)]
    if granted:
        sections[PERMISSIONS.name] = granted + sections.get(PERMISSIONS.name, [])
    return Document(sections)


def _permissions_of(user: object) -> list[object]:
    """Return the permissions that an object of a user has by vhost, as objects of their section."""
    found = value_of(user, "permissions")
    return [
        {**permission, "user": value_of(user, "name"), "vhost": vhost} if isinstance(permission, dict) else permission
        for vhost, permission in (found.items() if isinstance(found, dict) else ())
    ]


def value_of(item: object, key: str) -> Any:
    """Return a value of an object of a file, which may be anything; None if it has none."""
    return item.get(key) if isinstance(item, dict) else None


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
