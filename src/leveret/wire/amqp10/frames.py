"""The sans-I/O frame reader (transport 2.3, security 5.3.1): bytes in, performatives out.

A reader expects a protocol header first. Each header selects SASL or AMQP frames, so that a peer may pipeline its
handshake. The caller checks the order of performatives.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.composite import Composite, Performative
from leveret.wire.amqp10.composites import read_composite
from leveret.wire.amqp10.constants import CONNECTION_FRAMING_ERROR, DECODE_ERROR, MIN_MAX_FRAME_SIZE
from leveret.wire.amqp10.decode import NO_LIMIT, Decoder
from leveret.wire.amqp10.descriptors import DISPOSITION, FLOW, OPEN, TRANSFER
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.short import read_disposition, read_flow, read_transfer
from leveret.wire.amqp10.transport import Transfer
from leveret.wire.output_buffer import LARGE_PAYLOAD

# Kinds of the other items that `receive` returns; the kinds of performatives are their descriptors.
FAILURE: Final = 1
HEADER: Final = 2
EMPTY: Final = 3

# Protocol ids of headers.
AMQP: Final = 0
TLS: Final = 2
SASL: Final = 3

HEADER_SIZE: Final = 8
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

# The expected input.
_BEGINNING: Final = 0
_AMQP_FRAMES: Final = 1
_SASL_FRAMES: Final = 2
_NOTHING: Final = 3

# Cost in µs of a frame that is not in a short form, and its bytes per µs (as a power of two).
FRAME_COST: Final = 8
FRAME_COST_SHIFT: Final = 3

# Bytes of a frame with a large payload that are parsed without the payload.
_HEAD_SIZE: Final = 512

_U32: Final = struct.Struct(">I").unpack_from
_FRAME: Final = struct.Struct(">IBBH").unpack_from
_MAGIC: Final = 0x414D5150
# Ranges of the kinds of performatives in AMQP frames and in SASL frames.
_FIRST_PERFORMATIVE: Final = 0x10
_LAST_PERFORMATIVE: Final = 0x18
_FIRST_SASL: Final = 0x40
_LAST_SASL: Final = 0x44


class Failure(Performative):
    """The peer sent a malformed frame or performative. It is the last item: the reader discards further input.

    condition   the error condition of the close (transport 2.8.15, 2.8.16)
    text        description and position of the error
    """

    __slots__ = ("condition", "text")

    def __init__(self, channel: int, condition: str, text: str) -> None:
        self.kind = FAILURE
        self.channel = channel
        self.condition = condition
        self.text = text


class Header(Performative):
    """A protocol header (transport 2.2): `protocol` is AMQP, TLS or SASL, or another id."""

    __slots__ = ("major", "minor", "protocol", "revision")

    def __init__(self, protocol: int, major: int, minor: int, revision: int) -> None:
        self.kind = HEADER
        self.channel = 0
        self.protocol = protocol
        self.major = major
        self.minor = minor
        self.revision = revision

    def is_supported(self) -> bool:
        """Return whether the version is 1.0.0."""
        return self.major == 1 and self.minor == 0 and self.revision == 0


class Empty(Performative):
    """An AMQP frame without a body: a heartbeat (transport 2.4.5)."""

    __slots__ = ()

    def __init__(self, channel: int) -> None:
        self.kind = EMPTY
        self.channel = channel


class FrameReader:
    """A converter of input to protocol headers, performatives, empty frames and, at the end, a failure.

    max_frame_size      max-frame-size of the local `open`; applies after the peer's `open`
    first_frame_size    the limit before that, and for SASL frames; at least 512
    max_values          maximum number of values in the performative of a frame
    max_cost            units of about 1 µs after which `receive` defers the rest to the next call
    cost                cost of the last call of `receive`
    buffered            number of unread bytes
    more                whether complete frames are buffered, so that `receive` must be called again
    """

    __slots__ = (
        "_expected",
        "_large",
        "_limit",
        "_need",
        "_rest",
        "cost",
        "first_frame_size",
        "max_cost",
        "max_frame_size",
        "max_values",
        "more",
    )

    def __init__(
        self,
        max_frame_size: int,
        first_frame_size: int = 8192,
        header: bool = True,
        max_values: int = NO_LIMIT,
        max_cost: int = NO_LIMIT,
    ) -> None:
        """If `header` is false, the caller has read the AMQP protocol header."""
        self.max_values = max_values
        self.max_cost = max_cost
        self.cost = 0
        self.more = False
        self.max_frame_size = max(max_frame_size, MIN_MAX_FRAME_SIZE)
        self.first_frame_size = max(first_frame_size, MIN_MAX_FRAME_SIZE)
        self._expected = _BEGINNING if header else _AMQP_FRAMES
        self._limit = self.first_frame_size
        self._rest = bytearray()
        self._need = HEADER_SIZE
        # Whether the last frame was large, so that the next one is expected to be.
        self._large = False

    @property
    def buffered(self) -> int:
        return len(self._rest)

    def receive(self, data: bytes | memoryview) -> list[Performative]:
        """Return the items that `data` completes. Never raises; returns nothing after a `Failure`.

        A memoryview is not used after the call.
        """
        items: list[Performative] = []
        self.cost = 0
        self.more = False
        if self._expected == _NOTHING:
            return items
        pos = 0
        if self._rest:
            missing = self._need - len(self._rest)
            if missing > len(data):
                self._rest += data
                return items
            if missing > 0 and self._need > HEADER_SIZE:
                # Complete the frame by itself, so that the data after it is not copied.
                self._rest += memoryview(data)[:missing]
                pos = missing
                frame = bytes(self._rest)
                self._rest = bytearray()
                self._parse(frame, 0, items)
            else:
                self._rest += data
                data = bytes(self._rest)
                self._rest = bytearray()
        if self._expected != _NOTHING:
            if isinstance(data, bytes):
                self._parse(data, pos, items)
            else:
                self._parse_view(data, pos, items)
        return items

    def _parse_view(self, view: memoryview, pos: int, items: list[Performative]) -> None:
        """Read the frames from `pos`. The payloads of successive large transfers are copied singly, the rest together."""
        while self._large and self.cost < self.max_cost:
            size = self._large_transfer(view, pos, items)
            if not size:
                break
            pos += size
        if pos < len(view):
            self._parse(bytes(view[pos:]), 0, items)

    def _large_transfer(self, view: memoryview, pos: int, items: list[Performative]) -> int:
        """Read the frame at `pos` if it is a transfer in the short form with a large payload, and complete.

        Returns:
            Its size in bytes, 0 for other data.
        """
        head = bytes(view[pos : pos + _HEAD_SIZE])
        if len(head) < _HEAD_SIZE or self._expected != _AMQP_FRAMES:
            return 0
        size: int
        offset: int
        type: int
        channel: int
        size, offset, type, channel = _FRAME(head, 0)
        body = offset << 2
        if size < LARGE_PAYLOAD or size > self._limit or size > len(view) - pos or offset < 2 or type != AMQP_FRAME:
            return 0
        if (
            body + 6 > _HEAD_SIZE
            or head[body] != codes.DESCRIBED
            or head[body + 1] != codes.SMALL_ULONG
            or head[body + 2] != TRANSFER
            or head[body + 3] != codes.LIST_8
        ):
            return 0
        end = body + 5 + head[body + 4]
        if end > _HEAD_SIZE:
            return 0
        transfer = read_transfer(head, body + 6, end, head[body + 5], channel)
        if transfer is None:
            return 0
        transfer.payload = bytes(view[pos + end : pos + size])
        items.append(transfer)
        self.cost += 1
        return size

    def _parse(self, data: bytes, pos: int, items: list[Performative]) -> None:
        """Read the frames from `pos`, and keep the last one if it is incomplete."""
        cost = self.cost
        end = len(data)
        need = HEADER_SIZE
        size = 0
        while end - pos >= HEADER_SIZE:
            # Faster than a `struct`, whose result is a tuple.
            size = data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3]
            offset = data[pos + 4]
            type = data[pos + 5]
            channel = data[pos + 6] << 8 | data[pos + 7]
            if self._expected != _AMQP_FRAMES and (self._expected == _BEGINNING or size == _MAGIC):
                if not self._header(data, pos, items):
                    return
                pos += HEADER_SIZE
                continue
            if size > self._limit:
                self._fail(
                    items, channel, CONNECTION_FRAMING_ERROR, f"a frame of {size} bytes; expected at most {self._limit}"
                )
                return
            body = pos + (offset << 2)
            stop = pos + size
            if offset < 2 or body > stop:
                self._fail(
                    items,
                    channel,
                    CONNECTION_FRAMING_ERROR,
                    f"a frame of {size} bytes whose body begins at byte {offset << 2}",
                )
                return
            if type != (SASL_FRAME if self._expected == _SASL_FRAMES else AMQP_FRAME):
                self._fail(items, channel, CONNECTION_FRAMING_ERROR, f"unexpected frame type {type}")
                return
            if stop > end:
                need = size
                break
            performative = _read_short(data, body, stop, channel) if type == AMQP_FRAME else None
            if performative is not None:
                items.append(performative)
                cost += 1
            elif not self._frame(data, pos, body, stop, channel, items):
                return
            else:
                cost += FRAME_COST + (size >> FRAME_COST_SHIFT)
            pos = stop
            if cost >= self.max_cost and end - pos >= HEADER_SIZE:
                self.more = True
                break
        self.cost = cost
        self._large = size >= LARGE_PAYLOAD
        if pos < end:
            self._rest += memoryview(data)[pos:]
            self._need = need

    def _header(self, data: bytes, pos: int, items: list[Performative]) -> bool:
        """Read the protocol header at `pos`."""
        magic: int = _U32(data, pos)[0]
        if magic != _MAGIC:
            self._fail(items, 0, CONNECTION_FRAMING_ERROR, "expected a protocol header")
            return False
        header = Header(data[pos + 4], data[pos + 5], data[pos + 6], data[pos + 7])
        items.append(header)
        if header.protocol == SASL and self._expected == _BEGINNING:
            self._expected = _SASL_FRAMES
        elif header.protocol == AMQP:
            self._expected = _AMQP_FRAMES
        else:
            # TLS, or an unknown protocol: this reader cannot parse the following bytes.
            self._expected = _NOTHING
        return True

    def _frame(self, data: bytes, start: int, body: int, stop: int, channel: int, items: list[Performative]) -> bool:
        """Read the body of the frame at `start`, which has none of the short forms."""
        if body == stop:
            if self._expected == _SASL_FRAMES:
                self._fail(items, 0, CONNECTION_FRAMING_ERROR, "a SASL frame without a body")
                return False
            items.append(Empty(channel))
            return True
        decoder = Decoder(data, body, stop, self.max_values)
        try:
            composite = read_composite(decoder)
            performative = self._checked(composite, body, channel)
            if performative.kind == TRANSFER:
                if isinstance(performative, Transfer):
                    performative.payload = data[decoder.pos : stop]
            elif decoder.pos != stop:
                raise DecodeError(decoder.pos, f"expected the end of the frame, not {stop - decoder.pos} more bytes")
        except DecodeError as error:
            self._fail(items, channel, error.condition, f"{error.text} (at byte {error.position - start} of a frame)")
            return False
        if performative.kind == OPEN:
            self._limit = self.max_frame_size
        items.append(performative)
        return True

    def _checked(self, composite: Composite, body: int, channel: int) -> Performative:
        """Return the composite as a performative. Raises DecodeError if it cannot be the body of a frame."""
        if self._expected == _SASL_FRAMES:
            allowed = _FIRST_SASL <= composite.kind <= _LAST_SASL
        else:
            allowed = _FIRST_PERFORMATIVE <= composite.kind <= _LAST_PERFORMATIVE
        if not allowed or not isinstance(composite, Performative):
            raise DecodeError(body, f"expected a performative, not 0x{composite.kind:02x}", DECODE_ERROR)
        composite.channel = channel if self._expected == _AMQP_FRAMES else 0
        return composite

    def _fail(self, items: list[Performative], channel: int, condition: str, text: str) -> None:
        items.append(Failure(channel, condition, text))
        self._expected = _NOTHING


def _read_short(data: bytes, body: int, stop: int, channel: int) -> Performative | None:
    """Return a flow, transfer or disposition in its usual form; None for any other frame."""
    if stop - body < 6 or data[body] != codes.DESCRIBED or data[body + 1] != codes.SMALL_ULONG:
        return None
    kind = data[body + 2]
    if kind < FLOW or kind > DISPOSITION:
        return None
    code = data[body + 3]
    if code == codes.LIST_8:
        end = body + 5 + data[body + 4]
        count = data[body + 5]
        pos = body + 6
    elif code == codes.LIST_32 and stop - body >= 12:
        end = body + 8 + (data[body + 4] << 24 | data[body + 5] << 16 | data[body + 6] << 8 | data[body + 7])
        count = data[body + 8] << 24 | data[body + 9] << 16 | data[body + 10] << 8 | data[body + 11]
        pos = body + 12
    else:
        return None
    if end > stop:
        return None
    if kind == TRANSFER:
        transfer = read_transfer(data, pos, end, count, channel)
        if transfer is not None:
            transfer.payload = data[end:stop]
        return transfer
    if end != stop:
        return None
    if kind == DISPOSITION:
        return read_disposition(data, pos, end, count, channel)
    return read_flow(data, pos, end, count, channel)
