"""Class tunnel of 0-9: requests to handlers by name. The built-in handler performs methods of 0-9."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from leveret.broker.bodies import whole
from leveret.broker.errors import CommandInvalid, ContentTooLarge, NotFound, NotImplementedByBroker, ResourceLocked
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.tunnels import MAX_WAITING, Refused, Request
from leveret.wire.amqp0.commands import CONNECTION_SCOPE, Command, ContentMethod, Error, Method
from leveret.wire.amqp0.constants import FRAME_END, FRAME_ERROR, FRAME_METHOD, FRAME_OVERHEAD, PRECONDITION_FAILED
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.engine import SERVER, Engine
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp0.table_amqp09 import V0_9

# Data-name of the built-in handler. It performs methods of 0-9 on the channel of the request.
METHODS: Final = "amqp"
TUNNEL: Final = 110
REQUEST: Final = 10
CHANNEL: Final = 20
# Maximum number of frames in one request. They are performed in one turn and delay other clients.
MAX_FRAMES: Final = 10_000
_FRAME: Final = struct.Struct(">BHI").pack
_SIZE: Final = struct.Struct(">I").unpack_from
_SIZE_AT: Final = 3


def request(channel: Channel, command: ContentMethod) -> None:
    """Perform tunnel.request."""
    properties = decode_header(command.header, QPID, V0_9)[2]
    name: str = properties.get("data_name", "")
    if name == METHODS:
        _execute(channel, whole(command.body))
        return
    workers = channel.opened_on.shared.tunnels.find(name)
    if not workers:
        raise NotFound(
            f"tunnel.request: no handler named '{name}'"
            if name
            else "tunnel.request: the content has no data-name; expected the name of a handler"
        )
    broadcast: int = properties.get("broadcast", 0)
    if not broadcast:
        workers = workers[:1]
    for worker in workers:
        if worker.is_busy():
            raise ResourceLocked(f"tunnel.request: handler '{name}' has {MAX_WAITING} pending requests, the maximum")
    headers: FieldTable = properties.get("headers") or {}
    asked = Request(
        channel.opened_on.user,
        channel.vhost.name,
        command.arguments["meta_data"],
        headers,
        properties.get("proxy_name", ""),
        name,
        properties.get("durable", 0),
        broadcast,
        whole(command.body),
    )
    pending = _Pending(channel, name, len(workers))
    channel.stall()
    for worker in workers:
        worker.submit(asked, pending.done)


class _Pending:
    """A request that handlers are processing. Its channel is stalled until all have finished."""

    def __init__(self, channel: Channel, name: str, count: int) -> None:
        self.channel = channel
        self.name = name
        self.count = count
        self.error: Exception | None = None

    def done(self, error: Exception | None) -> None:
        self.count -= 1
        if error is not None and (self.error is None or isinstance(error, Refused)):
            self.error = error
        channel = self.channel
        if self.count or channel.closing:
            return
        if self.error is None:
            channel.resume()
            return
        text = str(self.error) if isinstance(self.error, Refused) else "it failed; see the broker's log"
        connection = channel.connection
        connection.refuse(channel, PRECONDITION_FAILED, f"tunnel handler '{self.name}': {text}", TUNNEL, REQUEST)


def _execute(channel: Channel, body: bytes) -> None:
    """Perform tunnelled methods of 0-9 as if they had been sent on the channel.

    The body consists of frames as on the wire, or of one method without a frame. If any method is not allowed in a tunnel,
    none is performed.
    """
    connection = channel.opened_on
    engine = connection.engine
    if engine.uses_requests:
        raise NotImplementedByBroker(
            "tunnel.request: methods in requests and responses cannot be tunnelled, because their"
            " replies would name requests that were never sent"
        )
    number = channel.number
    if body[:1] == b"\0":
        # Class ids begin with 0, and there is no frame type 0.
        body = _FRAME(FRAME_METHOD, number, len(body)) + body + bytes((FRAME_END,))
    _check_count(body)
    within = Engine(
        SERVER, V0_9, frame_max=engine.frame_max, max_body_size=engine.max_body_size, spool_threshold=engine.spool_threshold
    )
    within.max_upload_size = engine.max_upload_size
    within.begin_open(number)
    commands = within.receive(body)
    if not within.is_between_frames:
        commands.append(
            Error(
                number,
                CONNECTION_SCOPE,
                FRAME_ERROR,
                "tunnel.request: the body ends within a frame or before the content of a method is complete",
                TUNNEL,
                REQUEST,
            )
        )
    for command in commands:
        _check(command, number)
    for index, command in enumerate(commands):
        if channel.closing or connection.closing:
            return
        if channel.stalled:
            # Queue the rest ahead of commands that were received after the tunnel.
            channel.backlog.put_first(commands[index:])
            return
        connection.perform(channel, command)


def _check_count(body: bytes) -> None:
    """Raise ContentTooLarge for too many frames, before they are parsed."""
    at = count = 0
    end = len(body)
    while at + FRAME_OVERHEAD <= end:
        size: int = _SIZE(body, at + _SIZE_AT)[0]
        at += size + FRAME_OVERHEAD
        count += 1
        if count > MAX_FRAMES:
            raise ContentTooLarge(f"tunnel.request: the body has more than {MAX_FRAMES} frames")


def _check(command: Command, number: int) -> None:
    """Raise CommandInvalid for methods about the channel or its connection, and for tunnels in tunnels."""
    if isinstance(command, Method) and (command.channel != number or command.class_id in (CHANNEL, TUNNEL)):
        raise CommandInvalid(f"tunnel.request: {command.name} is not allowed in a tunnel")


CONTENT_HANDLERS: Final[dict[str, Callable[[Channel, ContentMethod], None]]] = {"tunnel.request": request}
