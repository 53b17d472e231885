"""Durable termini in the log (messaging section 3.5.5: terminus-durability).

A terminus is one metadata value, keyed by its identity. With durability unsettled-state, each unsettled delivery is
another: that of an incoming delivery is written in the commit of its message; that of an outgoing one is written before the
transfer is sent, and removed in the commit of the settlement. Termini that are not durable are not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from leveret.broker import metadata
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import decode_composite, encode_composite

if TYPE_CHECKING:
    from leveret.broker.log import Log
    from leveret.broker.message import Entry
    from leveret.protocols.amqp10.terminus.terminus import Key, Terminus

SENDER: Final = "sender"
RECEIVER: Final = "receiver"
# Role of shared subscriptions.
SHARED_DURABLE: Final = "shared-durable"
SHARED_VOLATILE: Final = "shared-volatile"


def key_of(terminus: Terminus) -> str:
    vhost, user, container, name, _ = terminus.key
    return metadata.make_key(vhost, user, container, name, terminus.role())


def identity_of(key: str) -> tuple[Key, str]:
    """Return the identity of a terminus, and its role."""
    vhost, user, container, name, role = metadata.split_key(key)
    return (vhost, user, container, name, role == RECEIVER), role


def put(log: Log, terminus: Terminus, description: Composite) -> None:
    """Write a terminus; `description` is its source or target."""
    node = terminus.node
    log.put(
        metadata.TERMINUS,
        key_of(terminus),
        metadata.pack(
            {
                "id": terminus.need_id(),
                "attached": terminus.attached,
                "description": encode_composite(description),
                "node": None if node is None else [node.queue.id, node.policy],
            }
        ),
    )


def remove(log: Log, terminus: Terminus) -> None:
    log.put(metadata.TERMINUS, key_of(terminus), None)


def description_of(value: metadata.Record) -> Composite:
    return decode_composite(value["description"])[0]


# Deliveries


def is_stored(entry: Entry) -> bool:
    """Return whether an entry, and so its link state, survives a restart."""
    row = entry.row
    return row is not None and row.log is entry.queue.log


def _delivery_key(id: str, tag: bytes) -> str:
    return f"{id}:{tag.hex()}"


def delivery_of(key: str) -> tuple[str, bytes]:
    """Return the id of the terminus, and the tag."""
    id, _, tag = key.partition(":")
    return id, bytes.fromhex(tag)


def put_sent(log: Log, id: str, tag: bytes, queue_id: int, seq: int, head: bytes) -> None:
    """Write a delivery of a source: its entry, and the sections before the body as sent."""
    log.put(metadata.LINK_STATE, _delivery_key(id, tag), msgspec.msgpack.encode([queue_id, seq, head]))


def sent_of(value: bytes) -> tuple[int, int, bytes]:
    queue_id, seq, head = msgspec.msgpack.decode(value)
    return queue_id, seq, head


def put_outcome(log: Log, id: str, tag: bytes, outcome: Composite) -> None:
    """Write a delivery to a target with its outcome."""
    log.put(metadata.LINK_STATE, _delivery_key(id, tag), encode_composite(outcome))


def outcome_of(value: bytes) -> Composite:
    return decode_composite(value)[0]


def remove_delivery(log: Log, id: str, tag: bytes) -> None:
    log.put(metadata.LINK_STATE, _delivery_key(id, tag), None)


def put_part(log: Log, id: str, tag: bytes, data: bytes) -> None:
    """Write the received part of a delivery to a target."""
    log.put(metadata.LINK_PART, _delivery_key(id, tag), data)


def remove_part(log: Log, id: str, tag: bytes) -> None:
    log.put(metadata.LINK_PART, _delivery_key(id, tag), None)
