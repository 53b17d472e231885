"""What an engine has to send: frames, encoded and kept until `to_send` takes them."""

from __future__ import annotations

import struct
from typing import Any, Final

from leveret.wire.amqp0.commands import Body
from leveret.wire.amqp0.constants import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
)

_PACK_FRAME: Final = struct.Struct(">BHI").pack
_PACK_NEXT: Final = struct.Struct(">BBHI").pack
_PACK_DELIVER: Final = struct.Struct(">BHIHHB").pack
_PACK_PUBLISH: Final = struct.Struct(">BHIHHH").pack
_PACK_TAG: Final = struct.Struct(">QB").pack
_PACK_SETTLE: Final = struct.Struct(">BHIHHQBB").pack
_END: Final = b"\xce"
_HEARTBEAT: Final = struct.pack(">BHIB", FRAME_HEARTBEAT, 0, 0, FRAME_END)

_BASIC: Final = 60
_PUBLISH: Final = 40
_DELIVER: Final = 60
_ACK: Final = 80
_REJECT: Final = 90
_NACK: Final = 120


class Output:
    """Frames in the order of the calls. `pending` is their octets. `frame_max` is the largest frame, `payload_max` the
    largest payload that may be sent."""

    __slots__ = ("_pieces", "frame_max", "payload_max", "pending")

    def __init__(self, frame_max: int) -> None:
        self._pieces: list[Any] = []
        self.pending = 0
        self.frame_max = frame_max
        self.payload_max = frame_max - FRAME_OVERHEAD

    def to_send(self) -> bytes:
        """Everything that is pending, once."""
        data: bytes = b"".join(self._pieces)
        self._pieces = []
        self.pending = 0
        return data

    def send_deliver(self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, address: bytes,
                     header: bytes, body: Body, size: int) -> None:
        """`basic.deliver` with its content. `address`, `header` and `size` as in `Publish`; the channel must be open."""
        start = (
            _PACK_DELIVER(FRAME_METHOD, channel, 14 + len(consumer_tag) + len(address), _BASIC, _DELIVER, len(consumer_tag))
            + consumer_tag + _PACK_TAG(delivery_tag, 1 if redelivered else 0) + address
            + _PACK_NEXT(FRAME_END, FRAME_HEADER, channel, len(header)) + header)
        self._content(channel, start, body, size)

    def send_publish(self, channel: int, address: bytes, flags: int, header: bytes, body: Body, size: int) -> None:
        """`basic.publish` with its content, all as in `Publish`; the channel must be open."""
        start = (
            _PACK_PUBLISH(FRAME_METHOD, channel, 7 + len(address), _BASIC, _PUBLISH, 0) + address + bytes((flags,))
            + _PACK_NEXT(FRAME_END, FRAME_HEADER, channel, len(header)) + header)
        self._content(channel, start, body, size)

    def send_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """`basic.ack`: of a delivery, or the confirm of a publish."""
        self._pieces.append(
            _PACK_SETTLE(FRAME_METHOD, channel, 13, _BASIC, _ACK, delivery_tag, 1 if multiple else 0, FRAME_END))
        self.pending += 21

    def send_nack(self, channel: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        """`basic.nack`, RabbitMQ's: of deliveries, or of publishes (which cannot be requeued)."""
        bits = (1 if multiple else 0) | (2 if requeue else 0)
        self._pieces.append(_PACK_SETTLE(FRAME_METHOD, channel, 13, _BASIC, _NACK, delivery_tag, bits, FRAME_END))
        self.pending += 21

    def send_reject(self, channel: int, delivery_tag: int, requeue: bool) -> None:
        """`basic.reject`."""
        self._pieces.append(
            _PACK_SETTLE(FRAME_METHOD, channel, 13, _BASIC, _REJECT, delivery_tag, 1 if requeue else 0, FRAME_END))
        self.pending += 21

    def send_heartbeat(self) -> None:
        """A heartbeat frame (0-9-1 section 4.2.7)."""
        self._pieces.append(_HEARTBEAT)
        self.pending += len(_HEARTBEAT)

    def _frame(self, type: int, channel: int, payload: bytes) -> None:
        self._pieces.append(_PACK_FRAME(type, channel, len(payload)) + payload + _END)
        self.pending += FRAME_OVERHEAD + len(payload)

    def _frame_content(self, channel: int, header: bytes, body: Body) -> None:
        """The header frame and the body frames of a content."""
        size = len(body) if isinstance(body, bytes) else sum([len(part) for part in body])
        self._content(channel, _PACK_FRAME(FRAME_HEADER, channel, len(header)) + header, body, size)

    def _content(self, channel: int, start: bytes, body: Body, size: int) -> None:
        """Queue `start`, which is a method frame and a header frame but for its last octet, and the body in frames."""
        if size == 0:
            self._pieces.append(start + _END)
            self.pending += len(start) + 1
        elif isinstance(body, bytes) and size <= self.payload_max:
            pieces = self._pieces
            pieces.append(start + _PACK_NEXT(FRAME_END, FRAME_BODY, channel, size))
            pieces.append(body)
            pieces.append(_END)
            self.pending += len(start) + size + 9
        else:
            self._pieces.append(start + _END)
            self.pending += len(start) + 1
            if isinstance(body, bytes):
                self._body_frames(channel, body)
            else:
                for part in body:
                    self._body_frames(channel, part)

    def _body_frames(self, channel: int, part: bytes) -> None:
        """One piece of a body as frames that are as large as the peer takes them. The octets are not copied here."""
        pieces = self._pieces
        payload_max = self.payload_max
        size = len(part)
        if size <= payload_max:
            if size:
                pieces.append(_PACK_FRAME(FRAME_BODY, channel, size))
                pieces.append(part)
                pieces.append(_END)
                self.pending += size + FRAME_OVERHEAD
            return
        view = memoryview(part)
        pos = 0
        while pos < size:
            length = min(payload_max, size - pos)
            pieces.append(_PACK_FRAME(FRAME_BODY, channel, length))
            pieces.append(view[pos : pos + length])
            pieces.append(_END)
            self.pending += length + FRAME_OVERHEAD
            pos += length
