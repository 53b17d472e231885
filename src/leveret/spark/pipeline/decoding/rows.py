"""Decodes a batch of bodies row by row, so that a bad body does not affect other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.segments.typed_json import Document

if TYPE_CHECKING:
    import pyarrow as pa


def decode_rows(bodies: pa.Array, read: Callable[[bytes], Document], type: pa.DataType) -> pa.StructArray:
    """Return an Arrow array of struct<value, error> for an array of bodies.

    Args:
        bodies: The bodies.
        read: Decodes one body to a value that fits the type's field `value`; any exception is the row's error.
        type: Arrow type of the result.
    """
    import pyarrow as pa

    values: list[Document] = []
    errors: list[str | None] = []
    for body in bodies:
        try:
            if not body.is_valid:
                raise ValueError("the body is empty")
            values.append(read(body.as_py()))
            errors.append(None)
        except Exception as error:
            values.append(None)
            errors.append(f"{error.__class__.__name__}: {error}" if str(error) else error.__class__.__name__)
    value_type = type.field("value").type
    try:
        column = pa.array(values, value_type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        column = _build_with_errors(values, errors, value_type)
    return pa.StructArray.from_arrays([column, pa.array(errors, pa.string())], fields=list(type))


def _build_with_errors(values: list[Document], errors: list[str | None], type: pa.DataType) -> pa.Array:
    """Build the array if a value does not fit its type, which becomes the row's error."""
    import pyarrow as pa

    for index, value in enumerate(values):
        try:
            pa.array([value], type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            values[index] = None
            errors[index] = f"a value does not fit its type: {error}"
    return pa.array(values, type)
