"""Filters of sources (messaging section 3.5.8): from the map of an attach to the conditions of a consumer.

The keys of the map are arbitrary; the descriptor of a value defines the kind of filter. Unknown filters are omitted from
the map in the reply.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.leases import reading
from leveret.broker.message import AT_ONCE, Entry, Message, Overlay
from leveret.broker.queues.classic.expiry import expires_at
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.messages import sections_of
from leveret.protocols.convert.values import plain
from leveret.selectors import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    Filter,
    MessageView,
    SelectorError,
    application_properties_filter,
    jms_selector,
    properties_filter,
    sql_filter,
)
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.decode import section_pairs
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.sections import Sections, split
from leveret.wire.amqp10.values import Checked, Decimal32, Decimal64, Decimal128, Described, Map, Value

DIRECT_BINDING: Final = "apache.org:legacy-amqp-direct-binding:string"
TOPIC_BINDING: Final = "apache.org:legacy-amqp-topic-binding:string"
HEADERS_BINDING: Final = "apache.org:legacy-amqp-headers-binding:map"
NO_LOCAL: Final = "apache.org:no-local-filter:list"
SELECTOR: Final = "apache.org:selector-filter:string"
SQL: Final = "amqp:sql-filter"
PROPERTIES_FILTER: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES_FILTER: Final = "amqp:application-properties-filter"
# Filters of streams, RabbitMQ's names and our own; the consumer arguments of 0-9-1 define their meaning.
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


# Maximum number of values in a section that filters inspect; AMQP 1.0 messages have no more.
MAX_VALUES: Final = 8192


class Wanted:
    """The filters of a source.

    filters    conditions for every message
    no_local   whether to exclude messages that this connection published
    binding    of a subscription: its key, None if no filter sets it; arguments of the binding
    stream     of a stream reader: the arguments of its consumer
    lease      of a lease reader: the arguments of its consumer
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
        self.in_place: dict[Any, Described] = {}

    def fit_to_queue(self, queue: Queue, browses: bool, settled: bool) -> None:
        """Remove filters that do not apply to this queue.

        A browser of a stream begins with the oldest message. Raises BrokerError for an invalid stream offset or lease
        slice.
        """
        if self.lease:
            reading.check(queue, self.lease, settled)
            if self.filters or self.no_local:
                raise PreconditionFailed(
                    f"lease '{self.lease[reading.LEASE]!s}' of queue '{queue.name}' is read without other filters"
                )
        if queue.replayable:
            if browses:
                self.stream.setdefault("x-stream-offset", "first")
            queue.check_consumer(self.stream)
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
        raise LinkRefused(constants.INVALID_FIELD, f"{name}: a string is expected")
    return str(value)


def _map(name: str, value: Value) -> dict[str, Value]:
    if not isinstance(value, dict):
        raise LinkRefused(constants.INVALID_FIELD, f"{name}: a map is expected")
    return {str(key): item for key, item in value.items()}


# Maximum bytes of a section that filters inspect; a larger section counts as empty.
MAX_SECTION: Final = 256 << 10
# Bytes of a section (as a power of two) that are decoded for one unit of work.
SECTION_SHIFT: Final = 5


class View(MessageView):
    """A message as filters see it: as it would be delivered, with the changes by outcomes and dead-lettering."""

    __slots__ = (
        "_acquired",
        "_annotations",
        "_application",
        "_due",
        "_failed",
        "_message",
        "_overlay",
        "_properties",
        "_sections",
    )

    def __init__(self) -> None:
        super().__init__()
        self._message: Message | None = None
        self._overlay: Overlay | None = None
        # From the entry: expiry, delivery attempts, failed attempts.
        self._due = 0
        self._acquired = 0
        self._failed = 0
        self._sections: Sections | None = None
        self._annotations: dict[str, Value | Decimal] | None = None
        self._application: dict[str, Value | Decimal] | None = None
        self._properties: Properties | None = None

    def set_entry(self, message: Message, entry: Entry | None) -> None:
        """Set the message and its entry; None if it has no entry yet."""
        overlay = None
        if entry is None:
            self._due = message.expires_at
            self._acquired = self._failed = 0
        else:
            overlay = entry.overlay
            self._due = expires_at(entry)
            self._acquired = entry.acquired_count
            self._failed = entry.delivery_count
        # The overlay may have changed since.
        if message is not self._message or overlay is not None or self._overlay is not None:
            self._message = message
            self._overlay = overlay
            self._sections = None
            self._annotations = None
            self._application = None
            self._properties = None

    def get(self, section: int, name: str) -> object:
        if section == HEADER:
            return self._header(name)
        if section == MESSAGE_ANNOTATIONS:
            annotations = self._annotations
            if annotations is None:
                sections = self._split()
                self.work += (sections.message_annotations_end - sections.message_annotations) >> SECTION_SHIFT
                annotations = _map_at(sections, sections.message_annotations, sections.message_annotations_end)
                self._annotations = annotations
            return annotations.get(name)
        if section == APPLICATION_PROPERTIES:
            application = self._application
            if application is None:
                sections = self._split()
                self.work += (sections.application_properties_end - sections.application_properties) >> SECTION_SHIFT
                application = _map_at(sections, sections.application_properties, sections.application_properties_end)
                self._application = application
            return application.get(name)
        properties = self._properties
        if properties is None:
            properties = _properties_at(self._split())
            self._properties = properties
        return getattr(properties, name.replace("-", "_"), None)

    def _header(self, name: str) -> object:
        message = self._message
        assert message is not None
        if name == "durable":
            return message.persistent
        if name == "priority":
            return message.priority if message.priority >= 0 else None
        if name == "ttl" and self._due:
            return max(self._due - self.now(), 0) if self._due > AT_ONCE else 0
        if name == "first-acquirer":
            return self._acquired == 0
        if name == "delivery-count":
            return self._failed
        return None

    def _split(self) -> Sections:
        sections = self._sections
        if sections is None:
            message = self._message
            assert message is not None
            try:
                sections = split(sections_of(message, self._overlay))
            except DecodeError:
                sections = split(b"")
            self._sections = sections
        return sections


def _map_at(sections: Sections, begin: int, end: int) -> dict[str, Value | Decimal]:
    if begin < 0 or end - begin > MAX_SECTION:
        return {}
    try:
        pairs = section_pairs(sections.data, begin, end, MAX_VALUES)
    except DecodeError:
        return {}
    return {str(key): _number(item) for key, item in pairs if isinstance(key, str)}


def _number(value: Value) -> Value | Decimal:
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        number: Decimal = value.decimal()
        return number
    return value


def _properties_at(sections: Sections) -> Properties:
    if sections.properties >= 0:
        try:
            found = decode_composite(sections.data, sections.properties, sections.properties_end)[0]
        except DecodeError:
            return Properties()
        if isinstance(found, Properties):
            return found
    return Properties()


# Several consumers in a row check the same message.
VIEW: Final = View()
