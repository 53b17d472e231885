"""Check of a DataFrame's schema before a sink publishes anything."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from leveret.spark.errors import SparkError
from leveret.spark.kafka_options import KAFKA_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from leveret.spark.options import Settings

_TEXT: Final = ("string", "varchar", "char")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
# Columns of the sink, and the Spark types that each accepts.
_COLUMN_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "durable": ("boolean",),
    "priority": _WHOLE,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "ttl_ms": _WHOLE,
    "message_id": _TEXT,
    "timestamp": ("timestamp", "timestamp_ntz"),
    "type": _TEXT,
    "user_id": _TEXT,
    "app_id": _TEXT,
    "headers": ("map<string,string>",),
    "headers_json": _TEXT,
    "amqp10": ("struct",),
}
# Columns about the delivery of a message, which a sink ignores.
IGNORED_COLUMNS: Final = (
    "queue",
    "partition",
    "offset",
    "append_time",
    "protocol",
    "redelivered",
    "delivery_count",
    "x_death",
)
SINK_COLUMNS: Final = tuple(_COLUMN_TYPES)
_AMQP10_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "message_id_type": _TEXT,
    "correlation_id_type": _TEXT,
    "to": _TEXT,
    "group_id": _TEXT,
    "group_sequence": _WHOLE,
    "reply_to_group_id": _TEXT,
    "absolute_expiry_time": ("timestamp",),
    "delivery_annotations": _TEXT,
    "message_annotations": _TEXT,
    "application_properties": _TEXT,
    "footer": _TEXT,
    "body_type": _TEXT,
}


class SchemaError(SparkError, ValueError):
    """The sink does not accept the DataFrame."""


def check_schema(schema: StructType, settings: Settings) -> None:
    """Raise SchemaError for a column that is missing, unknown or of the wrong type."""
    names = schema.fieldNames()
    if "body" not in names:
        hint = "; rename value, as Kafka's sink calls it, to body" if "value" in names else ""
        raise SchemaError(
            f"the sink amqp needs a column body of type binary or string; the DataFrame has "
            f"{', '.join(names) or 'no columns'}{hint}"
        )
    for field in schema.fields:
        _check_type(field.name, field.dataType, _types_of(field.name, names))
        if field.name == "amqp10":
            for inner in field.dataType.fields:  # type: ignore[attr-defined]
                if inner.name not in _AMQP10_TYPES:
                    raise SchemaError(
                        f"the sink amqp does not accept the field amqp10.{inner.name}; expected some of "
                        f"{', '.join(_AMQP10_TYPES)}"
                    )
                _check_type(f"amqp10.{inner.name}", inner.dataType, _AMQP10_TYPES[inner.name])
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"the DataFrame has two columns named {twice}")
    if not {"exchange", "routing_key"} & set(names) and settings.exchange is None and settings.routing_key is None:
        raise SchemaError(
            "the sink amqp needs an address; add a column exchange or routing_key, or set the option exchange or routingKey"
        )


def _types_of(name: str, names: list[str]) -> tuple[str, ...]:
    if name in _COLUMN_TYPES:
        return _COLUMN_TYPES[name]
    if name in IGNORED_COLUMNS:
        return ()
    near = [KAFKA_COLUMNS[name]] if name in KAFKA_COLUMNS else difflib.get_close_matches(name, SINK_COLUMNS, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near and near[0] not in names else f"expected {', '.join(SINK_COLUMNS)}"
    raise SchemaError(f"the sink amqp does not accept the column {name}; {hint} (drop it, or put it into body)")


def _check_type(name: str, type: DataType, expected: tuple[str, ...]) -> None:
    shown = type.simpleString()
    if (
        expected
        and shown.split("(")[0].split(" ")[0] not in expected
        and not (expected == ("struct",) and shown.startswith("struct<"))
    ):
        raise SchemaError(f"column {name} is of type {shown[:80]}; the sink amqp accepts {' or '.join(expected)}")
