"""Spark functions of columns from functions of Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def arrow_function(function: Callable[..., Any], result: Any, inputs: int = 1) -> Any:
    """Return a Spark UDF that is called with batches of columns.

    Args:
        function: A function of `inputs` Arrow arrays that returns an array of the same length.
        result: Spark's type of the result, or its text.
        inputs: 1 or 2.
    """
    import pyarrow as pa
    from pyspark.sql.pandas import functions

    def call(*arrays: Any) -> Any:
        return function(*arrays)

    # Spark inspects the signature, whose annotations must be types rather than strings.
    def of_one(first: Any) -> Any:
        return call(first)

    def of_two(first: Any, second: Any) -> Any:
        return call(first, second)

    chosen: Any = of_one if inputs == 1 else of_two
    chosen.__annotations__ = dict.fromkeys(("first", "second")[:inputs], pa.Array) | {"return": pa.Array}
    make: Any = functions.arrow_udf
    return make(chosen, result)
