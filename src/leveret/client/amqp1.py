"""What only AMQP 1.0 has: its messages, types and filters. For senders, receivers and deliveries of connections with
`protocol="1.0"`.

The classes of numbers, symbols and so on are those of `leveret.wire.amqp1.values`, whose docstring says which type of
AMQP each stands for: a plain int is a long, a plain str a string, bytes are binary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from leveret.wire.amqp1.values import (
    Array,
    Byte,
    Char,
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


class Address(str):
    """An address as the peer knows it. Where a queue or a routing key is expected it is used as it stands, whatever the
    option `addresses` says."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A body of one value (a section `amqp-value`)."""

    value: Any


@dataclass(frozen=True, slots=True)
class Sequence:
    """A part of a body: a list of values (a section `amqp-sequence`)."""

    values: list[Any]


MessageId = str | int | bytes | UUID


@dataclass(slots=True, kw_only=True)
class Message:
    """A message of AMQP 1.0 (messaging 3.2). None: it is absent.

    body        bytes or text: one data section, text as UTF-8. A `Value`; a `Sequence`; or a list, either of bytes (several
                data sections) or of `Sequence`
    durable, priority, ttl, first_acquirer, delivery_count      the header; `priority` is 0 to 255, `ttl` in ms
    message_id, ..., reply_to_group_id                          the properties. An id that is an int is a ulong; times are
                in ms since 1970
    application_properties                                      names, and values that are no lists and no maps
    delivery_annotations, annotations, footer                   maps whose keys are symbols; plain text becomes one
    """

    body: Any = b""
    durable: bool = False
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0
    delivery_annotations: Mapping[Any, Any] | None = None
    annotations: Mapping[Any, Any] | None = None
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
    application_properties: Mapping[str, Any] | None = None
    footer: Mapping[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of a source: its descriptor, and what it says. The functions below make those that brokers know."""

    descriptor: str | int
    value: Any

    def described(self) -> Described:
        descriptor = self.descriptor
        return Described(ULong(descriptor) if isinstance(descriptor, int) else Symbol(descriptor), self.value)


Filters = Filter | Iterable[Filter] | Mapping[str, Filter]


def selector(text: str) -> Filter:
    """A selector of JMS, such as `colour = 'red' AND size > 3`."""
    return Filter("apache.org:selector-filter:string", text)


def sql_filter(text: str) -> Filter:
    """An SQL filter, such as `properties.subject LIKE 'a%'`."""
    return Filter("amqp:sql-filter", text)


def no_local() -> Filter:
    """Not what this connection has sent."""
    return Filter("apache.org:no-local-filter:list", [])


def properties_filter(**fields: Any) -> Filter:
    """Properties that must be equal, or begin (`&p:`) or end (`&s:`) with what is given: `subject="&p:order."`."""
    return Filter("amqp:properties-filter", {Symbol(name.replace("_", "-")): value for name, value in fields.items()})


def application_properties_filter(fields: Mapping[str, Any]) -> Filter:
    """As `properties_filter`, of application properties."""
    return Filter("amqp:application-properties-filter", dict(fields))


def filter_map(filters: Filters | None) -> dict[Any, Any] | None:
    """The map of a source. Filters without keys get numbered ones: the descriptor says what they are."""
    if filters is None:
        return None
    if isinstance(filters, Filter):
        filters = [filters]
    if isinstance(filters, Mapping):
        named = dict(filters)
    else:
        named = {f"{_KEY}{number}": filter for number, filter in enumerate(filters)}
    return {Symbol(key): filter.described() if isinstance(filter, Filter) else filter for key, filter in named.items()}


_KEY: Final = "filter-"
