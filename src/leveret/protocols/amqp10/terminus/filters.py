"""Source filters (messaging section 3.5.8): from the map in an attach to the conditions of a consumer.

The keys of the map are arbitrary; the descriptor of a value defines the kind of filter. Unknown filters are omitted from
the map in the reply.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.leases import reading
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.convert.values import plain
from leveret.selectors import (
    Filter,
    SelectorError,
    application_properties_filter,
    jms_selector,
    properties_filter,
    sql_filter,
)
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Checked, Described, Map, Value

DIRECT_BINDING: Final = "apache.org:legacy-amqp-direct-binding:string"
TOPIC_BINDING: Final = "apache.org:legacy-amqp-topic-binding:string"
HEADERS_BINDING: Final = "apache.org:legacy-amqp-headers-binding:map"
NO_LOCAL: Final = "apache.org:no-local-filter:list"
SELECTOR: Final = "apache.org:selector-filter:string"
SQL: Final = "amqp:sql-filter"
PROPERTIES_FILTER: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES_FILTER: Final = "amqp:application-properties-filter"
# Stream filters, under RabbitMQ's names and Leveret's own, and the 0-9-1 consumer arguments with the same meaning.
STREAM_FILTERS: Final = {
    "rabbitmq:stream-offset-spec": "x-stream-offset",
    "rabbitmq:stream-filter": "x-stream-filter",
    "rabbitmq:stream-match-unfiltered": "x-stream-match-unfiltered",
    "leveret:stream-consumer": "x-stream-consumer",
    "leveret:packed": "x-packed",
    "leveret:packed-until": "x-packed-until",
    "leveret:stream-filter-routing-key": "x-stream-filter-routing-key",
}
# Filters of lease readers.
LEASE_FILTERS: Final = {
    "leveret:lease": reading.LEASE,
    "leveret:lease-epoch": reading.EPOCH,
    "leveret:lease-batch": reading.BATCH,
    "leveret:lease-first": reading.FIRST,
    "leveret:lease-count": reading.COUNT,
}
DESCRIPTORS: Final = {
    0x0000468C00000000: DIRECT_BINDING,
    0x0000468C00000001: TOPIC_BINDING,
    0x0000468C00000002: HEADERS_BINDING,
    0x0000468C00000003: NO_LOCAL,
    0x0000468C00000004: SELECTOR,
    0x120: SQL,
    0x173: PROPERTIES_FILTER,
    0x174: APPLICATION_PROPERTIES_FILTER,
}


class Wanted:
    """The filters of a source.

    filters    conditions for every message
    no_local   whether to exclude messages that this connection published
    binding    binding key of a subscription, None if no filter sets it; `arguments` are those of the binding
    stream     consumer arguments of a stream reader
    lease      consumer arguments of a lease reader
    in_place   the filter map for the reply
    """

    __slots__ = ("arguments", "binding", "filters", "in_place", "lease", "no_local", "stream")

    def __init__(self) -> None:
        self.filters: list[Filter] = []
        self.no_local = False
        self.binding: str | None = None
        self.arguments: FieldTable = {}
        self.stream: FieldTable = {}
        self.lease: FieldTable = {}
        self.in_place: dict[Value, Described] = {}

    def fit_to_queue(self, queue: Queue, browses: bool, settled: bool) -> None:
        """Remove filters that do not apply to this queue.

        A browser of a stream begins with the oldest message. Raises BrokerError for an invalid stream offset or lease
        slice.
        """
        if self.lease:
            queue.check_consumer(self.lease, settled)
            if self.filters or self.no_local:
                raise PreconditionFailed(
                    f"lease '{self.lease[reading.LEASE]!s}' of queue '{queue.name}' does not support other filters"
                )
        if queue.replayable:
            if browses:
                self.stream.setdefault("x-stream-offset", "first")
            queue.check_consumer(self.stream, settled)
        elif self.stream:
            self.stream = {}
            self.in_place = {
                key: value for key, value in self.in_place.items() if str(value.descriptor) not in STREAM_FILTERS
            }


def parse(filters: Checked, is_exchange: bool) -> Wanted:
    """Parse the filter map of a source. Bindings apply to exchanges only.

    Raises LinkRefused with `amqp:invalid-field` for a known filter with an invalid value.
    """
    wanted = Wanted()
    pairs = filters.pairs if isinstance(filters, Map) else list((filters or {}).items())
    for key, value in pairs:
        if not isinstance(value, Described):
            continue
        name = value.descriptor
        if isinstance(name, int):
            name = DESCRIPTORS.get(int(name))
        try:
            known = _add(wanted, str(name), value.value, is_exchange)
        except SelectorError as error:
            raise LinkRefused(
                constants.INVALID_FIELD, f"filter '{key}': {error}", {"invalid-field": "filter", "position": error.position}
            ) from None
        if known:
            wanted.in_place[key] = value
    return wanted


def _add(wanted: Wanted, name: str, value: Value, is_exchange: bool) -> bool:
    """Add a filter. Return whether it is known."""
    if name in (SELECTOR, SQL):
        text = _text(name, value)
        wanted.filters.append(jms_selector(text) if name == SELECTOR else sql_filter(text))
    elif name == PROPERTIES_FILTER:
        wanted.filters.append(properties_filter(_map(name, value)))
    elif name == APPLICATION_PROPERTIES_FILTER:
        wanted.filters.append(application_properties_filter(_map(name, value)))
    elif name == NO_LOCAL:
        wanted.no_local = True
    elif name in STREAM_FILTERS:
        wanted.stream[STREAM_FILTERS[name]] = plain(value)
    elif name in LEASE_FILTERS:
        wanted.lease[LEASE_FILTERS[name]] = plain(value)
    elif name in (DIRECT_BINDING, TOPIC_BINDING) and is_exchange:
        wanted.binding = _text(name, value)
    elif name == HEADERS_BINDING and is_exchange:
        wanted.binding = ""
        wanted.arguments = {str(key): plain(item) for key, item in _map(name, value).items()}
    else:
        return False
    return True


def _text(name: str, value: Value) -> str:
    if not isinstance(value, str):
        raise LinkRefused(constants.INVALID_FIELD, f"{name}: expected a string")
    return str(value)


def _map(name: str, value: Value) -> dict[str, Value]:
    if not isinstance(value, dict):
        raise LinkRefused(constants.INVALID_FIELD, f"{name}: expected a map")
    return {str(key): item for key, item in value.items()}
