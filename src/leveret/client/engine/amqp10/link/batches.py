"""Record batches over AMQP 1.0: encoding, and the outcome with the rows that the server did not publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.batches import encode_addresses
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.errors import BatchFailed, Error
from leveret.wire.amqp10.message import encode_data_head
from leveret.wire.record_batches import ADDRESS, EXCHANGE, decode_ranges, encode

if TYPE_CHECKING:
    from leveret.client.engine.common.batches import Rows

_ROWS_NOT_PUBLISHED: Final = "leveret:rows-not-published"


def encode_batch(rows: Rows, first: int, stop: int, flags: int) -> Transfer:
    """Return a record batch of the rows from `first` up to `stop` (exclusive).

    Raises:
        InvalidMessage: An address cannot be encoded.
    """
    bodies = rows.bodies[first:stop]
    heads = [
        properties + encode_data_head(len(body))
        for properties, body in zip(rows.properties[first:stop], bodies, strict=True)
    ]
    body = encode(encode_addresses(rows, first, stop), heads, bodies)
    head = encode_data_head(len(body))
    return Transfer(EXCHANGE, "", ADDRESS, flags, [head, body], len(head) + len(body), body)


def read_report(error: Error) -> BatchFailed | None:
    """Return the numbers of the rows in the error of an outcome; None if it has none."""
    if error.condition != _ROWS_NOT_PUBLISHED or not isinstance(error.info, dict):
        return None
    try:
        return BatchFailed(
            str(error.info.get("reason", error)),
            unroutable=decode_ranges(str(error.info.get("unroutable", ""))),
            refused=decode_ranges(str(error.info.get("refused", ""))),
        )
    except ValueError:
        return None
