"""Arguments of declarations and bindings with the types that JSON lacks: their fields in AMQP 0-9-1, in base64."""

from __future__ import annotations

import base64
import binascii

from msgspec import UNSET, UnsetType

from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import FieldTable
from leveret.management.json_values import plain
from leveret.management.operations.operation import Context


def encoded_arguments(context: Context, arguments: FieldTable, encoded: bytes = b"") -> str | UnsetType:
    """Return the fields of arguments as replies have them, absent if JSON represents them without loss.

    Args:
        context: The context of the operation.
        arguments: The arguments.
        encoded: The fields as a client has encoded them, if they are known.
    """
    fields = encoded or context.managed.codec.encode_arguments(arguments)
    return base64.b64encode(fields).decode() if fields else UNSET


def typed_arguments(context: Context, arguments: FieldTable, encoded: str) -> tuple[FieldTable, bytes]:
    """Return the arguments of a request with their types, and their fields. Raises `PreconditionFailed`.

    Args:
        context: The context of the operation.
        arguments: The arguments in JSON.
        encoded: Their fields in base64; "" for arguments without other types than those of JSON.
    """
    if not encoded:
        return arguments, b""
    try:
        fields = base64.b64decode(encoded, validate=True)
        typed = context.managed.codec.decode_arguments(fields)
    except (binascii.Error, ValueError):
        raise PreconditionFailed("invalid value of 'encoded'; expected fields of AMQP 0-9-1 in base64") from None
    if plain(typed) != arguments:
        raise PreconditionFailed("'encoded' has other values than 'arguments'; remove it to change the arguments")
    return typed, fields
