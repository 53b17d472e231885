"""The sans-I/O engine of AMQP 0-9 and 0-9-1: bytes in, commands out, and the reverse.

One class serves both peers. Invalid input never raises an exception: a protocol error becomes an `Error` command after the
commands that precede it. From then on, the engine discards input within the scope of the error, because the peer continues
to send until it receives the close. The caller answers with `connection.close` or `channel.close`, or, at socket scope,
closes the socket.

The caller answers the other methods in the order of the list. If it closes a channel, it must skip commands of that channel
that follow in the same list, because they have already been parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Union

from leveret.wire.amqp0 import assembly, states
from leveret.wire.amqp0.assembly import WireChannel
from leveret.wire.amqp0.commands import (
    CHANNEL_SCOPE,
    TICKET_SHIFT,
    Ack,
    Command,
    ContentMethod,
    ContentStart,
    Deliver,
    Error,
    Nack,
    Publish,
)
from leveret.wire.amqp0.constants import (
    CHANNEL_ERROR,
    CLIENT,
    COMMAND_INVALID,
    CONTENT_TOO_LARGE,
    FRAME_BODY,
    FRAME_END,
    FRAME_ERROR,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OOB_BODY,
    FRAME_OOB_HEADER,
    FRAME_OOB_METHOD,
    FRAME_OVERHEAD,
    FRAME_REQUEST,
    FRAME_RESPONSE,
    FRAME_TRACE,
    SERVER,
    SYNTAX_ERROR,
)
from leveret.wire.amqp0.dialects import Dialect
from leveret.wire.amqp0.machine import Machine
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.properties import HEADER_MIN_SIZE, check_header, scan
from leveret.wire.amqp0.requests import NUMBERS_SIZE
from leveret.wire.output_buffer import LARGE_PAYLOAD

__all__ = ["CLIENT", "SERVER", "Engine", "Input"]

# Input of an engine.
Input = Union[bytes, memoryview]

# A frame's type, channel and size; and the class and method indices of a method frame.
_FRAME: Final = struct.Struct(">BHI").unpack_from
_FRAME_AND_KEY: Final = struct.Struct(">BHII").unpack_from
# The same of a content header frame, with class, weight, body size and the first word of property flags.
_HEADER_FRAME: Final = struct.Struct(">BHIHHQH").unpack_from
_CONTENT_HEADER: Final = struct.Struct(">HHQ").unpack_from
_TAG_AND_BITS: Final = struct.Struct(">QB").unpack_from
_KEY: Final = struct.Struct(">I").unpack_from
# Size in bytes of a frame with basic.ack.
_ACK_SIZE: Final = 21

_FRAME_TYPES: Final = (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT)
_OUT_OF_BAND_TYPES: Final = (FRAME_OOB_METHOD, FRAME_OOB_HEADER, FRAME_OOB_BODY)
_NUMBERED_TYPES: Final = (FRAME_REQUEST, FRAME_RESPONSE)
_BASIC: Final = 60
_PUBLISH_KEY: Final = 60 << 16 | 40
_DELIVER_KEY: Final = 60 << 16 | 60
_ACK_KEY: Final = 60 << 16 | 80
_REJECT_KEY: Final = 60 << 16 | 90
_NACK_KEY: Final = 60 << 16 | 120
_NO_KEY: Final = -1

_DELIVERY_MODE_ONLY: Final = 0x1000

# Maximum size in bytes of a frame in the memo, and number of successive misses after which the memo is not used until the
# next call.
_MEMO_SIZE: Final = 512
_MEMO_PATIENCE: Final = 8
_NO_CHANNEL: Final = WireChannel(0)

NO_LIMIT: Final = 1 << 62
# Bytes that are parsed at a time between large payloads, and the mean size of the parts of a payload from which on they are
# not joined.
_WINDOW: Final = 1024
_PART: Final = 32768
# Smaller parts of a payload are joined as they arrive.
_SMALL_PART: Final = 8192
# Cost of a frame other than publish and acknowledgement, in units of about 1 µs, and bytes per unit as a power of two.
FRAME_COST: Final = 2
SIZE_SHIFT: Final = 4


class Memo:
    """The last publish, by its bytes.

    The next message of a publisher often has the same address and the same header. Comparing bytes is cheaper than parsing
    them, and equal addresses and headers share one object.

    Attributes:
        frame: the method frame, from which `number`, `address` and `flags` were decoded.
        next: the header frame and the first 7 bytes of the body frame, from which the other fields were decoded.
        whole: `frame` and `next`, after a message that equaled both, until one that does not; empty otherwise.
    """

    __slots__ = (
        "address",
        "channel",
        "delivery_mode",
        "expiration",
        "flags",
        "frame",
        "frame_size",
        "header",
        "headers_at",
        "next",
        "next_number",
        "next_size",
        "number",
        "patience",
        "priority",
        "size",
        "user_id",
        "whole",
        "whole_size",
    )

    def __init__(self) -> None:
        self.patience = _MEMO_PATIENCE
        self.whole = b""
        self.whole_size = 0
        self.frame = b""
        self.frame_size = 0
        self.number = 0
        self.channel: WireChannel = _NO_CHANNEL
        self.address = b""
        self.flags = 0
        self.next = b""
        self.next_size = 0
        self.next_number = 0
        self.header = b""
        self.size = 0
        self.delivery_mode = 0
        self.priority = -1
        self.expiration: bytes | None = None
        self.user_id: bytes | None = None
        self.headers_at = -1

    def remember_header(self, publish: Publish) -> None:
        """Remember the fields of a parsed header."""
        self.header = publish.header
        self.size = publish.size
        self.delivery_mode = publish.delivery_mode
        self.priority = publish.priority
        self.expiration = publish.expiration
        self.user_id = publish.user_id
        self.headers_at = publish.headers_at

    def publish(self, number: int, address: bytes, flags: int, body: bytes) -> Publish:
        """Return a publish with the remembered header."""
        return Publish(
            number,
            address,
            flags,
            self.header,
            self.size,
            body,
            self.delivery_mode,
            self.priority,
            self.expiration,
            self.user_id,
            self.headers_at,
        )

    def combine(self) -> None:
        """Compare both parts at once from now on, because the last message equaled both."""
        self.whole = self.frame + self.next
        self.whole_size = self.frame_size + self.next_size

    def separate(self) -> None:
        """Compare each part alone from now on, because the last frames differed."""
        self.whole = b""
        self.whole_size = 0


# The memo of a connection without a publish, which most connections are.
_NO_MEMO: Final = Memo()


class Engine(Machine):
    """One connection.

    Until `connection.tune-ok`, `frame_max`, `channel_max` and `heartbeat` are the server's proposal, then the negotiated
    values.

    Attributes:
        role: SERVER, which gets the input after the protocol header, or CLIENT, which sends that header itself.
        version: the table of methods, `V0_9_1` or `V0_9`.
        frame_max: maximum size of a frame in bytes.
        channel_max: maximum number of channels.
        heartbeat: interval in seconds.
        max_body_size: maximum size in bytes of a content. A larger one is an error at channel scope.
        max_upload_size: the same for `file.stage`; `max_body_size` by default.
        spools_uploads: whether the body of a `file.stage` is forwarded as it arrives; True for a server.
        spool_threshold: size in bytes above which the body of a publish is forwarded as it arrives.
        dialect: dialect of field tables; by default RabbitMQ's for 0-9-1 and Qpid's for 0-9.
        strict_framing: whether a frame with an unknown type or a wrong end is an error at socket scope rather than
            connection scope.
        max_cost: cost above which `receive` leaves the rest of the input to the next call, in units of about 1 µs.
        cost: cost of the last call.
        more: whether the last call has left input.
        received_any: whether there was any input since the last `take_received`.
        state: state of the connection, one of `states`.
        lost: whether the frame boundaries are lost, so that no further input can be parsed, not even close-ok.
    """

    __slots__ = (
        "_ack_key",
        "_content_key",
        "_gathered",
        "_has_tickets",
        "_large_expected",
        "_large_memo",
        "_memo",
        "_missing",
        "_nack_key",
        "_needed",
        "_parts",
        "_parts_of",
        "_reject_key",
        "_rest",
        "_small",
        "_unpack_large",
        "cost",
        "max_cost",
        "more",
        "received_any",
    )

    def __init__(
        self,
        role: int,
        version: Version,
        *,
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat: int = 60,
        max_body_size: int = 134217728,
        spool_threshold: int = 1 << 20,
        dialect: Dialect | None = None,
        strict_framing: bool = False,
    ) -> None:
        super().__init__(
            role, version, frame_max, channel_max, heartbeat, max_body_size, spool_threshold, dialect, strict_framing
        )
        self.received_any = False
        self.max_cost = NO_LIMIT
        self.cost = 0
        self.more = False
        # A partially received frame: its first piece, or the pieces collected if there are more, otherwise None.
        self._rest = b""
        self._gathered: bytearray | None = None
        self._needed = 0
        # A partially received body frame with a large payload: its channel, the payload so far, of which the end may be a
        # small part, and the number of missing bytes with the frame end; None and 0 if there is no such frame.
        self._parts_of = 0
        self._parts: list[bytes] | None = None
        self._small: bytearray | None = None
        self._missing = 0
        # Whether another large content is expected, whose method and header are parsed without its payload.
        self._large_expected = False
        self._memo = _NO_MEMO
        # The last publish with a large body in one frame.
        self._large_memo = _NO_MEMO
        self._unpack_large: Callable[[memoryview, int], tuple[bytes, bytes, int]] | None = None
        self._content_key = _PUBLISH_KEY if self._is_server else _DELIVER_KEY
        # In 0-9-1, the field is reserved, but some clients still set it.
        self._has_tickets = version.name == "0-9"
        self._ack_key = self._hot_key(_ACK_KEY)
        self._nack_key = self._hot_key(_NACK_KEY)
        self._reject_key = self._hot_key(_REJECT_KEY)

    def _hot_key(self, key: int) -> int:
        spec = self.version.methods.get(key)
        return key if spec is not None and self._receives(spec) else _NO_KEY

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame or content is incomplete. True after a protocol error."""
        return self.state >= states.FAILED or not (
            self._rest
            or self._gathered is not None
            or self._missing
            or any(channel.stage in (assembly.HEADER, assembly.BODY) for channel in self._channels.values())
        )

    def take_received(self) -> bool:
        """Return whether there was any input since the last call."""
        received = self.received_any
        self.received_any = False
        return received

    def receive(self, data: Input) -> list[Command]:
        """Return the commands that `data` completes, in order. Invalid input never raises an exception.

        If the cost exceeds `max_cost`, `more` is set, and the next call continues, with or without data. A memoryview is
        not used after the call. Large payloads are copied out of it once.
        """
        out: list[Command] = []
        self.cost = 0
        if len(data):
            self.received_any = True
        elif not self.more:
            return out
        self.more = False
        used = 0
        if isinstance(data, bytes) and not self._missing:
            used = self._receive(data, out)
        if used < len(data):
            self._receive_view(memoryview(data)[used:], out)
        return out

    def _receive(self, data: bytes, out: list[Command]) -> int:
        """Parse data that follows the incomplete frame, if there is one.

        Returns:
            The end of the data that was used. It is less than all if a large payload begins there.
        """
        kept = len(self._rest)
        gathered = self._gathered
        if kept:
            if kept + len(data) < self._needed:
                gathered = bytearray(self._rest)
                gathered += data
                self._gathered = gathered
                self._rest = b""
                return len(data)
            data = self._rest + data
            self._rest = b""
        elif gathered is not None:
            kept = len(gathered)
            gathered += data
            if len(gathered) < self._needed:
                return len(data)
            data = bytes(gathered)
            self._gathered = None
        if self.lost or self.state >= states.CLOSE_RECEIVED:
            return len(data) - kept
        pos = self._parse(data, out)
        if pos < len(data) and not self.lost:
            if not self.more and pos + FRAME_HEADER_SIZE >= kept and self._begin_payload(data, pos):
                return pos + FRAME_HEADER_SIZE - kept
            self._rest = data[pos:]
        return len(data) - kept

    def _receive_view(self, view: memoryview, out: list[Command]) -> None:
        """Parse data of which large payloads are copied by themselves, and only what is between them together."""
        pos = 0
        size = len(view)
        memo = self._large_memo
        if memo.patience <= 0:
            memo.patience = 1
        while pos < size:
            if self._missing:
                pos = self._add_payload(view, pos, out)
            else:
                begins = not self._rest and self._gathered is None
                used = self._next_large(view, pos, out) if begins else 0
                if not used:
                    # If a large content is expected, only the frames before its payload.
                    end = pos + _WINDOW if self._large_expected else size
                    self._large_expected = False
                    used = self._receive(bytes(view[pos:end]), out)
                    if self._missing and begins and memo.patience > 0:
                        self._remember_large(bytes(view[pos : pos + used]))
                pos += used
            if self.more or (self.cost > self.max_cost and not self._missing and pos < size):
                self.more = True
                self._keep(bytes(view[pos:]))
                break
        if out:
            last = out[-1]
            if isinstance(last, Publish):
                self._expect(last.size)

    def _expect(self, size: int) -> None:
        """Expect that the next content has the size of the last one.

        A body in one frame is parsed together with its method and header unless these are the remembered ones.
        """
        self._large_expected = size > self._fused_size or (size >= LARGE_PAYLOAD and self._large_memo.patience > 0)

    def _remember_large(self, frames: bytes) -> None:
        """Remember a publish whose payload begins after these frames, if there is nothing else in them."""
        channel = self._channels[self._parts_of]
        publish = channel.publish
        if publish is None or publish.size != self._missing - 1 or len(frames) > _MEMO_SIZE:
            return
        number: int
        size: int
        key: int
        _, number, size, key = _FRAME_AND_KEY(frames, 0)
        if (
            frames[0] != FRAME_METHOD
            or number != channel.number
            or key != self._content_key
            or size + len(publish.header) + 2 * FRAME_OVERHEAD + FRAME_HEADER_SIZE != len(frames)
        ):
            return
        memo = self._large_memo
        if memo is _NO_MEMO:
            memo = self._large_memo = Memo()
        memo.patience -= 1
        # One call copies the frames, the body and the frame end, which is cheaper than to slice the view.
        self._unpack_large = struct.Struct(f"{len(frames)}s{publish.size}sB").unpack_from
        memo.whole = frames
        memo.whole_size = len(frames)
        memo.channel = channel
        memo.number = number
        memo.address = publish.address
        memo.flags = publish.flags
        memo.remember_header(publish)

    def _keep(self, data: bytes) -> None:
        """Keep data for the next call, after what is kept already."""
        gathered = self._gathered
        if gathered is not None:
            gathered += data
        elif self._rest:
            self._rest += data
        else:
            self._rest = data
            self._needed = FRAME_OVERHEAD

    def _next_large(self, view: memoryview, pos: int, out: list[Command]) -> int:
        """Parse a publish with the remembered frames and a large body, or the start of a body frame with a large payload.

        Returns:
            The number of bytes used, 0 if other data follows.
        """
        memo = self._large_memo
        unpack = self._unpack_large
        if unpack is not None and self.state < states.FAILED and memo.channel.stage == assembly.METHOD:
            size = memo.whole_size + memo.size + 1
            if size <= len(view) - pos:
                frames: bytes
                body: bytes
                end: int
                frames, body, end = unpack(view, pos)
                if frames == memo.whole and end == FRAME_END:
                    memo.patience = _MEMO_PATIENCE
                    out.append(memo.publish(memo.number, memo.address, memo.flags, body))
                    return size
                self._unpack_large = None
        if view[pos] == FRAME_BODY and self._begin_payload(bytes(view[pos : pos + FRAME_HEADER_SIZE]), 0):
            return FRAME_HEADER_SIZE
        return 0

    def _begin_payload(self, data: bytes, pos: int) -> bool:
        """Begin to receive the payload of a body frame by itself. Return False if it is not large, or not expected."""
        if len(data) - pos < FRAME_HEADER_SIZE or self.state >= states.FAILED:
            return False
        frame_type: int
        number: int
        size: int
        frame_type, number, size = _FRAME(data, pos)
        channel = self._channels.get(number)
        if (
            frame_type != FRAME_BODY
            or not LARGE_PAYLOAD <= size <= self._limit
            or channel is None
            or channel.stage != assembly.BODY
            or size > channel.remaining
        ):
            return False
        self._parts_of = number
        self._missing = size + 1
        return True

    def _add_part(self, part: memoryview) -> None:
        """Keep a part of a payload. Small parts are joined: a list of single bytes would need many times their size."""
        if len(part) >= _SMALL_PART:
            self._flush_small()
            self._append_part(bytes(part))
            return
        small = self._small
        if small is None:
            small = self._small = bytearray()
        small += part
        if len(small) >= _SMALL_PART:
            self._flush_small()

    def _append_part(self, part: bytes) -> None:
        parts = self._parts
        if parts is None:
            self._parts = [part]
        else:
            parts.append(part)

    def _flush_small(self) -> None:
        small = self._small
        if small is not None:
            self._small = None
            self._append_part(bytes(small))

    def _add_payload(self, view: memoryview, pos: int, out: list[Command]) -> int:
        """Add data to the payload that is being received. Return the end of what was used."""
        size = min(self._missing - 1, len(view) - pos)
        if size:
            self._add_part(view[pos : pos + size])
            self._missing -= size
            pos += size
        if self._missing > 1 or pos == len(view):
            return pos
        self._missing = 0
        self._flush_small()
        parts = self._parts or []
        self._parts = None
        number = self._parts_of
        if view[pos] != FRAME_END:
            self.lost = True
            if self.state < states.FAILED:
                self._fail_framing(out, number, f"a frame ends with byte {view[pos]} instead of {FRAME_END}")
            return len(view)
        self.cost += FRAME_COST
        channel = self._channels.get(number)
        if self.state < states.FAILED and channel is not None and channel.stage == assembly.BODY:
            self._expect(channel.size)
            size = 0
            for part in parts:
                size += len(part)
            if len(parts) > 1 and (size == channel.size or size < len(parts) * _PART):
                parts = [b"".join(parts)]
            for part in parts:
                channel.add(part, out)
        return pos + 1

    def _parse(self, data: bytes, out: list[Command]) -> int:
        """Parse all complete frames. Return the position of the first incomplete one.

        Frequent well-formed input is decoded here in one pass, including the header and body of a publish or delivery. All
        other input goes to `_frame_received`, which decodes any frame.
        """
        pos = 0
        available = len(data)
        limit = self._limit
        is_server = self._is_server
        content_key = self._content_key
        channels = self._hot
        memo = self._memo
        if memo.patience <= 0:
            memo.patience = 1
        follow = memo.frame_size > 0
        max_cost = self.max_cost
        channel: WireChannel | None
        frame_type: int
        number: int
        size: int
        key: int
        body_at: int
        body_end: int
        tag: int
        bits: int
        while available - pos >= 8:
            if memo.whole_size > 0:
                body_at = pos + memo.whole_size
                if data[pos:body_at] == memo.whole and memo.channel.stage == assembly.METHOD:
                    body_end = body_at + memo.size
                    if body_end < available and data[body_end] == FRAME_END:
                        pos = body_end + 1
                        out.append(memo.publish(memo.number, memo.address, memo.flags, data[body_at:body_end]))
                        continue
                else:
                    memo.separate()
            if follow and data[pos : pos + memo.frame_size] == memo.frame and memo.channel.stage == assembly.METHOD:
                # The same publish again, except perhaps for the body.
                number = memo.number
                channel = memo.channel
                address = memo.address
                bits = memo.flags
                content_pos = pos + memo.frame_size
                followed = True
            else:
                followed = False
                if available - pos >= 11:
                    frame_type, number, size, key = _FRAME_AND_KEY(data, pos)
                else:
                    frame_type, number, size = _FRAME(data, pos)
                    key = _NO_KEY
                start = pos + 7
                end = start + size
                if size > limit:
                    self._lose(out, number, f"a frame of {size + FRAME_OVERHEAD} bytes exceeds the negotiated maximum")
                    return available
                if end >= available:
                    # Do not wait for the rest of an invalid frame.
                    self._check_type(out, number, frame_type)
                    self._needed = size + FRAME_OVERHEAD
                    return pos
                if data[end] != FRAME_END:
                    self._check_type(out, number, frame_type)
                    self.lost = True
                    if self.state < states.FAILED:
                        self._fail_framing(out, number, f"a frame ends with byte {data[end]} instead of {FRAME_END}")
                    return available
                channel = channels.get(number)
                if channel is None or frame_type != FRAME_METHOD or channel.stage != assembly.METHOD or size < 9:
                    pos = end + 1
                    self._frame_received(frame_type, number, self._channels.get(number), data, start, end, out)
                    limit = self._limit
                    channels = self._hot
                    self.cost += FRAME_COST if frame_type == FRAME_BODY else FRAME_COST + (size >> SIZE_SHIFT)
                    if self.cost > max_cost:
                        self.more = available - pos >= 8
                        break
                    continue
                if key != content_key:
                    pos = end + 1
                    follow = False
                    if size == 13 and key == self._ack_key:
                        tag, bits = _TAG_AND_BITS(data, start + 4)
                        out.append(Ack(number, tag, bits & 1 == 1))
                        if available - pos >= _ACK_SIZE:
                            pos = self._acks(number, data, start, pos, out)
                    elif size == 13 and key == self._nack_key:
                        tag, bits = _TAG_AND_BITS(data, start + 4)
                        out.append(Nack(number, tag, bits & 1 == 1, bits & 2 == 2, False))
                    elif size == 13 and key == self._reject_key:
                        tag, bits = _TAG_AND_BITS(data, start + 4)
                        out.append(Nack(number, tag, False, bits & 1 == 1, True))
                    else:
                        self._frame_received(frame_type, number, channel, data, start, end, out)
                        limit = self._limit
                        self.cost += FRAME_COST + (size >> SIZE_SHIFT)
                        if self.cost > max_cost:
                            self.more = available - pos >= 8
                            break
                    continue
                # basic.publish at a server, basic.deliver at a client. Exchange and routing key are between the ticket and
                # the bits of a publish, and after the tags of a delivery.
                if is_server:
                    at = start + 6
                    stop = end - 1
                    bits = data[stop] & 3
                    if self._has_tickets:
                        bits |= (data[start + 4] << 8 | data[start + 5]) << TICKET_SHIFT
                else:
                    at = start + 14 + data[start + 4]
                    stop = end
                    bits = 0
                middle = at + 1 + data[at] if at < stop else stop
                if middle >= stop or middle + 1 + data[middle] != stop:
                    pos = end + 1
                    self._frame_received(frame_type, number, channel, data, start, end, out)
                    continue
                address = data[at:stop]
                content_pos = end + 1
                if not is_server:
                    channel.consumer_tag = data[start + 5 : at - 9]
                    channel.delivery_tag, tag = _TAG_AND_BITS(data, at - 9)
                    channel.redelivered = tag & 1 == 1
                elif size < _MEMO_SIZE and memo.patience > 0:
                    if memo is _NO_MEMO:
                        memo = self._memo = Memo()
                    memo.patience -= 1
                    memo.frame = data[pos:content_pos]
                    memo.frame_size = content_pos - pos
                    memo.number = number
                    memo.channel = channel
                    memo.address = address
                    memo.flags = bits
                    follow = True
                else:
                    follow = False
            # The method is parsed. Parse the content at once if it is complete and has a common form, else frame by frame.
            if number == memo.next_number and data[content_pos : content_pos + memo.next_size] == memo.next:
                body_at = content_pos + memo.next_size
                body_end = body_at + memo.size
                if body_end < available and data[body_end] == FRAME_END:
                    memo.patience = _MEMO_PATIENCE
                    pos = body_end + 1
                    if is_server:
                        out.append(memo.publish(number, address, bits, data[body_at:body_end]))
                        if followed:
                            memo.combine()
                    else:
                        out.append(
                            Deliver(
                                number,
                                channel.consumer_tag,
                                channel.delivery_tag,
                                channel.redelivered,
                                address,
                                memo.header,
                                memo.size,
                                data[body_at:body_end],
                            )
                        )
                    continue
            pos = self._content(channel, address, bits, data, content_pos, out)
        self._needed = FRAME_OVERHEAD
        return pos

    def _acks(self, number: int, data: bytes, start: int, pos: int, out: list[Command]) -> int:
        """Parse the acks that follow one of the same channel, whose payload begins at `start`. Return where they end."""
        head = data[start - 7 : start + 4]
        last = len(data) - _ACK_SIZE
        tag: int
        bits: int
        while pos <= last and data[pos + _ACK_SIZE - 1] == FRAME_END and data[pos : pos + 11] == head:
            tag, bits = _TAG_AND_BITS(data, pos + 11)
            out.append(Ack(number, tag, bits & 1 == 1))
            pos += _ACK_SIZE
        return pos

    def _content(self, channel: WireChannel, address: bytes, flags: int, data: bytes, pos: int, out: list[Command]) -> int:
        """Parse the content of a publish or a delivery, whose header frame begins at `pos`.

        Returns:
            The end of the content. If the content is incomplete, has more than one body frame, or is malformed, the channel
            waits for its header, and the result is `pos`.
        """
        number = channel.number
        available = len(data)
        limit = self.payload_max
        if available - pos >= HEADER_MIN_SIZE + FRAME_OVERHEAD:
            frame_type: int
            frame_number: int
            header_size: int
            class_id: int
            weight: int
            body_size: int
            property_flags: int
            frame_type, frame_number, header_size, class_id, weight, body_size, property_flags = _HEADER_FRAME(data, pos)
            header_at = pos + 7
            header_end = header_at + header_size
            if (
                frame_type == FRAME_HEADER
                and frame_number == number
                and HEADER_MIN_SIZE <= header_size <= limit
                and header_end < available
                and data[header_end] == FRAME_END
                and class_id == _BASIC
                and weight == 0
                and body_size <= self._fused_size
            ):
                size = 0
                body_at = body_end = header_end
                if body_size:
                    body_at = header_end + 8
                    body_end = body_at + body_size
                    if body_end < available and data[body_end] == FRAME_END:
                        frame_type, frame_number, size = _FRAME(data, header_end + 1)
                        if frame_type != FRAME_BODY or frame_number != number:
                            size = 0
                if size == body_size:
                    header = data[header_at:header_end]
                    publish = Publish(
                        number, address, flags, header, body_size, data[body_at:body_end], 0, -1, None, None, -1
                    )
                    sound = True
                    if property_flags == _DELIVERY_MODE_ONLY and header_size == HEADER_MIN_SIZE + 1:
                        publish.delivery_mode = header[HEADER_MIN_SIZE]
                    elif property_flags or header_size != HEADER_MIN_SIZE:
                        sound = scan(publish, header, self.dialect)
                    if sound:
                        if self._is_server:
                            out.append(publish)
                        else:
                            out.append(
                                Deliver(
                                    number,
                                    channel.consumer_tag,
                                    channel.delivery_tag,
                                    channel.redelivered,
                                    address,
                                    header,
                                    body_size,
                                    publish.body,
                                )
                            )
                        if body_size and header_size < _MEMO_SIZE and self._memo.patience > 0:
                            self._remember(publish, data[pos:body_at])
                        return body_end + 1
        channel.stage = assembly.HEADER
        channel.spec = None
        channel.address = address
        channel.flags = flags
        return pos

    def _remember(self, publish: Publish, frames: bytes) -> None:
        """Remember the parsed header frame and the start of the body frame."""
        memo = self._memo
        if memo is _NO_MEMO:
            memo = self._memo = Memo()
        memo.patience -= 1
        memo.next = frames
        memo.next_size = len(frames)
        memo.next_number = publish.channel
        memo.remember_header(publish)

    def _frame_received(
        self, type: int, number: int, channel: WireChannel | None, data: bytes, start: int, end: int, out: list[Command]
    ) -> None:
        """Handle a frame outside the hot path. Its payload is between `start` and `end`."""
        if type == FRAME_METHOD and self._numbers is None:
            self._method_received(number, channel, data, start, end, out)
        elif type == FRAME_METHOD or (type in _NUMBERED_TYPES and self.version.name == "0-9"):
            self._numbered_received(type, number, channel, data, start, end, out)
        elif self.state >= states.FAILED:
            pass
        elif type in (FRAME_BODY, FRAME_HEADER):
            if channel is None:
                self._fail(out, number, CHANNEL_ERROR, f"content on channel {number}, which is not open")
            elif channel.stage == assembly.NOTHING:
                pass
            elif type == FRAME_BODY and channel.stage == assembly.BODY:
                if end - start > channel.remaining:
                    self._fail(out, number, self._unexpected, "a content body is longer than its header says")
                else:
                    channel.add(data[start:end], out)
            elif type == FRAME_HEADER and channel.stage == assembly.HEADER:
                self._header_received(channel, data[start:end], out)
            else:
                kind = "body" if type == FRAME_BODY else "header"
                self._fail(out, number, self._unexpected, f"a content {kind} frame out of order")
        elif type == FRAME_HEARTBEAT:
            if number or end != start:
                self._fail(out, number, FRAME_ERROR, "a heartbeat must be empty and on channel 0")
        elif type == FRAME_TRACE and self.version.name == "0-9":
            # There is no trace handler, so trace frames are discarded.
            if number:
                self._fail(out, number, FRAME_ERROR, "a trace frame must be on channel 0")
        else:
            self._check_type(out, number, type)

    def _check_type(self, out: list[Command], number: int, type: int) -> None:
        if self.version.name == "0-9":
            if type in _NUMBERED_TYPES or type == FRAME_TRACE:
                return
            if type in _OUT_OF_BAND_TYPES and self.state < states.FAILED:
                self._fail(
                    out,
                    number,
                    CHANNEL_ERROR,
                    f"an out-of-band frame on channel {number}, which was not opened for"
                    " such transfers: they are not supported",
                )
                return
        if type not in _FRAME_TYPES and self.state < states.FAILED:
            self._fail_framing(out, number, f"frame type {type} does not exist")

    def _numbered_received(
        self, type: int, number: int, channel: WireChannel | None, data: bytes, start: int, end: int, out: list[Command]
    ) -> None:
        """Handle a request or a response, or a method frame in their place."""
        if (
            self._numbers is None
            and type == FRAME_REQUEST
            and self._is_server
            and self.state == states.OPEN
            and number == 0
            and self.version.requests is not None
        ):
            # Even if it is malformed, the client has chosen the type of its frames.
            self._begin_requests(self.version.requests)
        numbers = self._numbers
        if numbers is None or type == FRAME_METHOD:
            if self.state < states.FAILED:
                self._fail(
                    out,
                    number,
                    FRAME_ERROR,
                    f"a frame of type {type}: since connection.open, methods of this connection use frame"
                    f" {'type 1' if numbers is None else 'types 9 and 10'}",
                )
            return
        kind = "request" if type == FRAME_REQUEST else "response"
        at = start + NUMBERS_SIZE
        if end - at < 4:
            if self.state < states.FAILED:
                self._fail(
                    out, number, FRAME_ERROR, f"a {kind} of {end - start} bytes is too short for its numbers and its method"
                )
            return
        key: int = _KEY(data, at)[0]
        spec = self.version.methods.get(key)
        name = f"method {key >> 16}.{key & 0xFFFF}" if spec is None else spec.name
        request = replied_first = replied_last = 0
        problem: str
        if type == FRAME_REQUEST:
            request, problem = numbers.request_received(
                number, data, start, channel is None and name in ("channel.open", "channel.resume")
            )
        else:
            replied_first, replied_last, problem = numbers.response_received(number, data, start)
        if not problem and spec is not None and (name in self.version.responses) != (type == FRAME_RESPONSE):
            problem = f"{name} in a {kind}"
        if problem and self.state < states.FAILED:
            self._fail(out, number, COMMAND_INVALID, problem, key >> 16, key & 0xFFFF)
        elif (
            channel is None
            or channel.stage != assembly.METHOD
            or not self._hot_method_received(channel, key, data, at, end, out)
        ):
            self._method_received(number, channel, data, at, end, out, request, replied_first, replied_last)

    def _hot_method_received(
        self, channel: WireChannel, key: int, data: bytes, start: int, end: int, out: list[Command]
    ) -> bool:
        """Handle a request with a method of the hot path. Return False for other methods and malformed ones."""
        number = channel.number
        tag: int
        bits: int
        if key == self._content_key:
            at = start + (6 if self._is_server else 14 + data[start + 4])
            stop = end - 1 if self._is_server else end
            middle = at + 1 + data[at] if at < stop else stop
            if middle >= stop or middle + 1 + data[middle] != stop:
                return False
            channel.stage = assembly.HEADER
            channel.spec = None
            channel.address = data[at:stop]
            if self._is_server:
                channel.flags = data[stop] & 3 | (data[start + 4] << 8 | data[start + 5]) << TICKET_SHIFT
            else:
                channel.consumer_tag = data[start + 5 : at - 9]
                channel.delivery_tag, tag = _TAG_AND_BITS(data, at - 9)
                channel.redelivered = tag & 1 == 1
            return True
        if end - start != 13 or key not in (self._ack_key, self._reject_key):
            return False
        tag, bits = _TAG_AND_BITS(data, start + 4)
        if key == self._ack_key:
            out.append(Ack(number, tag, bits & 1 == 1))
        else:
            out.append(Nack(number, tag, False, bits & 1 == 1, True))
        return True

    def _header_received(self, channel: WireChannel, header: bytes, out: list[Command]) -> None:
        """Handle the content header of the preceding method (0-9-1 section 4.2.6.1)."""
        number = channel.number
        spec = channel.spec
        method_class = _BASIC
        method_id = self._content_key & 0xFFFF
        if spec is not None:
            method_class = spec.class_id
            method_id = spec.method_id
        if len(header) < HEADER_MIN_SIZE:
            self._fail(out, number, SYNTAX_ERROR, "the content header is too short", method_class, method_id)
            return
        if self._is_server and len(header) > self.payload_max:
            # Without the slack of other frames: a consumer with the same limit must be able to receive it.
            self._fail(
                out,
                number,
                FRAME_ERROR,
                f"a header frame of {len(header) + FRAME_OVERHEAD} bytes exceeds the frame-max of {self.frame_max}",
                method_class,
                method_id,
            )
            return
        class_id: int
        weight: int
        body_size: int
        class_id, weight, body_size = _CONTENT_HEADER(header, 0)
        if class_id != method_class:
            self._fail(
                out,
                number,
                self._unexpected,
                f"a content header of class {class_id} for a method of class {method_class}",
                method_class,
                method_id,
            )
            return
        if weight:
            self._fail(
                out, number, FRAME_ERROR, f"the weight of a content must be 0, not {weight}", method_class, method_id
            )
            return
        publish: Publish | None = None
        if spec is None and self._is_server:
            publish = Publish(number, channel.address, channel.flags, header, body_size, b"", 0, -1, None, None, -1)
            sound = scan(publish, header, self.dialect)
        else:
            sound = check_header(header, self.dialect, self.version)
        if not sound:
            self._fail(
                out, number, SYNTAX_ERROR, "the properties of a content header are malformed", method_class, method_id
            )
            return
        stages = spec is not None and spec.name == "file.stage"
        if body_size > (self.max_upload_size if stages else self.max_body_size):
            channel.close(states.CHANNEL_FAILED)
            out.append(
                Error(
                    number,
                    CHANNEL_SCOPE,
                    CONTENT_TOO_LARGE,
                    f"a body of {body_size} bytes exceeds the maximum of {self.max_body_size}",
                    method_class,
                    method_id,
                )
            )
            return
        channel.header = header
        channel.size = body_size
        channel.remaining = body_size
        channel.publish = publish
        channel.stage = assembly.BODY
        if body_size == 0:
            channel.finish(out)
        elif publish is not None and body_size > self.spool_threshold:
            channel.spooling = True
            out.append(ContentStart(number, publish))
        elif stages and spec is not None and self.spools_uploads:
            channel.spooling = True
            out.append(
                ContentStart(
                    number,
                    None,
                    ContentMethod(number, spec.name, method_class, method_id, channel.arguments, header, body_size, b""),
                )
            )
