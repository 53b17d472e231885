"""Names that both directions of the conversion agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from leveret.wire.amqp10.values import Timestamp, ULong, Value

# The `type` of a content whose body is encoded sections of AMQP 1.0 that are no data.
AMQP_ENCODED: Final = "amqp-1.0"
# A header that says what a body was that is not data: a string.
AMQP_BODY: Final = "x-opt-amqp-body"
STRING_BODY: Final = "string"
# The annotation of a header that application-properties cannot hold.
NESTED: Final = "x-opt-header-"
# RabbitMQ's addresses of queues (v2).
QUEUES: Final = "/queues/"

# Fields of properties that 0-9-1 has no property for: the header, the field, and the type of its value.
FIELDS: Final[tuple[tuple[str, str, type], ...]] = (
    ("x-opt-to", "to", str),
    ("x-opt-subject", "subject", str),
    ("x-opt-absolute-expiry-time", "absolute_expiry_time", Timestamp),
    ("x-opt-group-sequence", "group_sequence", int),
    ("x-opt-reply-to-group-id", "reply_to_group_id", str),
)

# How ids are made of texts again, by what x-opt-message-id-type and x-opt-correlation-id-type say.
ID_TYPES: Final[dict[str, Callable[[str], Value]]] = {
    "uuid": UUID,
    "ulong": lambda value: ULong(int(value)),
    "binary": bytes.fromhex,
}

# The headers that say it.
ID_MARKS: Final = ("x-opt-message-id-type", "x-opt-correlation-id-type")
