"""How definitions of exchanges, queues and bindings stand in the log's metadata: kinds, keys, values.

A key is the JSON list of the names that identify a thing; a value is MessagePack, which keeps octets and times apart from
strings.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

import msgspec

VHOST: Final = "vhost"
EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
BINDING: Final = "binding"
COUNTER: Final = "counter"


def make_key(*names: str) -> str:
    return json.dumps(names)


def split_key(key: str) -> list[str]:
    return cast(list[str], json.loads(key))


def pack(value: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(value)


def unpack(value: bytes) -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.msgpack.decode(value))
