"""The definitions of exchanges, queues and bindings in the log's metadata: kinds, keys, values.

A key is the JSON list of the names that identify an object; a value is MessagePack, which distinguishes bytes and times
from strings. Other types of field tables are extension types of our own. Tables are sorted by name, so that equal
arguments are equal bytes, whatever their order.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

import msgspec

from leveret.broker.values import SIZED

VHOST: Final = "vhost"
VHOST_NUMBER: Final = "vhost-number"
EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
PENDING_DEAD_LETTERS: Final = "remains"  # of a deleted queue: entries to be dead-lettered
REMOVAL: Final = "removal"  # of a deleted queue: entries to be settled
BINDING: Final = "binding"  # with the numbers of both ends, since their names may be reused
COUNTER: Final = "counter"
TERMINUS: Final = "terminus"  # of a link of AMQP 1.0
LINK_STATE: Final = "link-state"  # of one delivery that is unsettled at a terminus
LINK_PART: Final = "link-part"  # the received part of an interrupted delivery
LEASE: Final = "lease"  # of a queue: its epoch, and the last committed batch
LEASE_BATCH: Final = "lease-batch"  # the sequence numbers of its entries
STREAM_CHUNK: Final = "stream-chunk"  # the start time of a chunk of a stream
STREAM_OFFSET: Final = "stream-offset"  # the offset of a named consumer of a stream
SINK_TRANSACTION: Final = "stage"
BRANCH: Final = "branch"  # of a distributed transaction: prepared, or decided by hand
SINK_APP: Final = "stage-app"  # the last batch of a sink, and its pending sink transactions
STAGED: Final = "staged"  # an upload in progress, or waiting to be published
STREAM_PUBLISHER: Final = "stream-publisher"  # the last sequence number of a named publisher
STREAM_SEGMENT: Final = "stream-segment"  # the manifest entry of a segment
SALVAGED: Final = "salvaged"  # parts of the log were lost: this place's files without a definition must be kept
POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator-policy"
PARAMETER: Final = "parameter"  # of a vhost: a component and a name
GLOBAL_PARAMETER: Final = "global-parameter"
OCCUPIED: Final = "occupied"  # at a clean stop: the queues with entries
DEDUPLICATION: Final = "deduplication"  # keys of a queue or an exchange
KEPT_FILE: Final = "kept-file"  # without a definition; never removed by the broker

# A decoded value: MessagePack, whose fields depend on the kind and on the version that wrote them.
Record: TypeAlias = dict[str, Any]

# Extension types: decimals, texts that are not valid UTF-8 (as decoded from field tables), tables with such names, and
# numbers with the type that a client has declared.
_DECIMAL: Final = 1
_TEXT: Final = 2
_TABLE: Final = 3
_SIZED: Final = 4
_SIZED_CODES: Final[dict[type, int]] = {type: code for code, type in enumerate(SIZED)}


def make_key(*names: str) -> str:
    return json.dumps(names)


def split_key(key: str) -> list[str]:
    return cast(list[str], json.loads(key))


def pack(value: Record) -> bytes:
    """Encode a value; it may contain the types of a field table."""
    return msgspec.msgpack.encode(_plain(value, True))


def pack_key(value: Record) -> bytes:
    """Encode a value without the types of its numbers, so that equal values are equal bytes."""
    return msgspec.msgpack.encode(_plain(value, False))


def unpack(value: bytes) -> Record:
    """Decode the output of `pack`; subclasses of int except those in `SIZED` become int."""
    return cast(Record, msgspec.msgpack.decode(value, ext_hook=_extension))


def _plain(value: Any, sized: bool) -> Any:
    """Return the value in types that MessagePack supports."""
    if isinstance(value, str):
        return value if _is_utf8(value) else msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        items = [(name, _plain(value[name], sized)) for name in sorted(value)]
        if all(_is_utf8(name) for name in value):
            return dict(items)
        pairs = [(name.encode("utf-8", "surrogatepass"), item) for name, item in items]
        return msgspec.msgpack.Ext(_TABLE, msgspec.msgpack.encode(pairs))
    if isinstance(value, (list, tuple)):
        return [_plain(item, sized) for item in value]
    if isinstance(value, Decimal):
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    code = _SIZED_CODES.get(type(value)) if sized else None
    if code is not None:
        return msgspec.msgpack.Ext(_SIZED, bytes((code,)) + repr(value).encode())
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _extension(code: int, data: memoryview) -> Any:
    raw = bytes(data)
    if code == _DECIMAL:
        return Decimal(raw.decode())
    if code == _TEXT:
        return raw.decode("utf-8", "surrogatepass")
    if code == _SIZED:
        return SIZED[raw[0]](raw[1:].decode())
    if code == _TABLE:
        pairs: list[tuple[bytes, Any]] = msgspec.msgpack.decode(raw, ext_hook=_extension)
        return {name.decode("utf-8", "surrogatepass"): item for name, item in pairs}
    raise ValueError(f"unknown extension type {code} in the metadata")
