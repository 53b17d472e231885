"""Evaluation of filters and selectors on messages, for consumers of all protocols."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from leveret.broker.message import AT_ONCE, Entry, Message, Overlay, expires_at
from leveret.protocols.amqp10.messages import sections_of
from leveret.selectors import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, Filter, MessageView
from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.decode import section_pairs
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.sections import Sections, split
from leveret.wire.amqp10.values import Decimal32, Decimal64, Decimal128, Value

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

# Maximum number of values in a section that filters inspect; AMQP 1.0 messages have no more.
MAX_VALUES: Final = 8192
# Maximum bytes of a section that filters inspect; a larger section counts as empty.
MAX_SECTION: Final = 256 << 10
# Bytes of a section decoded per unit of work, as a power of two.
SECTION_SHIFT: Final = 5
# Units of work to set up a filter, in addition to its evaluation.
FILTER_WORK: Final = 2


class View(MessageView):
    """A message as filters see it: as it would be delivered, with changes made by outcomes and dead-lettering."""

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
        """Set the message and its entry, which is None before the message is queued."""
        overlay = None
        if entry is None:
            self._due = message.expires_at
            self._acquired = self._failed = 0
        else:
            overlay = entry.overlay
            self._due = expires_at(entry)
            self._acquired = entry.acquired_count
            self._failed = entry.delivery_count
        # The overlay may have changed since the last call.
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


# Shared, because several consumers in a row check the same message.
_VIEW: Final = View()


def passes(filters: list[Filter], message: Message, entry: Entry | None, broker: Broker) -> bool:
    """Return whether a message passes all filters, and count the work."""
    view = _VIEW
    view.set_entry(message, entry)
    view.work = FILTER_WORK
    try:
        for filter in filters:
            if not filter.matches(view):
                return False
    finally:
        broker.work += view.work
    return True
