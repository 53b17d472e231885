"""Output of an engine: encoded frames, buffered until `to_send`."""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp0.commands import TICKET_SHIFT, Body
from leveret.wire.amqp0.constants import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    FRAME_REQUEST,
)
from leveret.wire.amqp0.requests import Numbers
from leveret.wire.output_buffer import LARGE_PAYLOAD, OutputBuffer

_PACK_FRAME: Final = struct.Struct(">BHI").pack
_PACK_NEXT: Final = struct.Struct(">BBHI").pack
_PACK_DELIVER: Final = struct.Struct(">BHIHHB").pack
_PACK_PUBLISH: Final = struct.Struct(">BHIHHH").pack
_PACK_FLAGS: Final = struct.Struct(">BB").pack
_PACK_TAG: Final = struct.Struct(">QB").pack
_PACK_SETTLE: Final = struct.Struct(">BHIHHQBB").pack
# The same without frame headers, for methods in requests.
_PACK_DELIVER_PAYLOAD: Final = struct.Struct(">HHB").pack
_PACK_PUBLISH_PAYLOAD: Final = struct.Struct(">HHH").pack
_PACK_SETTLE_PAYLOAD: Final = struct.Struct(">HHQB").pack
_END: Final = b"\xce"
_HEARTBEAT: Final = struct.pack(">BHIB", FRAME_HEARTBEAT, 0, 0, FRAME_END)

# Bytes of a delivery besides its parts: delivery tag, redelivered, and the frame ends and starts around the header.
_DELIVER_OVERHEAD: Final = 9 + 8 + 1
_BASIC: Final = 60
_PUBLISH: Final = 40
_DELIVER: Final = 60
_ACK: Final = 80
_REJECT: Final = 90
_NACK: Final = 120


