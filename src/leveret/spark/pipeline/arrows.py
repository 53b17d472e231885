"""Functions of Arrow arrays as functions of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def arrow_function(function: Callable[..., Any], result: Any, inputs: int = 1) -> Any:
    """What Spark calls with a batch of columns at a time.

    function  of `inputs` Arrow arrays, to one of as many values
    result    Spark's type, or its text
    """
    import pyarrow as pa
    from pyspark.sql.pandas import functions

    def call(*arrays: Any) -> Any:
        return function(*arrays)

    # Spark goes by the signature, in which annotations have to be types and not texts.
    def of_one(first: Any) -> Any:
        return call(first)

    def of_two(first: Any, second: Any) -> Any:
        return call(first, second)

    chosen: Any = of_one if inputs == 1 else of_two
    chosen.__annotations__ = dict.fromkeys(("first", "second")[:inputs], pa.Array) | {"return": pa.Array}
    make: Any = functions.arrow_udf
    return make(chosen, result)
