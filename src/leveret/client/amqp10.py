"""Messages, types and filters of AMQP 1.0, for senders, receivers and deliveries of connections with `protocol="1.0"`.

The types are those of `leveret.wire.amqp10.values`, whose docstring gives the AMQP type of each. A plain int is a long, a
plain str a string, and bytes are binary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from leveret.client.properties import PropertyValue
from leveret.wire.amqp10.values import (
    Array,
    Byte,
    Char,
    Checked,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from leveret.wire.amqp10.values import Value as WireValue

__all__ = [
    "Address",
    "Array",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Filter",
    "Float",
    "Int",
    "Map",
    "Message",
    "Sequence",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "Value",
    "application_properties_filter",
    "no_local",
    "properties_filter",
    "selector",
    "sql_filter",
]

# A body to publish: bytes, text, a `Value`, a `Sequence` or a list of these. The encoder validates it.
AnyBody: TypeAlias = Any


class Address(str):
    """An address that is used verbatim in place of a queue or a routing key, regardless of the option `addresses`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A body of one value (an `amqp-value` section)."""

    value: Checked


@dataclass(frozen=True, slots=True)
class Sequence:
    """A body of a list of values (an `amqp-sequence` section)."""

    values: list[WireValue]


MessageId = str | int | bytes | UUID


@dataclass(slots=True, kw_only=True)
class Message:
    """A message of AMQP 1.0 (messaging 3.2). A field that is None is absent.

    Attributes:
        body: Bytes or text (one data section, text as UTF-8), a `Value`, a `Sequence`, or a list of bytes or of `Sequence`
            (several sections).
        durable: The message survives a restart of the server.
        priority: 0 to 255.
        ttl: Milliseconds until the message expires.
        first_acquirer: No other consumer has acquired the message before.
        delivery_count: Number of failed delivery attempts.
        delivery_annotations: Annotations for the next node; keys are symbols, and plain str is converted.
        annotations: Message annotations; keys as above.
        message_id: An int is sent as ulong.
        correlation_id: An int is sent as ulong.
        absolute_expiry_time: Milliseconds since 1970.
        creation_time: Milliseconds since 1970.
        application_properties: Values are neither lists nor maps.
        footer: Keys as for annotations.
    """

    body: AnyBody = b""
    durable: bool = False
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0
    delivery_annotations: Mapping[Any, WireValue] | None = None
    annotations: Mapping[Any, WireValue] | None = None
    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None
    application_properties: Mapping[str, WireValue] | None = None
    footer: Mapping[Any, WireValue] | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of a source. The functions of this module create those that brokers support."""

    descriptor: str | int
    value: Checked

    def described(self) -> Described:
        """Return the filter as a described value."""
        descriptor = self.descriptor
        return Described(ULong(descriptor) if isinstance(descriptor, int) else Symbol(descriptor), self.value)


Filters = Filter | Iterable[Filter] | Mapping[str, Filter]


def selector(text: str) -> Filter:
    """Return a JMS selector, such as `colour = 'red' AND size > 3`."""
    return Filter("apache.org:selector-filter:string", text)


def sql_filter(text: str) -> Filter:
    """Return an SQL filter, such as `properties.subject LIKE 'a%'`."""
    return Filter("amqp:sql-filter", text)


def no_local() -> Filter:
    """Return a filter that excludes messages sent over the same connection."""
    return Filter("apache.org:no-local-filter:list", [])


def properties_filter(**fields: PropertyValue) -> Filter:
    """Return a filter on properties: equal to a value, or with a prefix (`&p:`) or suffix (`&s:`).

    For example, `subject="&p:order."` matches subjects that begin with "order.".
    """
    return Filter("amqp:properties-filter", {Symbol(name.replace("_", "-")): value for name, value in fields.items()})


def application_properties_filter(fields: Mapping[str, WireValue]) -> Filter:
    """Return a filter on application properties; otherwise as `properties_filter`."""
    return Filter("amqp:application-properties-filter", dict(fields))


def filter_map(filters: Filters | None) -> dict[Symbol, WireValue] | None:
    """Return the filter map of a source. Filters without a key get numbered keys; their descriptors identify them."""
    if filters is None:
        return None
    if isinstance(filters, Filter):
        filters = [filters]
    if isinstance(filters, Mapping):
        named = dict(filters)
    else:
        named = {f"{_KEY_PREFIX}{number}": filter for number, filter in enumerate(filters)}
    return {Symbol(key): filter.described() if isinstance(filter, Filter) else filter for key, filter in named.items()}


_KEY_PREFIX: Final = "filter-"
