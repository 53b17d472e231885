"""Names used by both directions of the conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from leveret.wire.amqp10.values import Timestamp, ULong, Value

# The `type` of a message whose body consists of encoded 1.0 sections other than data.
AMQP_ENCODED: Final = "amqp-1.0"
# Header that marks a body converted from another type than data, and its value for a string.
AMQP_BODY: Final = "x-opt-amqp-body"
STRING_BODY: Final = "string"
# Prefix of the annotation for a header that application-properties cannot contain.
NESTED: Final = "x-opt-header-"
# Prefix of queue addresses in RabbitMQ's address format v2.
QUEUES: Final = "/queues/"

# Fields of the properties section without a 0-9-1 counterpart: header, field, and type of the value.
FIELDS: Final[tuple[tuple[str, str, type], ...]] = (
    ("x-opt-to", "to", str),
    ("x-opt-subject", "subject", str),
    ("x-opt-absolute-expiry-time", "absolute_expiry_time", Timestamp),
    ("x-opt-group-sequence", "group_sequence", int),
    ("x-opt-reply-to-group-id", "reply_to_group_id", str),
)

# Decoders of ids by the value of x-opt-message-id-type or x-opt-correlation-id-type.
ID_TYPES: Final[dict[str, Callable[[str], Value]]] = {
    "uuid": UUID,
    "ulong": lambda value: ULong(int(value)),
    "binary": bytes.fromhex,
}

# Headers with the original type of an id.
ID_MARKS: Final = ("x-opt-message-id-type", "x-opt-correlation-id-type")
