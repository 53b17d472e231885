"""Class tunnel of 0-9: requests to handlers by name. One of them is built in: it carries out methods of 0-9."""

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

# The data-name of methods of 0-9, which are carried out on the channel that they come through.
METHODS: Final = "amqp"
TUNNEL: Final = 110
REQUEST: Final = 10
CHANNEL: Final = 20
# Frames of one request: they are carried out in one go, while everybody else waits.
MAX_FRAMES: Final = 10_000
_FRAME: Final = struct.Struct(">BHI").pack
_SIZE: Final = struct.Struct(">I").unpack_from
_SIZE_AT: Final = 3


def request(channel: Channel, command: ContentMethod) -> None:
    """tunnel.request"""
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
            else "tunnel.request: the content has no data-name, which says whom it is for"
        )
    broadcast: int = properties.get("broadcast", 0)
    if not broadcast:
        workers = workers[:1]
    for worker in workers:
        if worker.is_busy():
            raise ResourceLocked(f"tunnel.request: {MAX_WAITING} requests wait for the handler '{name}', which is the most")
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
    """A request that handlers have; its channel does nothing else until they are done with it."""

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
        text = str(self.error) if isinstance(self.error, Refused) else "it failed, the broker's log says how"
        connection = channel.connection
        connection.refuse(channel, PRECONDITION_FAILED, f"tunnel handler '{self.name}': {text}", TUNNEL, REQUEST)


def _execute(channel: Channel, body: bytes) -> None:
    """Carry out methods of 0-9, as if they had come on the channel by themselves: frames as on the wire, or one method
    without a frame. None is where one of them is not for tunnels."""
    connection = channel.opened_on
    engine = connection.engine
    if engine.uses_requests:
        raise NotImplementedByBroker(
            "tunnel.request: methods in requests and responses are not tunnelled, for their"
            " answers would name requests that were never made"
        )
    number = channel.number
    if body[:1] == b"\0":
        # No frame is of type 0; the number of a class begins with it.
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
                "tunnel.request: its content ends within a frame, or before the content of a method does",
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
            # Before what has come behind the tunnel.
            channel.backlog.extendleft(reversed(commands[index:]))
            return
        connection.perform(channel, command)


def _check_count(body: bytes) -> None:
    """Refuse too many frames before anything is made of them."""
    at = count = 0
    end = len(body)
    while at + FRAME_OVERHEAD <= end:
        size: int = _SIZE(body, at + _SIZE_AT)[0]
        at += size + FRAME_OVERHEAD
        count += 1
        if count > MAX_FRAMES:
            raise ContentTooLarge(f"tunnel.request: its content has more than {MAX_FRAMES} frames")


def _check(command: Command, number: int) -> None:
    """Refuse what is about the channel or its connection, and tunnels in tunnels."""
    if isinstance(command, Method) and (command.channel != number or command.class_id in (CHANNEL, TUNNEL)):
        raise CommandInvalid(f"tunnel.request: {command.name} is not for a tunnel")


CONTENT_HANDLERS: Final[dict[str, Callable[[Channel, ContentMethod], None]]] = {"tunnel.request": request}
