"""Parses JSON bodies by a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.schema import BODY_JSON

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import ArrayType, MapType, StructType


def from_body(schema: StructType | ArrayType | MapType | str, column: str = BODY_JSON, **options: object) -> Column:
    """Return an expression that parses bodies by a schema, with Spark's `from_json`.

    Args:
        schema: The schema of a body: a type, or its text, such as "id BIGINT, total DOUBLE".
        column: The column with JSON text. Others than `body_json` have only the JSON text of publishers: `body`, or `value`
            of the columns `kafka`.
        **options: Options of `from_json`, such as `mode="FAILFAST"`.
    """
    from pyspark.sql import functions as F

    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return F.from_json(F.col(column).cast("string"), schema, texts)
