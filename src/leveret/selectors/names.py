"""The fields that the names in selectors refer to.

JMS names (Jakarta Messaging 3.1 sections 3.8.1.1 and 3.5.9) refer to the same fields as in Qpid JMS, with the same values.
`amqp.FIELD` are the names of the Apache selector filter, and `amqp.annotation.NAME` is a message annotation. All other
names are application properties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.selectors.message import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES

# Conversions of a value before it is compared.
PLAIN: Final = 0
DELIVERY_MODE: Final = 1  # durable, as 'PERSISTENT' or 'NON_PERSISTENT'
MESSAGE_ID: Final = 2  # as a JMSMessageID, which is a string
CORRELATION_ID: Final = 3
TEXT: Final = 4  # bytes as UTF-8, uuids in their usual form
DELIVERY_COUNT: Final = 5  # failed attempts, as the number of the current one

ANNOTATION_PREFIX: Final = "amqp.annotation."

# Long and short forms of the sections of `amqp:sql-filter`, and the long form of each.
SECTIONS: Final = {
    "header": "header",
    "h": "header",
    "message_annotations": "message_annotations",
    "m": "message_annotations",
    "properties": "properties",
    "p": "properties",
    "application_properties": "application_properties",
    "a": "application_properties",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A field of a message, and the default if the message does not have it."""

    section: int
    name: str
    reading: int = PLAIN
    default: bool | int | None = None


_HEADER_FIELDS: Final = {
    "durable": Target(HEADER, "durable", default=False),
    "priority": Target(HEADER, "priority", default=4),
    "ttl": Target(HEADER, "ttl"),
    "first_acquirer": Target(HEADER, "first-acquirer", default=False),
    "delivery_count": Target(HEADER, "delivery-count", default=0),
}

PROPERTIES_FIELDS: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
_PROPERTIES_FIELDS: Final = {name.replace("-", "_"): Target(PROPERTIES, name) for name in PROPERTIES_FIELDS}

_DELIVERY_MODE: Final = Target(HEADER, "durable", DELIVERY_MODE, False)

_JMS_NAMES: Final = {
    "JMSDeliveryMode": _DELIVERY_MODE,
    "JMSPriority": _HEADER_FIELDS["priority"],
    "JMSMessageID": Target(PROPERTIES, "message-id", MESSAGE_ID),
    "JMSTimestamp": Target(PROPERTIES, "creation-time"),
    "JMSCorrelationID": Target(PROPERTIES, "correlation-id", CORRELATION_ID),
    "JMSType": Target(PROPERTIES, "subject"),
    "JMSXUserID": Target(PROPERTIES, "user-id", TEXT),
    "JMSXGroupID": Target(PROPERTIES, "group-id"),
    "JMSXGroupSeq": Target(PROPERTIES, "group-sequence"),
    "JMSXDeliveryCount": Target(HEADER, "delivery-count", DELIVERY_COUNT, 0),
    "JMS_AMQP_REPLY_TO_GROUP_ID": Target(PROPERTIES, "reply-to-group-id"),
    "JMS_AMQP_TTL": Target(HEADER, "ttl"),
}
# Headers that JMS forbids in selectors.
_FORBIDDEN: Final = frozenset({"JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime"})
_ALLOWED: Final = (
    "a header that selectors may use: JMSDeliveryMode, JMSPriority, JMSMessageID, JMSTimestamp, JMSCorrelationID or JMSType"
)

_AMQP_NAMES: Final = {
    **{f"amqp.{name}": target for name, target in (_HEADER_FIELDS | _PROPERTIES_FIELDS).items()},
    "amqp.delivery_mode": _DELIVERY_MODE,
    "amqp.message_id": Target(PROPERTIES, "message-id", TEXT),
    "amqp.correlation_id": Target(PROPERTIES, "correlation-id", TEXT),
    "amqp.user_id": Target(PROPERTIES, "user-id", TEXT),
}


def jms_target(name: str) -> Target:
    """Return the field of an identifier in a JMS selector. Raises `LookupError`, which says what was expected."""
    if (target := _JMS_NAMES.get(name) or _AMQP_NAMES.get(name)) is not None:
        return target
    if name in _FORBIDDEN:
        raise LookupError(_ALLOWED)
    if name.startswith(ANNOTATION_PREFIX):
        return Target(MESSAGE_ANNOTATIONS, name.removeprefix(ANNOTATION_PREFIX))
    return Target(APPLICATION_PROPERTIES, name)


def sql_target(name: str, section: str) -> Target:
    """Return the field of an identifier in an `amqp:sql-filter`. Raises `LookupError`, which says what was expected.

    Args:
        name: The name.
        section: The long form of the section, or "".
    """
    if section == "header":
        fields = _HEADER_FIELDS
    elif section == "properties":
        fields = _PROPERTIES_FIELDS
    else:
        return Target(MESSAGE_ANNOTATIONS if section == "message_annotations" else APPLICATION_PROPERTIES, name)
    if (target := fields.get(name)) is None:
        raise LookupError(f"a field of {section}: {', '.join(fields)}")
    return target
