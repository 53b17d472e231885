"""Output of a connection: encoded frames, buffered until `to_send` (transport 2.3)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Union

from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.constants import MIN_MAX_FRAME_SIZE
from leveret.wire.amqp10.descriptors import ACCEPTED, RELEASED, SASL_MECHANISMS
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.short import uint, write_disposition, write_flow, write_transfer
from leveret.wire.amqp10.transport import Disposition, Flow, Transfer
from leveret.wire.output_buffer import LARGE_PAYLOAD, OutputBuffer

# A payload: one piece, or several in order.
Payload = Union[bytes, Sequence[Union[bytes, memoryview]]]

_HEADER_SIZE: Final = 8
_DOFF: Final = 2
_AMQP_FRAME: Final = 0
_SASL_FRAME: Final = 1
_PACK_FRAME: Final = struct.Struct(">IBBH").pack
_PACK_SIZE: Final = struct.Struct(">I").pack
_PACK_START: Final = struct.Struct(">BBHBBBBBB").pack
# The delivery id as a four-byte uint, and the head of the tag.
_PACK_DELIVERY: Final = struct.Struct(">BIBB").pack
_EMPTY: Final = _PACK_FRAME(_HEADER_SIZE, _DOFF, _AMQP_FRAME, 0)

# `message-format` 0 and `settled`.
_SETTLED: Final = b"\x43\x41"
_UNSETTLED: Final = b"\x43\x42"
# Size of the list without handle and tag: its count, delivery id, tag head, format and settled.
_LIST_AROUND: Final = 10
_MAX_SHORT: Final = 200


def encode_performative(performative: Composite) -> bytes:
    """Return the body of the frame, without a payload. Raises EncodeError for a field that does not fit its type."""
    if isinstance(performative, Transfer):
        if (
            performative.rcv_settle_mode is None
            and performative.state is None
            and not performative.resume
            and not performative.aborted
            and not performative.batchable
        ):
            return write_transfer(
                performative.handle,
                performative.delivery_id,
                performative.delivery_tag,
                performative.message_format,
                performative.settled,
                performative.more,
            )
    elif isinstance(performative, Disposition):
        state = performative.state
        if state is None:
            return write_disposition(
                performative.role, performative.first, performative.last, performative.settled, b"", performative.batchable
            )
        if isinstance(state, Composite) and (state.kind == ACCEPTED or state.kind == RELEASED):
            return write_disposition(
                performative.role,
                performative.first,
                performative.last,
                performative.settled,
                bytes((0x00, 0x53, state.kind, 0x45)),
                performative.batchable,
            )
    elif isinstance(performative, Flow) and performative.properties is None:
        return write_flow(performative)
    return encode_composite(performative)


class Output(OutputBuffer):
    """The output buffer: frames in the order of the calls.

    `max_frame_size` is the peer's maximum, 512 until its `open`. Successive deliveries
    mostly go to the same link and have the same size, so the constant parts of their frames are cached.
    """

    __slots__ = ("_channel", "_handle", "_sized_start", "_start", "_tag_size", "_whole", "max_frame_size")

    def __init__(self, max_frame_size: int = MIN_MAX_FRAME_SIZE) -> None:
        super().__init__()
        self.max_frame_size = max_frame_size
        self._channel = -1
        self._handle = -1
        self._tag_size = -1
        self._start = b""
        # The size of the latest short transfer, and `_start` with that size before it.
        self._whole = -1
        self._sized_start = b""

    def send_header(self, protocol: int) -> None:
        """Send a protocol header, version 1.0.0: `frames.AMQP`, `TLS` or `SASL`."""
        self._add(b"AMQP" + bytes((protocol, 1, 0, 0)))

    def send_empty(self) -> None:
        """Send a heartbeat (transport 2.4.5)."""
        self._add(_EMPTY)

    def send(self, performative: Performative) -> None:
        """Send a performative on its channel. A transfer whose payload does not fit one frame is split into several.

        Raises EncodeError, without sending anything, for a field that does not fit its type, and for a performative
        that does not fit the peer's maximum frame size: only a payload can be split.
        """
        if isinstance(performative, Transfer):
            self.send_message(performative, performative.payload)
            return
        body = encode_performative(performative)
        type = _SASL_FRAME if performative.kind >= SASL_MECHANISMS else _AMQP_FRAME
        size = _HEADER_SIZE + len(body)
        if size > self.max_frame_size:
            raise EncodeError(f"a frame of {size} bytes exceeds the peer's max-frame-size, {self.max_frame_size}")
        self._add(_PACK_FRAME(size, _DOFF, type, performative.channel) + body)

    def send_transfer(
        self, channel: int, handle: int, delivery_id: int, delivery_tag: bytes, settled: bool, payload: Payload, size: int
    ) -> None:
        """Send a whole delivery of message format 0; `size` is the size of `payload` in bytes."""
        tag_size = len(delivery_tag)
        if channel != self._channel or handle != self._handle or tag_size != self._tag_size:
            self._cache_start(channel, handle, tag_size)
        start = self._start
        # `start` begins after the frame's size field of four bytes.
        whole = len(start) + tag_size + size + 13
        if delivery_id < 256 or tag_size > _MAX_SHORT or whole > self.max_frame_size:
            self.send_message(Transfer(handle, delivery_id, delivery_tag, 0, settled, channel=channel), payload)
            return
        if whole != self._whole:
            self._whole = whole
            self._sized_start = _PACK_SIZE(whole) + start
        pieces = self._pieces
        pieces.append(self._sized_start)
        pieces.append(_PACK_DELIVERY(0x70, delivery_id, 0xA0, tag_size))
        pieces.append(delivery_tag)
        pieces.append(_SETTLED if settled else _UNSETTLED)
        if isinstance(payload, bytes):
            if size < LARGE_PAYLOAD:
                pieces.append(payload)
            else:
                self._add_large(payload)
        elif size < LARGE_PAYLOAD:
            pieces.extend(payload)
        else:
            self._add_payload(payload)
        self.pending += whole

    def _add_payload(self, payload: Sequence[bytes | memoryview]) -> None:
        for piece in payload:
            if len(piece) < LARGE_PAYLOAD:
                self._pieces.append(piece)
            else:
                self._add_large(piece)

    def _cache_start(self, channel: int, handle: int, tag_size: int) -> None:
        """Cache the bytes of a short transfer between the frame size and the delivery id."""
        number = uint(handle)
        size = min(_LIST_AROUND + len(number) + tag_size, 255)
        self._start = _PACK_START(_DOFF, _AMQP_FRAME, channel, 0x00, 0x53, 0x14, 0xC0, size, 5) + number
        self._whole = -1
        self._channel = channel
        self._handle = handle
        self._tag_size = tag_size

    def send_message(self, transfer: Transfer, payload: Payload) -> None:
        """Send a transfer with this payload instead of its own. Raises EncodeError as `send` does."""
        chunks: list[bytes | memoryview] = [payload] if isinstance(payload, bytes) else list(payload)
        left = 0
        for chunk in chunks:
            left += len(chunk)
        head = encode_performative(transfer)
        channel = transfer.channel
        size = _HEADER_SIZE + len(head) + left
        if size <= self.max_frame_size:
            self._add(_PACK_FRAME(size, _DOFF, _AMQP_FRAME, channel) + head)
            self._add_payload(chunks)
            self.pending += left
            return
        more = transfer.more
        transfer.more = True
        try:
            head = encode_performative(transfer)
        finally:
            transfer.more = more
        if _HEADER_SIZE + len(head) >= self.max_frame_size:
            raise EncodeError(
                f"a transfer of {_HEADER_SIZE + len(head)} bytes exceeds the peer's max-frame-size, {self.max_frame_size}"
            )
        following = write_transfer(transfer.handle, None, None, None, None, True)
        last = write_transfer(transfer.handle, None, None, None, None, more)
        index = 0
        offset = 0
        while left:
            room = self.max_frame_size - _HEADER_SIZE - len(head)
            if left <= room:
                # The last frame: its head is not longer than that of a frame with `more`.
                if head is following:
                    head = last
                room = left
            self._add(_PACK_FRAME(_HEADER_SIZE + len(head) + room, _DOFF, _AMQP_FRAME, channel) + head)
            left -= room
            self.pending += room
            while room:
                chunk = chunks[index]
                length = len(chunk) - offset
                if length <= room:
                    self._add_payload((memoryview(chunk)[offset:] if offset else chunk,))
                    room -= length
                    index += 1
                    offset = 0
                else:
                    self._add_payload((memoryview(chunk)[offset : offset + room],))
                    offset += room
                    room = 0
            head = following

    def send_disposition(self, channel: int, role: bool, first: int, last: int, settled: bool, state: int) -> None:
        """Send a disposition of the deliveries `first` to `last`.

        `state` is the descriptor of a state without fields (`descriptors.ACCEPTED`, `RELEASED`), or 0.
        """
        body = write_disposition(
            role, first, None if last == first else last, settled, bytes((0x00, 0x53, state, 0x45)) if state else b"", False
        )
        self._add(_PACK_FRAME(_HEADER_SIZE + len(body), _DOFF, _AMQP_FRAME, channel) + body)

    def _add(self, frame: bytes) -> None:
        self._pieces.append(frame)
        self.pending += len(frame)
