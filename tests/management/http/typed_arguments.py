"""Arguments of bindings with the types of AMQP that JSON lacks."""

from __future__ import annotations

import struct

from tests.support.peers.amqp091 import Channel, Queue
from tests.support.peers.framing import METHOD_FRAME, frame_bytes

# Fields in RabbitMQ's dialect, by the hash that RabbitMQ 3.10 has for them in `properties_key`.
ENCODED = {
    "aSmuPA": b"\x01nI\xff\xff\xff\xfe",
    "cxGj6w": b"\x07x-matchS\x00\x00\x00\x03all\x01nI\x00\x00\x00\x05",
    "oke80g": b"\x01nb\xfe",
    "E1ET4Q": b"\x01nB\xfe",
    "I7237Q": b"\x01ns\xff\xfe",
    "fHvf2Q": b"\x01nu\xff\xfe",
    "SL8uUQ": b"\x01ni\xff\xff\xff\xfe",
    "-5qlfw": b"\x01nl\x00\x00\x00\x00\x00\x00\x00\x05",
    "oKNK_g": b"\x01nf\x3f\xc0\x00\x00",
    "i6OcSg": b"\x01nd\x3f\xf8\x00\x00\x00\x00\x00\x00",
    "VmHSZw": b"\x01nt\x01\x01mt\x00",
    "BW0S3g": b"\x01nx\x00\x00\x00\x03\x00\xff\x01",
    "OmS9kg": b"\x01nT\x00\x00\x00\x00\x67\x00\x00\x00",
    "6NkPAg": b"\x01nD\x02\x00\x00\x00\x96",
    "bUSORQ": b"\x01nA\x00\x00\x00\x0bI\x00\x00\x00\x01s\x00\x02t\x01V",
    "II_H1A": b"\x01nF\x00\x00\x00\x0d\x02zzb\x01\x02aaI\x00\x00\x00\x02",
    "68_4kQ": b"\x01nb\x01\x01nb\x02",
}


def bind_typed(channel: Channel, exchange: str = "amq.headers") -> None:
    """Bind the queue `typed` with each of the arguments. Routing keys are the hashes."""
    channel.queue("typed", exclusive=False, durable=True)
    for hashed, fields in ENCODED.items():
        names = b"".join(bytes((len(name),)) + name.encode() for name in ("typed", exchange, hashed))
        payload = struct.pack(">IH", Queue.Bind.index, 0) + names + b"\0" + struct.pack(">I", len(fields)) + fields
        channel.peer.send_bytes(frame_bytes(METHOD_FRAME, channel.number, payload))
        channel.expect(Queue.BindOk)
