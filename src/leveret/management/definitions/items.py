"""The objects of a definitions file. Unknown keys are ignored; optional keys may be null."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from leveret.broker.parameters import Value
from leveret.broker.policies import Definition

# RabbitMQ has written empty tables as empty lists.
Table: TypeAlias = dict[str, Any] | list[Any]


class Item(msgspec.Struct, kw_only=True):
    """Base class of the objects."""


class InVhost(Item, kw_only=True):
    """An object in a vhost, which only files of a single vhost may omit."""

    vhost: str | None = None


class User(Item, kw_only=True):
    name: str
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None
    scram_keys: list[str] | None = None
    tags: list[str] | str | None = None
    limits: Table | None = None
    permissions: dict[str, Any] | None = None


class VhostMetadata(Item, kw_only=True):
    description: str | None = None
    tags: list[str] | str | None = None
    default_queue_type: str | None = None
    protected_from_deletion: bool | None = None


class Vhost(VhostMetadata, kw_only=True):
    """A vhost. RabbitMQ 3 has its properties only in `metadata`, or not at all."""

    name: str
    metadata: VhostMetadata | None = None
    tracing: bool | None = None
    strict: bool | None = None
    qos_global: str | None = None
    consumer_timeout: float | None = None
    max_queues: int | None = None
    max_connections: int | None = None


class Permission(InVhost, kw_only=True):
    user: str
    configure: str
    write: str
    read: str


class TopicPermission(InVhost, kw_only=True):
    user: str
    exchange: str
    write: str
    read: str


class Parameter(InVhost, kw_only=True):
    component: str
    name: str
    value: Value
    user: str | None = None


class GlobalParameter(Item, kw_only=True):
    name: str
    value: Value


class Policy(InVhost, kw_only=True):
    name: str
    pattern: str
    definition: Definition
    priority: int | None = None
    apply_to: str | None = msgspec.field(default=None, name="apply-to")


class Exchange(InVhost, kw_only=True):
    name: str
    type: str
    durable: bool | None = None
    auto_delete: bool | None = None
    internal: bool | None = None
    arguments: Table | None = None
    encoded: str | None = None


class Queue(InVhost, kw_only=True):
    name: str
    type: str | None = None
    durable: bool | None = None
    auto_delete: bool | None = None
    arguments: Table | None = None
    encoded: str | None = None


class Binding(InVhost, kw_only=True):
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str | None = None
    arguments: Table | None = None
    encoded: str | None = None