class Output(OutputBuffer):
    """Frames in the order of the calls.

    Successive deliveries mostly have the same consumer and the same size, so the constant parts of their frames are cached,
    with the values that they depend on.

    Attributes:
        frame_max: maximum size in bytes of a frame that may be sent.
        payload_max: maximum size in bytes of its payload.
    """

    __slots__ = (
        "_address_size",
        "_body_size",
        "_body_start",
        "_channel",
        "_consumer_tag",
        "_header_size",
        "_header_start",
        "_numbers",
        "_start",
        "frame_max",
        "payload_max",
    )

    def __init__(self, frame_max: int) -> None:
        super().__init__()
        self.frame_max = frame_max
        self.payload_max = frame_max - FRAME_OVERHEAD
        self._channel = 0
        self._consumer_tag = b""
        self._address_size = -1
        self._header_size = -1
        self._body_size = -1
        self._start = b""
        self._header_start = b""
        self._body_start = b""
        # Request and response numbers; None if methods are not wrapped.
        self._numbers: Numbers | None = None

    def send_deliver(
        self,
        channel: int,
        consumer_tag: bytes,
        delivery_tag: int,
        redelivered: bool,
        address: bytes,
        header: bytes,
        body: Body,
        size: int,
    ) -> None:
        """Send `basic.deliver` with its content. The channel must be open.

        `address`, `header` and `size` are as in `Publish`.
        """
        if channel != self._channel:
            if self._numbers is not None:  # checked here, off the fast path
                self._deliver_in_request(channel, consumer_tag, delivery_tag, redelivered, address, header, body)
                return
            self._channel = channel
            self._address_size = self._header_size = self._body_size = -1
        if len(address) != self._address_size or consumer_tag != self._consumer_tag:
            tag_size = len(consumer_tag)
            self._start = (
                _PACK_DELIVER(FRAME_METHOD, channel, 14 + tag_size + len(address), _BASIC, _DELIVER, tag_size)
                + consumer_tag
            )
            self._consumer_tag = consumer_tag
            self._address_size = len(address)
        if len(header) != self._header_size:
            self._header_size = len(header)
            self._header_start = _PACK_NEXT(FRAME_END, FRAME_HEADER, channel, len(header))
        pieces = self._pieces
        pieces.append(self._start)
        pieces.append(_PACK_TAG(delivery_tag, 1 if redelivered else 0))
        pieces.append(address)
        pieces.append(self._header_start)
        pieces.append(header)
        self.pending += len(self._start) + len(address) + len(header) + _DELIVER_OVERHEAD
        if isinstance(body, bytes) and 0 < size <= self.payload_max:
            if size != self._body_size:
                self._body_size = size
                self._body_start = _PACK_NEXT(FRAME_END, FRAME_BODY, channel, size)
            pieces.append(self._body_start)
            if size < LARGE_PAYLOAD:
                pieces.append(body)
            else:
                self._add_large(body)
            pieces.append(_END)
            self.pending += size + FRAME_OVERHEAD
        else:
            pieces.append(_END)
            self._body(channel, body)

    def _deliver_in_request(
        self,
        channel: int,
        consumer_tag: bytes,
        delivery_tag: int,
        redelivered: bool,
        address: bytes,
        header: bytes,
        body: Body,
    ) -> None:
        start: bytes = _PACK_DELIVER_PAYLOAD(_BASIC, _DELIVER, len(consumer_tag))
        tags: bytes = _PACK_TAG(delivery_tag, 1 if redelivered else 0)
        self._request(channel, start + consumer_tag + tags + address)
        self._frame(FRAME_HEADER, channel, header)
        self._body(channel, body)

    def _request(self, channel: int, method: bytes) -> int:
        """Send a method in a plain frame or in a request. Return the id of the request; 0 for a plain frame."""
        if self._numbers is None:
            self._frame(FRAME_METHOD, channel, method)
            return 0
        request: int
        numbers: bytes
        request, numbers = self._numbers.request(channel)
        self._frame(FRAME_REQUEST, channel, numbers + method)
        return request

    def send_publish(self, channel: int, address: bytes, flags: int, header: bytes, body: Body, size: int) -> None:
        """Send `basic.publish` with its content; all arguments are as in `Publish`. The channel must be open."""
        if self._numbers is not None:
            start: bytes = _PACK_PUBLISH_PAYLOAD(_BASIC, _PUBLISH, flags >> TICKET_SHIFT)
            self._request(channel, start + address + bytes((flags & 3,)))
        else:
            method = (
                _PACK_PUBLISH(FRAME_METHOD, channel, 7 + len(address), _BASIC, _PUBLISH, flags >> TICKET_SHIFT) + address
            )
            self._pieces.append(method + _PACK_FLAGS(flags & 3, FRAME_END))
            self.pending += len(method) + 2
        self._frame(FRAME_HEADER, channel, header)
        self._body(channel, body)

    def send_encoded(self, frames: bytes) -> None:
        """Send encoded frames. Their channels must be open."""
        self._pieces.append(frames)
        self.pending += len(frames)

    def send_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """Send `basic.ack`, for deliveries or as a confirm."""
        self._settle(channel, _ACK, delivery_tag, 1 if multiple else 0)

    def send_nack(self, channel: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        """Send RabbitMQ's `basic.nack`, for deliveries or for publishes, which cannot be requeued."""
        self._settle(channel, _NACK, delivery_tag, (1 if multiple else 0) | (2 if requeue else 0))

    def send_reject(self, channel: int, delivery_tag: int, requeue: bool) -> None:
        """Send `basic.reject`."""
        self._settle(channel, _REJECT, delivery_tag, 1 if requeue else 0)

    def _settle(self, channel: int, method: int, delivery_tag: int, bits: int) -> None:
        if self._numbers is not None:
            self._request(channel, _PACK_SETTLE_PAYLOAD(_BASIC, method, delivery_tag, bits))
            return
        self._pieces.append(_PACK_SETTLE(FRAME_METHOD, channel, 13, _BASIC, method, delivery_tag, bits, FRAME_END))
        self.pending += 21

    def send_heartbeat(self) -> None:
        """Send a heartbeat frame (0-9-1 section 4.2.7)."""
        self._pieces.append(_HEARTBEAT)
        self.pending += len(_HEARTBEAT)

    def _frame(self, type: int, channel: int, payload: bytes) -> None:
        self._pieces.append(_PACK_FRAME(type, channel, len(payload)) + payload + _END)
        self.pending += FRAME_OVERHEAD + len(payload)

    def send_body(self, channel: int, part: bytes | memoryview) -> None:
        """Send the next bytes of a body, after a content whose header announces more than was sent with it.

        Nothing else may be sent on the channel in between.
        """
        self._body_frames(channel, part)

    def _body(self, channel: int, body: Body) -> None:
        """Send a body in frames; none if it is empty (0-9-1 section 4.2.6.2)."""
        if isinstance(body, bytes):
            self._body_frames(channel, body)
        else:
            for part in body:
                self._body_frames(channel, part)

    def _body_frames(self, channel: int, part: bytes | memoryview) -> None:
        """Send a part of a body in frames of the maximum size. The bytes are not copied."""
        pieces = self._pieces
        payload_max = self.payload_max
        size = len(part)
        payload: bytes | memoryview
        pos = 0
        while pos < size:
            length = min(payload_max, size - pos)
            payload = part if length == size else memoryview(part)[pos : pos + length]
            pieces.append(_PACK_FRAME(FRAME_BODY, channel, length))
            if length < LARGE_PAYLOAD:
                pieces.append(payload)
            else:
                self._add_large(payload)
            pieces.append(_END)
            self.pending += length + FRAME_OVERHEAD
            pos += length
