"""How definitions of exchanges, queues and bindings stand in the log's metadata: kinds, keys, values.

A key is the JSON list of the names that identify a thing; a value is MessagePack, which keeps bytes and times apart from
strings. What MessagePack does not know, and field tables do, is an extension type of our own. Tables are sorted by name:
equal arguments are equal bytes, in whatever order they came.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

VHOST: Final = "vhost"
VHOST_NUMBER: Final = "vhost-number"
EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
PENDING_DEAD_LETTERS: Final = "remains"  # of a deleted queue: entries that have yet to become dead letters
REMOVAL: Final = "removal"  # of a deleted queue: entries that have yet to be settled
BINDING: Final = "binding"  # with the numbers of its ends, for their names may belong to others by now
COUNTER: Final = "counter"
TERMINUS: Final = "terminus"  # of a link of AMQP 1.0
LINK_STATE: Final = "link-state"  # of one delivery that is unsettled at a terminus
LINK_PART: Final = "link-part"  # what has come of one that was interrupted
LEASE: Final = "lease"  # of a queue: who has it, and what is committed
LEASE_BATCH: Final = "lease-batch"  # a planned batch: the sequence numbers of its entries
STREAM_CHUNK: Final = "stream-chunk"  # when a chunk of a stream began
STREAM_OFFSET: Final = "stream-offset"  # how far a named consumer of a stream has come
SINK_TRANSACTION: Final = "stage"
BRANCH: Final = "branch"  # of a distributed transaction: prepared, or decided by hand
SINK_APP: Final = "stage-app"  # the last batch of a sink, and its pending sink transactions
STAGED: Final = "staged"  # a content that is being staged, or waits to be published
STREAM_PUBLISHER: Final = "stream-publisher"  # what a named publisher has sent to a stream
STREAM_SEGMENT: Final = "stream-segment"  # of a stream: what was sealed, and where its file is
SALVAGED: Final = "salvaged"  # parts of the log were lost: files without a definition, of this place, must be kept
KEPT_FILE: Final = "kept-file"  # without a definition; never removed by the broker

# Extension types: decimals, texts that are not UTF-8 (as the decoder of field tables leaves them), tables with such names.
_DECIMAL: Final = 1
_TEXT: Final = 2
_TABLE: Final = 3


def make_key(*names: str) -> str:
    return json.dumps(names)


def split_key(key: str) -> list[str]:
    return cast(list[str], json.loads(key))


def pack(value: dict[str, Any]) -> bytes:
    """A value as bytes; its values are what a field table may hold."""
    return msgspec.msgpack.encode(_plain(value))


def unpack(value: bytes) -> dict[str, Any]:
    """The value that `pack` was given; subclasses of int come back as int."""
    return cast(dict[str, Any], msgspec.msgpack.decode(value, ext_hook=_extension))


def _plain(value: Any) -> Any:
    """The value in types that MessagePack knows."""
    if isinstance(value, str):
        return value if _is_utf8(value) else msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        items = [(name, _plain(value[name])) for name in sorted(value)]
        if all(_is_utf8(name) for name in value):
            return dict(items)
        pairs = [(name.encode("utf-8", "surrogatepass"), item) for name, item in items]
        return msgspec.msgpack.Ext(_TABLE, msgspec.msgpack.encode(pairs))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


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
    if code == _TABLE:
        pairs: list[tuple[bytes, Any]] = msgspec.msgpack.decode(raw, ext_hook=_extension)
        return {name.decode("utf-8", "surrogatepass"): item for name, item in pairs}
    raise ValueError(f"the metadata has an extension of unknown type {code}")
