"""The columns of segments and of the data source `amqp`, with their Iceberg field ids.

The schema evolves only by appending nullable columns: in a file of an older version the newer columns read as null. A field
id is never reused.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

# Version that is written. Readers accept it and older ones.
SCHEMA_VERSION: Final = 1

# Keys of the file's metadata.
VERSION_KEY: Final = b"leveret.schema_version"
STREAM_KEY: Final = b"leveret.stream"
FIRST_KEY: Final = b"leveret.first_offset"
LAST_KEY: Final = b"leveret.last_offset"
COUNT_KEY: Final = b"leveret.count"
# Comma-separated names of the columns that are null in all rows and need not be decoded. Optional.
NULL_COLUMNS_KEY: Final = b"leveret.null_columns"

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())
X_DEATH: Final = pa.list_(
    pa.struct(
        [
            pa.field("queue", pa.string()),
            pa.field("reason", pa.string()),
            pa.field("count", pa.int64()),
            pa.field("exchange", pa.string()),
            pa.field("routing_keys", pa.list_(pa.string())),
            pa.field("time", TIMESTAMP),
            pa.field("original_expiration", pa.string()),
        ]
    )
)
AMQP10: Final = pa.struct(
    [
        pa.field("message_id_type", pa.string()),
        pa.field("correlation_id_type", pa.string()),
        pa.field("to", pa.string()),
        pa.field("group_id", pa.string()),
        pa.field("group_sequence", pa.int64()),
        pa.field("reply_to_group_id", pa.string()),
        pa.field("absolute_expiry_time", TIMESTAMP),
        pa.field("delivery_annotations", pa.string()),
        pa.field("message_annotations", pa.string()),
        pa.field("application_properties", pa.string()),
        pa.field("footer", pa.string()),
        pa.field("body_type", pa.string()),
    ]
)

# Constant within a file and therefore not stored; the reader supplies them.
_SOURCE_FIELDS: Final = [pa.field("queue", pa.string()), pa.field("partition", pa.int32())]
_STORED_FIELDS: Final = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("append_time", TIMESTAMP),
    pa.field("protocol", pa.string()),
    pa.field("exchange", pa.string()),
    pa.field("routing_key", pa.string()),
    pa.field("redelivered", pa.bool_()),
    pa.field("delivery_count", pa.int32()),
    pa.field("content_type", pa.string()),
    pa.field("content_encoding", pa.string()),
    pa.field("durable", pa.bool_()),
    pa.field("priority", pa.int16()),
    pa.field("correlation_id", pa.string()),
    pa.field("reply_to", pa.string()),
    pa.field("ttl_ms", pa.int64()),
    pa.field("message_id", pa.string()),
    pa.field("timestamp", TIMESTAMP),
    pa.field("type", pa.string()),
    pa.field("user_id", pa.string()),
    pa.field("app_id", pa.string()),
    pa.field("headers", HEADERS),
    pa.field("headers_json", pa.string()),
    pa.field("x_death", X_DEATH),
    pa.field("amqp10", AMQP10),
    pa.field("body", pa.binary(), nullable=False),
]
RAW: Final = [pa.field("raw_header", pa.binary(), nullable=False), pa.field("raw_overlay", pa.binary())]

# The schema of readers and DataFrames.
TABLE_SCHEMA: Final = pa.schema([*_SOURCE_FIELDS, *_STORED_FIELDS])
COLUMNS: Final = tuple(TABLE_SCHEMA.names)

# Field ids by path, as Iceberg assigns them to the fields of a new table: level by level. A new field gets the next id.
FIELD_IDS: Final[dict[str, int]] = {
    name: number
    for number, name in enumerate(
        (
            "offset",
            "append_time",
            "protocol",
            "exchange",
            "routing_key",
            "redelivered",
            "delivery_count",
            "content_type",
            "content_encoding",
            "durable",
            "priority",
            "correlation_id",
            "reply_to",
            "ttl_ms",
            "message_id",
            "timestamp",
            "type",
            "user_id",
            "app_id",
            "headers",
            "headers_json",
            "x_death",
            "amqp10",
            "body",
            "raw_header",
            "raw_overlay",
            "headers.key",
            "headers.value",
            "x_death.element",
            "x_death.element.queue",
            "x_death.element.reason",
            "x_death.element.count",
            "x_death.element.exchange",
            "x_death.element.routing_keys",
            "x_death.element.time",
            "x_death.element.original_expiration",
            "x_death.element.routing_keys.element",
            "amqp10.message_id_type",
            "amqp10.correlation_id_type",
            "amqp10.to",
            "amqp10.group_id",
            "amqp10.group_sequence",
            "amqp10.reply_to_group_id",
            "amqp10.absolute_expiry_time",
            "amqp10.delivery_annotations",
            "amqp10.message_annotations",
            "amqp10.application_properties",
            "amqp10.footer",
            "amqp10.body_type",
        ),
        1,
    )
}


def _with_field_ids(field: pa.Field, path: str) -> pa.Field:
    """Return the field with the ids of itself and its children."""
    kind = field.type
    if pa.types.is_struct(kind):
        inner = [kind.field(at) for at in range(kind.num_fields)]
        kind = pa.struct([_with_field_ids(item, f"{path}.{item.name}") for item in inner])
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_field_ids(kind.key_field, f"{path}.key"), _with_field_ids(kind.item_field, f"{path}.value"))
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_field_ids(kind.value_field.with_name("element"), f"{path}.element"))
    return field.with_type(kind).with_metadata({b"PARQUET:field_id": str(FIELD_IDS[path]).encode()})


# The schema of files.
FILE_SCHEMA: Final = pa.schema([_with_field_ids(field, field.name) for field in (*_STORED_FIELDS, *RAW)])
FILE_COLUMNS: Final = tuple(FILE_SCHEMA.names)
