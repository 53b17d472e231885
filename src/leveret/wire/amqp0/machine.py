"""The state machines of the connection and its channels: the methods that may be received and sent, and their effects.

`engine.Engine` adds the parsing of frames. All states and transitions are in `states`.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp0 import assembly, states
from leveret.wire.amqp0.assembly import WireChannel
from leveret.wire.amqp0.commands import CONNECTION_SCOPE, METHOD, SOCKET_SCOPE, Body, Command, Error, Method
from leveret.wire.amqp0.constants import (
    CHANNEL_ERROR,
    CLIENT,
    COMMAND_INVALID,
    FRAME_ERROR,
    FRAME_HEADER,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    FRAME_RESPONSE,
    FRAME_SIZE_BEFORE_OPEN,
    FRAME_SLACK,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    SERVER,
    UNEXPECTED_FRAME,
)
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.methods import decode_arguments, encode_arguments
from leveret.wire.amqp0.model import MethodSpec, Version
from leveret.wire.amqp0.output import Output
from leveret.wire.amqp0.requests import NUMBERS_SIZE, Numbers
from leveret.wire.amqp0.values import Arguments

_U32: Final = struct.Struct(">I").unpack_from

_CONNECTION: Final = 10
_CHANNEL: Final = 20
_CONNECTION_CLOSE: Final = ("connection.close", "connection.close-ok")
_CHANNEL_CLOSE: Final = ("channel.close", "channel.close-ok")
_OPENS_CHANNEL: Final = ("channel.open", "channel.resume")


class Machine(Output):
    """The state machines of one connection. See `engine.Engine` for arguments and attributes."""

    __slots__ = (
        "_can_close",
        "_channels",
        "_close_oks_owed",
        "_fused_size",
        "_hot",
        "_is_server",
        "_limit",
        "_proposed_channel_max",
        "_proposed_frame_max",
        "_unexpected",
        "channel_max",
        "dialect",
        "heartbeat",
        "lost",
        "max_body_size",
        "max_upload_size",
        "role",
        "spool_threshold",
        "spools_uploads",
        "state",
        "strict_framing",
        "version",
    )

    def __init__(
        self,
        role: int,
        version: Version,
        frame_max: int,
        channel_max: int,
        heartbeat: int,
        max_body_size: int,
        spool_threshold: int,
        dialect: Dialect | None,
        strict_framing: bool,
    ) -> None:
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
        self.max_upload_size = max_body_size
        self.spools_uploads = role == SERVER
        self.spool_threshold = spool_threshold
        self.dialect = dialect
        self.state = states.START
        self.lost = False
        self.strict_framing = strict_framing
        self._is_server = role == SERVER
        self._can_close = False
        self._channels: dict[int, WireChannel] = {}
        # Channels whose frames the hot path parses: all of them, or none if methods are wrapped in requests.
        self._hot = self._channels
        # Number of received closes per channel that the caller has to answer. Each is answered once.
        self._close_oks_owed: dict[int, int] | None = None
        self._proposed_frame_max = frame_max
        self._proposed_channel_max = channel_max
        # The maximum payload, and the maximum body that is parsed together with its method and header.
        self._limit = FRAME_SIZE_BEFORE_OPEN - FRAME_OVERHEAD
        self._fused_size = 0
        # 0-9 has no reply code of its own for content frames out of order.
        self._unexpected = UNEXPECTED_FRAME if "unexpected-frame" in version.constants else FRAME_ERROR

    def _receives(self, spec: MethodSpec) -> bool:
        return spec.server_receives if self._is_server else spec.client_receives

    @property
    def uses_requests(self) -> bool:
        """Whether methods are wrapped in requests and responses (see `requests`)."""
        return self._numbers is not None

    def use_requests(self) -> None:
        """Wrap methods in requests and responses, starting with `connection.open`.

        A client calls this before it sends `connection.open`; a server detects it.

        Raises:
            ValueError: the call comes at another time, or the version has no such frames.
        """
        if self.state != states.OPEN or self.version.requests is None:
            raise ValueError("requests and responses begin with connection.open, in AMQP 0-9")
        self._begin_requests(self.version.requests)

    def _begin_requests(self, version: Version) -> None:
        self._numbers = Numbers()
        self.version = version
        self._hot = {}
        self._channel = -1  # the fast path for deliveries does not wrap them

    def is_open(self, channel: int) -> bool:
        """Return whether the channel is open on the wire: neither peer has closed it since it was opened."""
        state = self._channels.get(channel)
        return state is not None and state.stage != assembly.NOTHING

    def is_receiving_content(self, size: int = 0) -> bool:
        """Return whether a channel has partially received a content of more than `size` bytes."""
        return any(channel.stage == assembly.BODY and channel.size > size for channel in self._channels.values())

    def is_closing(self, channel: int) -> bool:
        """Return whether we have closed the channel and its close-ok is pending."""
        state = self._channels.get(channel)
        return state is not None and state.state == states.CHANNEL_CLOSING

    def _method_received(
        self,
        number: int,
        channel: WireChannel | None,
        data: bytes,
        start: int,
        end: int,
        out: list[Command],
        request: int = 0,
        replied_first: int = 0,
        replied_last: int = 0,
    ) -> None:
        """Decode a method that the hot path has not handled, and change states.

        The last three arguments are as in `Method`.
        """
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
            self._fail(out, number, NOT_IMPLEMENTED, f"method {class_id}.{method_id} does not exist", class_id, method_id)
        elif not self._receives(spec):
            self._fail(
                out,
                number,
                COMMAND_INVALID,
                f"{name} cannot be sent to a {'server' if self._is_server else 'client'}",
                class_id,
                method_id,
            )
        elif (class_id == _CONNECTION) != (number == 0):
            self._fail(out, number, COMMAND_INVALID, f"{name} on channel {number}", class_id, method_id)
        elif class_id != _CONNECTION and self.state not in states.USABLE:
            self._fail(out, number, COMMAND_INVALID, f"{name} before the connection is open", class_id, method_id)
        elif name in _OPENS_CHANNEL and channel is None and len(self._channels) >= self.channel_max:
            self._fail(
                out,
                number,
                NOT_ALLOWED,
                f"number of open channels has reached the negotiated channel-max of {self.channel_max}",
                class_id,
                method_id,
            )
        elif (
            class_id != _CONNECTION
            and channel is None
            and (states.CHANNEL_CLOSED, states.RECEIVED, name) not in states.CHANNEL
        ):
            self._fail(out, number, CHANNEL_ERROR, f"{name} on channel {number}, which is not open", class_id, method_id)
        elif name == "channel.open" and channel is not None:
            self._fail(out, number, CHANNEL_ERROR, f"channel {number} is already open", class_id, method_id)
        elif channel is not None and channel.stage in (assembly.HEADER, assembly.BODY):
            self._fail(out, number, self._unexpected, f"{name} within a content", class_id, method_id)
        else:
            try:
                arguments = decode_arguments(spec, data, start + 4, end, self.dialect)
            except WireError as error:
                self._fail(out, number, error.code, error.text, class_id, method_id)
                return
            if request and spec.responses and not arguments.get("nowait") and self._numbers is not None:
                self._numbers.await_answer(number, request, spec)
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
                return
            if self._numbers is not None:
                method = out[-1]
                if isinstance(method, Method):
                    method.request = request
                    method.replied_first = replied_first
                    method.replied_last = replied_last

    def _connection_method(self, spec: MethodSpec, arguments: Arguments, out: list[Command]) -> None:
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
            self._send_method(0, self.version.by_name["connection.close-ok"], {}, 0)
        self.state = following
        if following >= states.CLOSE_RECEIVED:
            self._forget_channels()
        out.append(Method(METHOD, 0, name, spec.class_id, spec.method_id, arguments))

    def _excess(self, arguments: Arguments) -> str:
        """Return an error text if a client's tune-ok exceeds the proposal (0-9-1, rules of connection.tune-ok), or ""."""
        frame_max: int = arguments["frame_max"]
        channel_max: int = arguments["channel_max"]
        if frame_max and frame_max < FRAME_MIN_SIZE:
            return f"a frame-max of {frame_max} is below {FRAME_MIN_SIZE}"
        if 0 < self._proposed_frame_max < frame_max:
            return f"a frame-max of {frame_max} exceeds the proposed {self._proposed_frame_max}"
        if 0 < self._proposed_channel_max < channel_max:
            return f"a channel-max of {channel_max} exceeds the proposed {self._proposed_channel_max}"
        return ""

    def _agree(self, arguments: Arguments) -> None:
        """Apply the values of tune-ok.

        0 means no limit: the proposal applies or, if that was also 0, the configured value. A heartbeat of 0 disables
        heartbeats.
        """
        self.frame_max = arguments.get("frame_max", 0) or self._proposed_frame_max or self.frame_max
        self.channel_max = arguments.get("channel_max", 0) or self._proposed_channel_max or self.channel_max
        self.heartbeat = arguments.get("heartbeat", 0)
        self.payload_max = self.frame_max - FRAME_OVERHEAD

    def _open(self) -> None:
        """Open the connection: apply the negotiated frame size."""
        self._limit = self.frame_max - FRAME_OVERHEAD + FRAME_SLACK
        self._fused_size = min(self._limit, self.max_body_size, self.spool_threshold)

    def begin_tuned(self, frame_max: int, channel_max: int, heartbeat: int) -> None:
        """Expect `connection.open` of a client that has agreed on these values with another process."""
        self.state = states.OPEN
        self._agree({"frame_max": frame_max, "channel_max": channel_max, "heartbeat": heartbeat})

    def begin_open(self, number: int) -> None:
        """Treat the connection as open, with this one channel, to parse frames carried in the content of another one."""
        self.state = states.OPENED
        self._open()
        self._channels[number] = WireChannel(number)

    def _forget_channels(self) -> None:
        for channel in self._channels.values():
            channel.close(states.CHANNEL_CLOSED)
        self._channels.clear()

    def _channel_method(
        self, spec: MethodSpec, number: int, channel: WireChannel | None, arguments: Arguments, out: list[Command]
    ) -> None:
        name = spec.name
        state = states.CHANNEL_CLOSED if channel is None else channel.state
        following = states.CHANNEL.get((state, states.RECEIVED, name))
        if following is None:
            self._fail(out, number, COMMAND_INVALID, f"{name} is out of order", spec.class_id, spec.method_id)
            return
        if channel is None:
            self._channels[number] = WireChannel(number)
        elif following == states.CHANNEL_CLOSED:
            channel.close(following)
            del self._channels[number]
            if name == "channel.close":
                if self._close_oks_owed is None:
                    self._close_oks_owed = {}
                self._close_oks_owed[number] = self._close_oks_owed.get(number, 0) + 1
        elif name == "channel.close":
            if state == states.CHANNEL_CLOSING:
                self._send_method(number, self.version.by_name["channel.close-ok"], {}, 0)
            else:
                channel.owes_close_ok = True
        out.append(Method(METHOD, number, name, spec.class_id, spec.method_id, arguments))

    def _fail(self, out: list[Command], number: int, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Fail the connection because of a protocol error. All further input is discarded."""
        self._can_close = self.state != states.START
        self.state = states.FAILED
        self._forget_channels()
        out.append(Error(number, CONNECTION_SCOPE, code, text, class_id, method_id))

    def _fail_framing(self, out: list[Command], number: int, text: str) -> None:
        """Fail because of an invalid frame type or frame end.

        The specification requires closing the socket without connection.close (0-9-1 section 4.2.3).
        """
        self._fail(out, number, FRAME_ERROR, text)
        if self.strict_framing:
            self.state = states.CLOSED
            out[-1] = Error(0, SOCKET_SCOPE, FRAME_ERROR, text)

    def _lose(self, out: list[Command], number: int, text: str) -> None:
        """Fail the connection because the frame boundaries are lost."""
        self.lost = True
        if self.state < states.FAILED:
            self._fail(out, number, FRAME_ERROR, text)

    # Sending

    @property
    def can_close(self) -> bool:
        """Whether `connection.close` can be sent: after the server's start, and only once."""
        return self.state in states.CLOSABLE or (self.state == states.FAILED and self._can_close)

    def send(self, channel: int, name: str, arguments: Arguments | None = None, request: int = 0) -> int:
        """Send any method without content. Missing arguments become 0, empty or false.

        A response answers the request with the id `request` or, if that is 0, the oldest matching one.

        Methods sent after the connection or the channel was closed are dropped, because the peer could not assign them. A
        close-ok is also dropped if no close was received, or if the engine has already sent it.

        Returns:
            The id of the request that contains the method; 0 if it is not sent in a request.

        Raises:
            ValueError: this peer cannot send the method, it is out of order, or an argument is invalid.
        """
        spec = self._sendable(name, False)
        if arguments is None:
            arguments = {}
        if spec.class_id == _CONNECTION:
            following = states.CONNECTION.get((self.state, states.SENT, name))
            if following is None:
                if self.state >= states.FAILED:
                    return 0
                raise ValueError(f"{name} cannot be sent in state {states.STATE_NAMES[self.state]}")
            if channel:
                raise ValueError(f"{name} must be sent on channel 0, not {channel}")
            id = self._send_method(0, spec, arguments, request)
            self.state = following
            if name == "connection.tune":
                self._proposed_frame_max = arguments.get("frame_max", 0)
                self._proposed_channel_max = arguments.get("channel_max", 0)
            elif name == "connection.tune-ok":
                self._agree(arguments)
            elif name == "connection.open-ok":
                self._open()
            elif following >= states.CLOSING:
                self._forget_channels()
            return id
        if self.state >= states.FAILED:
            return 0
        if spec.class_id == _CHANNEL:
            self._send_channel_method(channel, spec, arguments)
        elif self.is_open(channel):
            return self._send_method(channel, spec, arguments, request)
        return 0

    def _send_channel_method(self, number: int, spec: MethodSpec, arguments: Arguments) -> None:
        name = spec.name
        channel = self._channels.get(number)
        state = states.CHANNEL_CLOSED if channel is None else channel.state
        following = states.CHANNEL.get((state, states.SENT, name))
        if following is None:
            if state == states.CHANNEL_OPEN:
                raise ValueError(f"{name} cannot be sent on channel {number}, which is open")
            return
        if name == "channel.close-ok":
            closes = self._close_oks_owed
            owed = 0 if closes is None else closes.pop(number, 0)
            if closes is None or owed == 0:
                return
            if owed > 1:
                closes[number] = owed - 1
        if channel is None and following == states.CHANNEL_OPEN and not 1 <= number <= self.channel_max:
            raise ValueError(f"channel number {number} is out of range; expected 1 to {self.channel_max}")
        if self._numbers is not None and name in _OPENS_CHANNEL:
            self._numbers.renew(number)
        self._send_method(number, spec, arguments, 0)
        if channel is None:
            if following == states.CHANNEL_OPEN:
                self._channels[number] = WireChannel(number)
        elif following == states.CHANNEL_CLOSING:
            channel.close(following)
            if channel.owes_close_ok:
                channel.owes_close_ok = False
                self._send_method(number, self.version.by_name["channel.close-ok"], {}, 0)

    @property
    def method_max(self) -> int:
        """The maximum size in bytes of a method that can be sent."""
        return self.payload_max - (0 if self._numbers is None else NUMBERS_SIZE)

    def send_encoded_method(self, channel: int, payload: bytes) -> int:
        """Send an encoded method of at most `method_max` bytes that has no content and is not a response.

        The method is dropped, and its request id returned, as by `send`.
        """
        if self.state < states.FAILED and self.is_open(channel):
            return self._request(channel, payload)
        return 0

    def send_content(self, channel: int, name: str, arguments: Arguments, header: bytes, body: Body) -> None:
        """Send any method with content.

        `header` is the payload of the header frame, and must contain the size of the body. Methods are dropped, and errors
        raised, as by `send`; EncodeError also for a header that exceeds a frame.
        """
        spec = self._sendable(name, True)
        if len(header) > self.payload_max:
            raise EncodeError(f"a content header of {len(header)} bytes exceeds the maximum of a frame, {self.payload_max}")
        if self.state >= states.FAILED or not self.is_open(channel):
            return
        self._send_method(channel, spec, arguments, 0)
        self._frame(FRAME_HEADER, channel, header)
        self._body(channel, body)

    def _sendable(self, name: str, content: bool) -> MethodSpec:
        spec = self.version.by_name.get(name)
        if spec is None:
            raise ValueError(f"method {name} does not exist in AMQP {self.version.name}")
        if not (spec.client_receives if self._is_server else spec.server_receives):
            raise ValueError(f"a {'server' if self._is_server else 'client'} cannot send {name}")
        if spec.content != content:
            raise ValueError(f"{name} has {'' if spec.content else 'no '}content")
        return spec

    def _send_method(self, channel: int, spec: MethodSpec, arguments: Arguments, request: int) -> int:
        payload = encode_arguments(spec, arguments, self.dialect)
        numbers = self._numbers
        if len(payload) + (0 if numbers is None else NUMBERS_SIZE) > self.payload_max:
            raise EncodeError(f"{spec.name} has {len(payload)} bytes, which exceeds the maximum of a frame")
        if numbers is not None and spec.name in self.version.responses:
            answered: bytes = numbers.response(channel, spec.name, request)
            if not answered:
                raise ValueError(f"{spec.name} on channel {channel} answers no request")
            self._frame(FRAME_RESPONSE, channel, answered + payload)
            return 0
        return self._request(channel, payload)
