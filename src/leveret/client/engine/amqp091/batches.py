"""Record batches over AMQP 0-9-1: encoding, and the server's report of rows that it did not publish."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091.encoding import encode_address
from leveret.client.engine.amqp091.pending_confirms import BatchPublish
from leveret.client.errors import BatchFailed, InvalidMessage
from leveret.client.properties import decode_properties
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.record_batches import CONTENT_TYPE, EXCHANGE, decode_ranges, encode

if TYPE_CHECKING:
    from leveret.client.engine.common.batches import Rows

_BASIC: Final = 60
_ADDRESS: Final = encode_address(EXCHANGE, "")


def encode_batch(rows: Rows, first: int, stop: int, flags: int, id: str) -> BatchPublish:
    """Return a record batch of the rows from `first` up to `stop` (exclusive) with a correlation id.

    Raises:
        InvalidMessage: An address cannot be encoded.
    """
    body = encode(encode_addresses(rows, first, stop), rows.properties[first:stop], rows.bodies[first:stop])
    header = encode_header(_BASIC, len(body), {"content_type": CONTENT_TYPE, "correlation_id": id})
    return BatchPublish(_ADDRESS, flags, header, body, id)


def encode_addresses(rows: Rows, first: int, stop: int) -> list[bytes] | bytes:
    """Return the addresses of the rows from `first` up to `stop` (exclusive); one if all are equal.

    Raises:
        InvalidMessage: An address cannot be encoded.
    """
    pairs = list(zip(rows.exchanges[first:stop], rows.keys[first:stop], strict=True))
    addresses = {pair: encode_address(*pair) for pair in set(pairs)}
    return addresses[pairs[0]] if len(addresses) == 1 else [addresses[pair] for pair in pairs]


def read_report(header: bytes, body: bytes, text: str) -> tuple[str, BatchFailed]:
    """Return the correlation id of a record batch, and the error for its rows: their numbers, and why one was refused."""
    try:
        id = decode_properties(header).correlation_id or ""
        fields = json.loads(body)
        unroutable = decode_ranges(fields.get("unroutable", ""))
        refused = decode_ranges(fields.get("refused", ""))
        text = str(fields.get("reason", text))
    except (InvalidMessage, ValueError, AttributeError):
        return "", BatchFailed(text)
    return id, BatchFailed(text, unroutable=unroutable, refused=refused)
