"""Spark column functions from functions of Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# A UDF, which is called with columns.
ArrowFunction: TypeAlias = Callable[..., "Column"]


def arrow_function(function: Callable[..., pa.Array], result: str | DataType, inputs: int = 1) -> ArrowFunction:
    """Return a Spark UDF that is called with batches of columns.

    Args:
        function: A function of `inputs` Arrow arrays that returns an array of the same length.
        result: Spark's type of the result, or its text.
        inputs: 1 or 2.
    """
    import pyarrow as pa
    from pyspark.sql.pandas import functions

    def call(*arrays: pa.Array) -> pa.Array:
        return function(*arrays)

    # Spark inspects the signature, whose annotations must be types rather than strings.
    def of_one(first: pa.Array) -> pa.Array:
        return call(first)

    def of_two(first: pa.Array, second: pa.Array) -> pa.Array:
        return call(first, second)

    chosen: Callable[..., pa.Array] = of_one if inputs == 1 else of_two
    chosen.__annotations__ = dict.fromkeys(("first", "second")[:inputs], pa.Array) | {"return": pa.Array}
    # The annotations of `arrow_udf` do not accept a function that is passed in a variable.
    make: Callable[..., ArrowFunction] = getattr(functions, "arrow_udf")  # noqa: B009
    return make(chosen, result)
