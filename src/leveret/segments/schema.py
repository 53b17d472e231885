"""The columns of a segment, which are those of the data source `amqp` too, with the identifiers that Iceberg knows them by.

It evolves by nullable columns at the end only: a file of an older version reads as one whose newer columns are null.
A field identifier is never used for anything else again.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1

# Of what is written. A reader takes this and older ones.
SCHEMA_VERSION: Final = 1

# Keys of the file's metadata.
VERSION_KEY: Final = b"leveret.schema_version"
STREAM_KEY: Final = b"leveret.stream"
FIRST_KEY: Final = b"leveret.first_offset"
LAST_KEY: Final = b"leveret.last_offset"
COUNT_KEY: Final = b"leveret.count"

# By the format of a message: what the column `protocol` says. 0-9 and 0-9-1 have the same content headers.
PROTOCOLS: Final = ("0-9-1", "1.0")
FORMATS: Final = {PROTOCOLS[FORMAT_AMQP0]: FORMAT_AMQP0, "0-9": FORMAT_AMQP0, PROTOCOLS[FORMAT_AMQP1]: FORMAT_AMQP1}

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())
X_DEATH: Final = pa.list_(pa.struct([
    pa.field("queue", pa.string()), pa.field("reason", pa.string()), pa.field("count", pa.int64()),
    pa.field("exchange", pa.string()), pa.field("routing_keys", pa.list_(pa.string())), pa.field("time", TIMESTAMP),
    pa.field("original_expiration", pa.string()),
]))
AMQP10: Final = pa.struct([
    pa.field("message_id_type", pa.string()), pa.field("correlation_id_type", pa.string()), pa.field("to", pa.string()),
    pa.field("group_id", pa.string()), pa.field("group_sequence", pa.int64()), pa.field("reply_to_group_id", pa.string()),
    pa.field("absolute_expiry_time", TIMESTAMP), pa.field("delivery_annotations", pa.string()),
    pa.field("message_annotations", pa.string()), pa.field("application_properties", pa.string()),
    pa.field("footer", pa.string()), pa.field("body_type", pa.string()),
])

# Constant in a file, and not in it: who reads it knows them.
_GIVEN: Final = [pa.field("queue", pa.string()), pa.field("partition", pa.int32())]
_STORED: Final = [
    pa.field("offset", pa.int64(), nullable=False), pa.field("append_time", TIMESTAMP),
    pa.field("protocol", pa.string()), pa.field("exchange", pa.string()), pa.field("routing_key", pa.string()),
    pa.field("redelivered", pa.bool_()), pa.field("delivery_count", pa.int32()), pa.field("content_type", pa.string()),
    pa.field("content_encoding", pa.string()), pa.field("durable", pa.bool_()), pa.field("priority", pa.int16()),
    pa.field("correlation_id", pa.string()), pa.field("reply_to", pa.string()), pa.field("ttl_ms", pa.int64()),
    pa.field("message_id", pa.string()), pa.field("timestamp", TIMESTAMP), pa.field("type", pa.string()),
    pa.field("user_id", pa.string()), pa.field("app_id", pa.string()), pa.field("headers", HEADERS),
    pa.field("headers_json", pa.string()), pa.field("x_death", X_DEATH), pa.field("amqp10", AMQP10),
    pa.field("body", pa.binary(), nullable=False),
]
RAW: Final = [pa.field("raw_header", pa.binary(), nullable=False), pa.field("raw_overlay", pa.binary())]

# What a reader gives, and what a DataFrame has.
TABLE_SCHEMA: Final = pa.schema([*_GIVEN, *_STORED])
COLUMNS: Final = tuple(TABLE_SCHEMA.names)

# Behind the identifiers of the top level, and in this order, come those of what is nested.
_FIRST_NESTED: Final = 100


def _numbered(fields: list[pa.Field]) -> list[pa.Field]:
    """The fields with their identifiers: 1, 2, ... at the top, from 100 on below."""
    nested = _Numbers(_FIRST_NESTED)
    return [_with_id(nested.within(field), number) for number, field in enumerate(fields, 1)]


class _Numbers:
    def __init__(self, first: int) -> None:
        self.next = first

    def take(self, field: pa.Field) -> pa.Field:
        number = self.next
        self.next += 1
        return _with_id(self.within(field), number)

    def within(self, field: pa.Field) -> pa.Field:
        kind = field.type
        if pa.types.is_struct(kind):
            return field.with_type(pa.struct([self.take(kind.field(at)) for at in range(kind.num_fields)]))
        if pa.types.is_map(kind):
            return field.with_type(pa.map_(self.take(kind.key_field), self.take(kind.item_field)))
        if pa.types.is_list(kind):
            return field.with_type(pa.list_(self.take(kind.value_field)))
        return field


def _with_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(number).encode()})


# What is in a file.
FILE_SCHEMA: Final = pa.schema(_numbered([*_STORED, *RAW]))
FILE_COLUMNS: Final = tuple(FILE_SCHEMA.names)
