"""A small asyncio client for tests that must see every frame: it hides nothing, retries nothing and checks little.

It is based on pamqp, an independent codec. Frames that are not the reply to a call are passed to callbacks at once.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from pamqp import commands

from tests.support.broker import Broker
from tests.support.peers.framing import (
    BODY_FRAME,
    HEADER_AMQP091,
    HEADER_FRAME,
    HEARTBEAT_FRAME,
    METHOD_FRAME,
    content,
    decode,
    encode,
    frame_bytes,
    split,
)

CALL_TIMEOUT = 120.0


class Closed(Exception):
    """The broker closed a channel or the connection. `code` is 0 if the socket ended without a close.

    The scope is "channel", "connection", "socket", or "fault" if the broker sent something invalid.
    """

    def __init__(self, scope: str, code: int = 0, text: str = "", method: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"{scope} closed: {code} {text}")
        self.scope = scope
        self.code = code
        self.text = text
        self.method = method


class Delivery:
    """A message received by deliver, return or get-ok (`method`)."""

    __slots__ = ("body", "method", "properties")

    def __init__(self, method: Any, properties: Any, body: bytes) -> None:
        self.method = method
        self.properties = properties
        self.body = body


class Channel:
    """One channel. Set the callbacks before messages arrive."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.published = 0
        self.closed: Closed | None = None
        self.on_delivery: Callable[[Delivery], None] = lambda delivery: None
        self.on_return: Callable[[Delivery], None] = lambda delivery: None
        # (delivery tag, multiple, is an ack)
        self.on_confirm: Callable[[int, bool, bool], None] = lambda tag, multiple, ack: None
        self.on_cancel: Callable[[str], None] = lambda tag: None
        self._waiting: deque[tuple[tuple[str, ...], asyncio.Future[Any]]] = deque()
        self._content: tuple[Any, Any, list[bytes], int] | None = None

    def send(self, method: Any) -> None:
        self.connection.write(encode(method, self.number))

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: commands.Basic.Properties | None = None,
        mandatory: bool = False,
    ) -> int:
        """Publish a message. Returns its number among the publishes of the channel, to which confirms refer."""
        method = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        self.connection.write(content(self.number, method, body, properties, self.connection.frame_max))
        self.published += 1
        return self.published

    async def call(self, method: Any, timeout: float = CALL_TIMEOUT) -> Any:
        """Send a synchronous method and return its reply. Raises Closed."""
        if self.closed is not None:
            raise self.closed
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((tuple(method.valid_responses), future))
        self.send(method)
        return await asyncio.wait_for(future, timeout)

    async def declare(self, queue: str = "", **options: Any) -> str:
        return str((await self.call(commands.Queue.Declare(queue=queue, **options))).queue)

    async def count(self, queue: str) -> int:
        return int((await self.call(commands.Queue.Declare(queue=queue, passive=True))).message_count)

    async def consume(self, queue: str, tag: str = "", **options: Any) -> str:
        return str((await self.call(commands.Basic.Consume(queue=queue, consumer_tag=tag, **options))).consumer_tag)

    async def get(self, queue: str, no_ack: bool = True) -> Delivery | None:
        answer = await self.call(commands.Basic.Get(queue=queue, no_ack=no_ack))
        return answer if isinstance(answer, Delivery) else None

    def ack(self, tag: int, multiple: bool = False) -> None:
        self.send(commands.Basic.Ack(tag, multiple))

    async def close(self) -> None:
        await self.call(commands.Channel.Close(200, "", 0, 0))
        self.connection.channels.pop(self.number, None)

    # Input

    def receive(self, kind: int, payload: bytes) -> None:
        if kind == METHOD_FRAME:
            method = decode(kind, self.number, payload)
            if isinstance(method, (commands.Basic.Deliver, commands.Basic.Return, commands.Basic.GetOk)):
                self._content = (method, None, [], -1)
            else:
                self._method(method)
        elif kind == HEADER_FRAME:
            assert self._content is not None, "a content header without a method"
            header = decode(kind, self.number, payload)
            self._content = (self._content[0], header.properties, [], header.body_size)
            self._complete()
        elif kind == BODY_FRAME:
            assert self._content is not None and self._content[3] >= 0, "a body without a header"
            self._content[2].append(payload)
            self._complete()

    def _complete(self) -> None:
        assert self._content is not None
        method, properties, pieces, size = self._content
        have = sum(map(len, pieces))
        assert have <= size, "more body than announced"
        if have < size:
            return
        self._content = None
        delivery = Delivery(method, properties, b"".join(pieces))
        if isinstance(method, commands.Basic.Deliver):
            self.on_delivery(delivery)
        elif isinstance(method, commands.Basic.Return):
            self.on_return(delivery)
        else:
            self._answer("Basic.GetOk", delivery)

    def _method(self, method: Any) -> None:
        name = method.name
        if name == "Basic.Ack":
            self.on_confirm(method.delivery_tag, method.multiple, True)
        elif name == "Basic.Nack":
            self.on_confirm(method.delivery_tag, method.multiple, False)
        elif name == "Basic.Cancel":
            self.on_cancel(method.consumer_tag)
        elif name == "Channel.Close":
            self.send(commands.Channel.CloseOk())
            self.fail(Closed("channel", method.reply_code, method.reply_text, (method.class_id, method.method_id)))
        elif name == "Channel.Flow":
            self.send(commands.Channel.FlowOk(method.active))
        else:
            self._answer(name, method)

    def _answer(self, name: str, value: Any) -> None:
        assert self._waiting, f"unexpected reply {name}"
        expected, future = self._waiting.popleft()
        assert name in expected, f"expected one of {expected}, got {name}"
        if not future.done():
            future.set_result(value)

    def fail(self, error: Closed) -> None:
        self.closed = error
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(error)


