"""The engine of AMQP 0-9 and 0-9-1: octets in, commands out, and the reverse. No sockets, no clocks.

One class serves both peers. `receive` never raises on what it is given: a peer that breaks the protocol becomes an `Error`
command, behind the commands that came before it. From then on the engine discards what the error's scope covers, as the
peer goes on sending until it learns of it; the caller answers with `connection.close` or `channel.close`, or, at socket
scope, closes the socket.

The caller answers the other methods in the order of the list. When it closes a channel while commands of that channel
follow in the same list, it must skip those: they were parsed before.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from leveret.wire.amqp0 import assembly, states
from leveret.wire.amqp0.assembly import WireChannel
from leveret.wire.amqp0.commands import (
    CHANNEL_SCOPE,
    CONNECTION_SCOPE,
    METHOD,
    SOCKET_SCOPE,
    Ack,
    Body,
    Command,
    ContentStart,
    Deliver,
    Error,
    Method,
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
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    FRAME_SIZE_BEFORE_OPEN,
    FRAME_SLACK,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    SERVER,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
)
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.methods import decode_arguments, encode_arguments
from leveret.wire.amqp0.model import MethodSpec, Version
from leveret.wire.amqp0.output import Output
from leveret.wire.amqp0.properties import HEADER_MIN_SIZE, check_header, scan

__all__ = ["CLIENT", "SERVER", "Engine"]

# A frame's type, channel and size; and the class and method indices of a method frame.
_FRAME: Final = struct.Struct(">BHI").unpack_from
_FRAME_AND_KEY: Final = struct.Struct(">BHII").unpack_from
# The same of a content header frame, with class, weight, body size and the first word of property flags.
_HEADER_FRAME: Final = struct.Struct(">BHIHHQH").unpack_from
_CONTENT_HEADER: Final = struct.Struct(">HHQ").unpack_from
_TAG_AND_BITS: Final = struct.Struct(">QB").unpack_from
_U32: Final = struct.Struct(">I").unpack_from

_CONNECTION: Final = 10
_CHANNEL: Final = 20
_BASIC: Final = 60
_PUBLISH_KEY: Final = 60 << 16 | 40
_DELIVER_KEY: Final = 60 << 16 | 60
_ACK_KEY: Final = 60 << 16 | 80
_REJECT_KEY: Final = 60 << 16 | 90
_NACK_KEY: Final = 60 << 16 | 120
_NO_KEY: Final = -1

_DELIVERY_MODE_ONLY: Final = 0x1000

_CONNECTION_CLOSE: Final = ("connection.close", "connection.close-ok")
_CHANNEL_CLOSE: Final = ("channel.close", "channel.close-ok")
_CONNECTION_CLOSE_OK: Final = struct.pack(">HH", 10, 51)
_CHANNEL_CLOSE_OK: Final = struct.pack(">HH", 20, 41)


class Engine(Output):
    """One connection.

    role            SERVER (which is given what follows the protocol header) or CLIENT (which sends that header itself)
    version         the table of methods, `V0_9_1` or `V0_9`
    frame_max, channel_max, heartbeat
                    what is proposed (by a server, octets, channels and seconds) until `connection.tune-ok`; what was agreed
                    from then on
    max_body_size   octets; a content that announces more is an error of its channel
    spool_threshold octets; the body of a publish that is larger is handed on as it comes
    dialect         of field tables; RabbitMQ's for 0-9-1 and Qpid's for 0-9 unless given
    received_any    set by every octet that comes, for whoever watches heartbeats and clears it
    state           of the connection, one of `states`
    lost            the boundaries of the frames are lost: nothing that comes can be understood, no close-ok either
    """

    __slots__ = ("_ack_key", "_can_close", "_channels", "_content_key", "_fused_size", "_gathered", "_is_server", "_limit", "_nack_key", "_needed",
                 "_proposed_channel_max", "_proposed_frame_max", "_reject_key", "_rest", "_unexpected", "channel_max",
                 "dialect", "heartbeat", "lost", "max_body_size", "received_any", "role", "spool_threshold", "state",
                 "version")

    def __init__(self, role: int, version: Version, *, frame_max: int = 131072, channel_max: int = 2047, heartbeat: int = 60,
                 max_body_size: int = 134217728, spool_threshold: int = 1 << 20, dialect: Dialect | None = None) -> None:
        if role not in (SERVER, CLIENT):
            raise ValueError("role must be SERVER or CLIENT")
        if not FRAME_MIN_SIZE <= frame_max <= 0xFFFFFFFF:
            raise ValueError(f"frame_max must be from {FRAME_MIN_SIZE} to 4294967295")
        if not 1 <= channel_max <= 65535:
            raise ValueError("channel_max must be from 1 to 65535")
        super().__init__(frame_max)
        if dialect is None:
            dialect = QPID if version.name == "0-9" else RABBITMQ
        self.role = role
        self.version = version
        self.channel_max = channel_max
        self.heartbeat = heartbeat
        self.max_body_size = max_body_size
        self.spool_threshold = spool_threshold
        self.dialect = dialect
        self.received_any = False
        self._is_server = role == SERVER
        self.state = states.START
        self.lost = False
        self._proposed_frame_max = frame_max
        self._proposed_channel_max = channel_max
        self._channels: dict[int, WireChannel] = {}
        self._rest = b""
        self._gathered = bytearray()
        self._needed = 0
        self._can_close = False
        # The largest payload that is taken, and the largest body that is taken together with its method and header.
        self._limit = FRAME_SIZE_BEFORE_OPEN - FRAME_OVERHEAD
        self._fused_size = 0
        self._content_key = _PUBLISH_KEY if self._is_server else _DELIVER_KEY
        self._ack_key = self._hot_key(_ACK_KEY)
        self._nack_key = self._hot_key(_NACK_KEY)
        self._reject_key = self._hot_key(_REJECT_KEY)
        # 0-9 has no reply code of its own for content frames out of order.
        self._unexpected = UNEXPECTED_FRAME if "unexpected-frame" in version.constants else FRAME_ERROR

    def _hot_key(self, key: int) -> int:
        spec = self.version.methods.get(key)
        return key if spec is not None and self._receives(spec) else _NO_KEY

    def _receives(self, spec: MethodSpec) -> bool:
        return spec.server_receives if self._is_server else spec.client_receives

    def is_open(self, channel: int) -> bool:
        """Whether the channel is open on the wire: it was opened, and neither peer has closed it."""
        state = self._channels.get(channel)
        return state is not None and state.stage != assembly.NOTHING

    # Receiving

    def receive(self, data: bytes) -> list[Command]:
        """The commands that `data` completes, in order. Never raises on what came from the peer."""
        out: list[Command] = []
        if not data:
            return out
        self.received_any = True
        if self._rest:
            if len(self._rest) + len(data) < self._needed:
                self._gathered = bytearray(self._rest)
                self._gathered += data
                self._rest = b""
                return out
            data = self._rest + data
            self._rest = b""
        elif self._gathered:
            self._gathered += data
            if len(self._gathered) < self._needed:
                return out
            data = bytes(self._gathered)
            self._gathered = bytearray()
        if self.lost or self.state >= states.CLOSE_RECEIVED:
            return out
        pos = self._parse(data, out)
        if pos < len(data) and not self.lost:
            self._rest = data[pos:]
        return out

    def _parse(self, data: bytes, out: list[Command]) -> int:
        """Take every whole frame; the result is where the first one begins that is not whole."""
        pos = 0
        octets = len(data)
        limit = self._limit
        is_server = self._is_server
        content_key = self._content_key
        ack_key = self._ack_key
        nack_key = self._nack_key
        reject_key = self._reject_key
        channels = self._channels
        frame_type: int
        number: int
        size: int
        key: int
        next_type: int
        next_number: int
        next_size: int
        class_id: int
        weight: int
        body_size: int
        property_flags: int
        tag: int
        bits: int
        while octets - pos >= 8:
            if octets - pos >= 11:
                frame_type, number, size, key = _FRAME_AND_KEY(data, pos)
            else:
                frame_type, number, size = _FRAME(data, pos)
                key = _NO_KEY
            start = pos + 7
            end = start + size
            if size > limit:
                self._lose(out, number, f"a frame of {size + FRAME_OVERHEAD} octets is larger than agreed")
                return octets
            if end >= octets:
                self._needed = size + FRAME_OVERHEAD
                return pos
            if data[end] != FRAME_END:
                self._lose(out, number, f"a frame ends with octet {data[end]} instead of {FRAME_END}")
                return octets
            pos = end + 1
            channel = channels.get(number)
            if channel is None or frame_type != FRAME_METHOD or channel.stage != assembly.METHOD or size < 9:
                self._frame_received(frame_type, number, channel, data, start, end, out)
                limit = self._limit
            elif key == content_key:
                # basic.publish at a server, basic.deliver at a client. Exchange and routing key are what lies between
                # the ticket and the bits, or behind the tags.
                if is_server:
                    at = start + 6
                    stop = end - 1
                else:
                    at = start + 14 + data[start + 4]
                    stop = end
                middle = at + 1 + data[at] if at < stop else stop
                if middle >= stop or middle + 1 + data[middle] != stop:
                    self._frame_received(frame_type, number, channel, data, start, end, out)
                    continue
                if octets - pos >= 22:
                    # The common case: the header frame and the one body frame are here, too.
                    next_type, next_number, next_size, class_id, weight, body_size, property_flags = _HEADER_FRAME(data, pos)
                    header_at = pos + 7
                    header_end = header_at + next_size
                    if (next_type == FRAME_HEADER and next_number == number and HEADER_MIN_SIZE <= next_size <= limit
                            and header_end < octets and data[header_end] == FRAME_END and class_id == _BASIC and weight == 0
                            and body_size <= self._fused_size):
                        next_pos = header_end + 1
                        body = b""
                        if body_size:
                            body_at = next_pos + 7
                            body_end = body_at + body_size
                            if body_end >= octets or data[body_end] != FRAME_END:
                                next_pos = 0
                            else:
                                next_type, next_number, size = _FRAME(data, next_pos)
                                if next_type != FRAME_BODY or next_number != number or size != body_size:
                                    next_pos = 0
                                else:
                                    body = data[body_at:body_end]
                                    next_pos = body_end + 1
                        if next_pos:
                            header = data[header_at:header_end]
                            publish = Publish(number, data[at:stop], data[stop] & 3 if is_server else 0, header, body_size,
                                              body, 0, -1, None, None, -1)
                            if property_flags == _DELIVERY_MODE_ONLY and next_size == 15:
                                publish.delivery_mode = header[14]
                            elif (property_flags or next_size != HEADER_MIN_SIZE) and not scan(publish, header, self.dialect):
                                next_pos = 0
                            if next_pos:
                                if is_server:
                                    out.append(publish)
                                else:
                                    tag, bits = _TAG_AND_BITS(data, at - 9)
                                    out.append(Deliver(number, data[start + 5 : at - 9], tag, bits & 1 == 1, publish.address,
                                                       header, body_size, body))
                                pos = next_pos
                                continue
                channel.stage = assembly.HEADER
                channel.spec = None
                channel.address = data[at:stop]
                if is_server:
                    channel.flags = data[stop] & 3
                else:
                    channel.consumer_tag = data[start + 5 : at - 9]
                    channel.delivery_tag, bits = _TAG_AND_BITS(data, at - 9)
                    channel.redelivered = bits & 1 == 1
            elif key == ack_key and size == 13:
                tag, bits = _TAG_AND_BITS(data, start + 4)
                out.append(Ack(number, tag, bits & 1 == 1))
            elif key == nack_key and size == 13:
                tag, bits = _TAG_AND_BITS(data, start + 4)
                out.append(Nack(number, tag, bits & 1 == 1, bits & 2 == 2, False))
            elif key == reject_key and size == 13:
                tag, bits = _TAG_AND_BITS(data, start + 4)
                out.append(Nack(number, tag, False, bits & 1 == 1, True))
            else:
                self._frame_received(frame_type, number, channel, data, start, end, out)
                limit = self._limit
        self._needed = FRAME_OVERHEAD
        return pos

    def _frame_received(self, type: int, number: int, channel: WireChannel | None, data: bytes, start: int, end: int,
                        out: list[Command]) -> None:
        """Any frame but those of the hot path; its payload is between `start` and `end`."""
        if type == FRAME_METHOD:
            self._method_received(number, channel, data, start, end, out)
        elif self.state >= states.FAILED:
            pass
        elif type == FRAME_BODY or type == FRAME_HEADER:
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
                self._fail(out, number, FRAME_ERROR, "a heartbeat is empty and on channel 0")
        else:
            self._fail(out, number, FRAME_ERROR, f"there are no frames of type {type}")

    def _header_received(self, channel: WireChannel, header: bytes, out: list[Command]) -> None:
        """The content header of the method that came before it (0-9-1 section 4.2.6.1)."""
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
        class_id: int
        weight: int
        body_size: int
        class_id, weight, body_size = _CONTENT_HEADER(header, 0)
        if class_id != method_class:
            self._fail(out, number, self._unexpected, f"a content header of class {class_id} for a method of class"
                       f" {method_class}", method_class, method_id)
            return
        if weight:
            self._fail(out, number, FRAME_ERROR, f"the weight of a content is 0, not {weight}", method_class, method_id)
            return
        publish: Publish | None = None
        if spec is None and self._is_server:
            publish = Publish(number, channel.address, channel.flags, header, body_size, b"", 0, -1, None, None, -1)
            sound = scan(publish, header, self.dialect)
        else:
            sound = check_header(header, self.dialect, self.version)
        if not sound:
            self._fail(out, number, SYNTAX_ERROR, "the content header's properties are malformed", method_class, method_id)
            return
        if body_size > self.max_body_size:
            channel.close(states.CHANNEL_FAILED)
            out.append(Error(number, CHANNEL_SCOPE, CONTENT_TOO_LARGE, f"a body of {body_size} octets is larger than the"
                             f" {self.max_body_size} that are taken", method_class, method_id))
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

    def _method_received(self, number: int, channel: WireChannel | None, data: bytes, start: int, end: int,
                         out: list[Command]) -> None:
        """A method frame that the hot path left: decode it and move the states."""
        if end - start < 4:
            if self.state < states.FAILED:
                self._fail(out, number, FRAME_ERROR, "a method frame is too short for its class and method")
            return
        key: int = _U32(data, start)[0]
        class_id = key >> 16
        method_id = key & 0xFFFF
        spec = self.version.methods.get(key)
        name = "" if spec is None else spec.name
        if self.state >= states.FAILED and (self.state != states.CLOSING or number or name not in _CONNECTION_CLOSE):
            return
        if channel is not None and channel.stage == assembly.NOTHING and name not in _CHANNEL_CLOSE:
            return
        if spec is None:
            self._fail(out, number, NOT_IMPLEMENTED, f"there is no method {class_id}.{method_id}", class_id, method_id)
        elif not self._receives(spec):
            self._fail(out, number, COMMAND_INVALID, f"{name} is not for a {'server' if self._is_server else 'client'}",
                       class_id, method_id)
        elif (class_id == _CONNECTION) != (number == 0):
            self._fail(out, number, COMMAND_INVALID, f"{name} on channel {number}", class_id, method_id)
        elif class_id != _CONNECTION and self.state not in states.USABLE:
            self._fail(out, number, COMMAND_INVALID, f"{name} before the connection is open", class_id, method_id)
        elif name == "channel.open" and channel is None and number > self.channel_max:
            self._fail(out, number, NOT_ALLOWED, f"channel {number} is above the {self.channel_max} that were agreed",
                       class_id, method_id)
        elif class_id != _CONNECTION and channel is None and (
                states.CHANNEL_CLOSED, states.RECEIVED, name) not in states.CHANNEL:
            self._fail(out, number, CHANNEL_ERROR, f"{name} on channel {number}, which is not open", class_id, method_id)
        elif name == "channel.open" and channel is not None:
            self._fail(out, number, CHANNEL_ERROR, f"channel {number} is open already", class_id, method_id)
        elif channel is not None and channel.stage in (assembly.HEADER, assembly.BODY):
            self._fail(out, number, self._unexpected, f"{name} within a content", class_id, method_id)
        else:
            try:
                arguments = decode_arguments(spec, data, start + 4, end, self.dialect)
            except WireError as error:
                self._fail(out, number, error.code, error.text, class_id, method_id)
                return
            if class_id == _CONNECTION:
                self._connection_method(spec, arguments, out)
            elif class_id == _CHANNEL:
                self._channel_method(spec, number, channel, arguments, out)
            elif not spec.content:
                out.append(Method(METHOD, number, name, class_id, method_id, arguments))
            elif channel is not None:
                channel.stage = assembly.HEADER
                channel.spec = spec
                channel.arguments = arguments

    def _connection_method(self, spec: MethodSpec, arguments: dict[str, Any], out: list[Command]) -> None:
        name = spec.name
        following = states.CONNECTION.get((self.state, states.RECEIVED, name))
        if following is None:
            self._fail(out, 0, COMMAND_INVALID, f"{name} is out of order", spec.class_id, spec.method_id)
            return
        if name == "connection.tune":
            self._proposed_frame_max = arguments["frame_max"]
            self._proposed_channel_max = arguments["channel_max"]
        elif name == "connection.tune-ok":
            excess = self._excess(arguments)
            if excess:
                self.state = states.CLOSED
                out.append(Error(0, SOCKET_SCOPE, NOT_ALLOWED, excess, spec.class_id, spec.method_id))
                return
            self._agree(arguments)
        elif name == "connection.open-ok":
            self._open()
        elif name == "connection.close" and self.state == states.CLOSING:
            self._frame(FRAME_METHOD, 0, _CONNECTION_CLOSE_OK)
        self.state = following
        if following >= states.CLOSE_RECEIVED:
            self._channels.clear()
        out.append(Method(METHOD, 0, name, spec.class_id, spec.method_id, arguments))

    def _excess(self, arguments: dict[str, Any]) -> str:
        """What of a client's tune-ok goes beyond the proposal (0-9-1, rules of connection.tune-ok), "" for nothing."""
        frame_max: int = arguments["frame_max"]
        channel_max: int = arguments["channel_max"]
        if frame_max and frame_max < FRAME_MIN_SIZE:
            return f"a frame-max of {frame_max} is below {FRAME_MIN_SIZE}"
        if 0 < self._proposed_frame_max < frame_max:
            return f"a frame-max of {frame_max} is above the {self._proposed_frame_max} that were proposed"
        if 0 < self._proposed_channel_max < channel_max:
            return f"a channel-max of {channel_max} is above the {self._proposed_channel_max} that were proposed"
        return ""

    def _agree(self, arguments: dict[str, Any]) -> None:
        """Take the values of tune-ok. 0 sets no limit, so that the proposal stays, or what was configured where that was
        0, too; a heartbeat of 0 is none."""
        self.frame_max = arguments.get("frame_max", 0) or self._proposed_frame_max or self.frame_max
        self.channel_max = arguments.get("channel_max", 0) or self._proposed_channel_max or self.channel_max
        self.heartbeat = arguments.get("heartbeat", 0)
        self.payload_max = self.frame_max - FRAME_OVERHEAD

    def _open(self) -> None:
        """From now on frames may be as large as was agreed."""
        self._limit = self.frame_max - FRAME_OVERHEAD + FRAME_SLACK
        self._fused_size = min(self._limit, self.max_body_size, self.spool_threshold)

    def _channel_method(self, spec: MethodSpec, number: int, channel: WireChannel | None, arguments: dict[str, Any],
                        out: list[Command]) -> None:
        name = spec.name
        state = states.CHANNEL_CLOSED if channel is None else channel.state
        following = states.CHANNEL.get((state, states.RECEIVED, name))
        if following is None:
            self._fail(out, number, COMMAND_INVALID, f"{name} is out of order", spec.class_id, spec.method_id)
            return
        if channel is None:
            self._channels[number] = WireChannel(number)
        elif following == states.CHANNEL_CLOSED:
            del self._channels[number]
        elif name == "channel.close":
            if state == states.CHANNEL_CLOSING:
                self._frame(FRAME_METHOD, number, _CHANNEL_CLOSE_OK)
            else:
                channel.owes_close_ok = True
        out.append(Method(METHOD, number, name, spec.class_id, spec.method_id, arguments))

    def _fail(self, out: list[Command], number: int, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """The peer broke the protocol, for good: nothing of this connection counts any more."""
        self._can_close = self.state != states.START
        self.state = states.FAILED
        self._channels.clear()
        out.append(Error(number, CONNECTION_SCOPE, code, text, class_id, method_id))

    def _lose(self, out: list[Command], number: int, text: str) -> None:
        """The boundaries of the frames are lost."""
        self.lost = True
        if self.state < states.FAILED:
            self._fail(out, number, FRAME_ERROR, text)

    # Sending

    @property
    def can_close(self) -> bool:
        """Whether `connection.close` can be sent: not before the server has begun, nor twice."""
        return self.state in states.CLOSABLE or (self.state == states.FAILED and self._can_close)

    def send(self, channel: int, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Any method without content. Arguments that are missing become 0, empty or false.

        What is sent after the connection or the channel was closed is dropped: the peer could not tell what it belongs to.
        ValueError for a method that this peer never sends or that is out of order, and for arguments that do not fit.
        """
        spec = self._sendable(name, False)
        if arguments is None:
            arguments = {}
        if spec.class_id == _CONNECTION:
            following = states.CONNECTION.get((self.state, states.SENT, name))
            if following is None:
                if self.state >= states.FAILED:
                    return
                raise ValueError(f"{name} cannot be sent in state {states.STATE_NAMES[self.state]}")
            if channel:
                raise ValueError(f"{name} is sent on channel 0")
            self._send_method(0, spec, arguments)
            self.state = following
            if name == "connection.tune":
                self._proposed_frame_max = arguments.get("frame_max", 0)
                self._proposed_channel_max = arguments.get("channel_max", 0)
            elif name == "connection.tune-ok":
                self._agree(arguments)
            elif name == "connection.open-ok":
                self._open()
            elif following >= states.CLOSING:
                self._channels.clear()
        elif self.state >= states.FAILED:
            return
        elif spec.class_id == _CHANNEL:
            self._send_channel_method(channel, spec, arguments)
        elif self.is_open(channel):
            self._send_method(channel, spec, arguments)

    def _send_channel_method(self, number: int, spec: MethodSpec, arguments: dict[str, Any]) -> None:
        name = spec.name
        channel = self._channels.get(number)
        state = states.CHANNEL_CLOSED if channel is None else channel.state
        following = states.CHANNEL.get((state, states.SENT, name))
        if following is None:
            if state == states.CHANNEL_OPEN:
                raise ValueError(f"{name} cannot be sent on channel {number}, which is open")
            return
        if channel is None and following == states.CHANNEL_OPEN and not 1 <= number <= self.channel_max:
            raise ValueError(f"channels have numbers from 1 to {self.channel_max}")
        self._send_method(number, spec, arguments)
        if channel is None:
            if following == states.CHANNEL_OPEN:
                self._channels[number] = WireChannel(number)
        elif following == states.CHANNEL_CLOSING:
            channel.close(following)
            if channel.owes_close_ok:
                channel.owes_close_ok = False
                self._frame(FRAME_METHOD, number, _CHANNEL_CLOSE_OK)

    def send_content(self, channel: int, name: str, arguments: dict[str, Any], header: bytes, body: Body) -> None:
        """Any method with content. `header` is the payload of its header frame, and must state the body's size. Dropped
        and refused as by `send`."""
        spec = self._sendable(name, True)
        if self.state >= states.FAILED or not self.is_open(channel):
            return
        self._send_method(channel, spec, arguments)
        self._frame_content(channel, header, body)

    def _sendable(self, name: str, content: bool) -> MethodSpec:
        spec = self.version.by_name.get(name)
        if spec is None:
            raise ValueError(f"AMQP {self.version.name} has no method {name}")
        if not (spec.client_receives if self._is_server else spec.server_receives):
            raise ValueError(f"{name} is not sent by a {'server' if self._is_server else 'client'}")
        if spec.content != content:
            raise ValueError(f"{name} has {'' if spec.content else 'no '}content")
        return spec

    def _send_method(self, channel: int, spec: MethodSpec, arguments: dict[str, Any]) -> None:
        payload = encode_arguments(spec, arguments, self.dialect)
        if len(payload) > self.payload_max:
            raise EncodeError(f"{spec.name} has {len(payload)} octets, more than a frame may have")
        self._frame(FRAME_METHOD, channel, payload)