class Connection:
    """One connection; `open` does the handshake. It sends heartbeats only on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frame_max = 131072
        self.channel_max = 2047
        self.heartbeat = 0
        self.channels: dict[int, Channel] = {}
        self.closed: Closed | None = None
        self.blocked: str | None = None
        self.server_properties: dict[str, Any] = {}
        self.on_blocked: Callable[[str | None], None] = lambda reason: None
        self._task: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._close_ok: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        broker: Broker,
        *,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        heartbeat: int = 0,
        frame_max: int = 131072,
        channel_max: int = 2047,
        limit: int = 1 << 16,
    ) -> Connection:
        """Connect and open. Raises Closed, OSError or EOFError."""
        reader, writer = await asyncio.open_connection(broker.host, broker.port, limit=limit)
        self = cls(reader, writer)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await self._handshake(vhost, user, password, heartbeat, frame_max, channel_max)
        except BaseException:
            writer.transport.abort()
            raise
        self._task = asyncio.create_task(self._run())
        if heartbeat:
            self._beat = asyncio.create_task(self._beats(heartbeat))
        return self

    async def _handshake(
        self, vhost: str, user: str, password: str, heartbeat: int, frame_max: int, channel_max: int
    ) -> None:
        self.write(HEADER_AMQP091)
        start = await self._expect("Connection.Start")
        self.server_properties = start.server_properties
        self.write(
            encode(
                commands.Connection.StartOk(
                    client_properties={
                        "product": "leveret-tests",
                        "capabilities": {
                            "authentication_failure_close": True,
                            "connection.blocked": True,
                            "consumer_cancel_notify": True,
                            "basic.nack": True,
                            "publisher_confirms": True,
                        },
                    },
                    mechanism="PLAIN",
                    response=f"\0{user}\0{password}",
                    locale="en_US",
                ),
                0,
            )
        )
        tune = await self._expect("Connection.Tune")
        self.frame_max = min(frame_max, tune.frame_max or frame_max)
        self.channel_max = min(channel_max, tune.channel_max or channel_max)
        self.heartbeat = heartbeat
        self.write(encode(commands.Connection.TuneOk(self.channel_max, self.frame_max, heartbeat), 0))
        self.write(encode(commands.Connection.Open(vhost), 0))
        await self._expect("Connection.OpenOk")

    async def _expect(self, name: str) -> Any:
        head = await self.reader.readexactly(7)
        kind, channel, size = struct.unpack(">BHI", head)
        payload = (await self.reader.readexactly(size + 1))[:-1]
        method = decode(kind, channel, payload)
        if method.name == "Connection.Close":
            self.write(encode(commands.Connection.CloseOk(), 0))
            raise Closed("connection", method.reply_code, method.reply_text, (method.class_id, method.method_id))
        assert method.name == name, f"expected {name}, got {method.name}"
        return method

    def write(self, data: bytes) -> None:
        """Send raw bytes; do nothing after the connection has ended."""
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    async def drain(self) -> None:
        """Wait until the socket accepts more. Raises OSError if it is closed."""
        await self.writer.drain()

    async def channel(self, number: int | None = None) -> Channel:
        """Open a channel, by default the lowest free one."""
        if self.closed is not None:
            raise self.closed
        if number is None:
            number = next(n for n in range(1, self.channel_max + 1) if n not in self.channels)
        channel = self.channels[number] = Channel(self, number)
        await channel.call(commands.Channel.Open())
        return channel

    async def close(self) -> None:
        """Close cleanly; do nothing if it is already closed."""
        if self.closed is None:
            self._close_ok = asyncio.get_running_loop().create_future()
            self.write(encode(commands.Connection.Close(200, "", 0, 0), 0))
            await asyncio.wait_for(self._close_ok, CALL_TIMEOUT)
        self.abort()

    def abort(self) -> None:
        """Close the socket without a close method."""
        for task in (self._task, self._beat):
            if task is not None:
                task.cancel()
        self.writer.transport.abort()

    async def wait_closed(self, timeout: float = CALL_TIMEOUT) -> Closed:
        """Wait until the broker closes the connection."""
        assert self._task is not None
        await asyncio.wait_for(asyncio.shield(self._task), timeout)
        assert self.closed is not None
        return self.closed

    async def _beats(self, interval: int) -> None:
        while True:
            await asyncio.sleep(interval / 2)
            self.write(frame_bytes(HEARTBEAT_FRAME, 0, b""))

    async def _run(self) -> None:
        buffer = bytearray()
        try:
            while data := await self.reader.read(1 << 18):
                buffer += data
                for kind, number, payload in split(buffer):
                    if number:
                        channel = self.channels.get(number)
                        assert channel is not None, f"a frame for channel {number}, which was never opened"
                        channel.receive(kind, payload)
                    elif kind == METHOD_FRAME:
                        self._method(decode(kind, 0, payload))
        except OSError:
            pass
        except AssertionError as error:
            self.closed = Closed("fault", text=str(error))
        finally:
            self._end(self.closed or Closed("socket"))

    def _method(self, method: Any) -> None:
        name = method.name
        if name == "Connection.Close":
            self.write(encode(commands.Connection.CloseOk(), 0))
            self.closed = Closed("connection", method.reply_code, method.reply_text, (method.class_id, method.method_id))
            self._end(self.closed)
        elif name == "Connection.CloseOk":
            self.closed = Closed("connection", 200)
            if self._close_ok is not None and not self._close_ok.done():
                self._close_ok.set_result(None)
        elif name in ("Connection.Blocked", "Connection.Unblocked"):
            self.blocked = method.reason if name == "Connection.Blocked" else None
            self.on_blocked(self.blocked)

    def _end(self, error: Closed) -> None:
        if self.closed is None:
            self.closed = error
        for channel in self.channels.values():
            if channel.closed is None:
                channel.fail(error)
        if self._close_ok is not None and not self._close_ok.done():
            self._close_ok.set_exception(error)
