"""A scripted server on a loopback port, for correct and incorrect behaviour."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pamqp import commands

from tests.support.peers.framing import HEADER_AMQP091, METHOD_FRAME, content, decode, encode, split

Script = Callable[["Peer"], Awaitable[None]]
WITHIN = 120.0


class Peer:
    """One connection of a client, as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._buffer = bytearray()
        self._frames: list[Any] = []
        self.seen: list[str] = []

    def send(self, method: Any, channel: int = 0) -> None:
        self.writer.write(encode(method, channel))

    def content(self, method: Any, channel: int, body: bytes, **properties: Any) -> None:
        self.writer.write(content(channel, method, body, commands.Basic.Properties(**properties)))

    async def next(self) -> tuple[int, Any]:
        """Return the next method and its channel, skipping contents and heartbeats. Raises EOFError at the end."""
        async with asyncio.timeout(WITHIN):
            while True:
                while self._frames:
                    kind, channel, payload = self._frames.pop(0)
                    if kind == METHOD_FRAME:
                        method = decode(kind, channel, payload)
                        self.seen.append(method.name)
                        return channel, method
                data = await self.reader.read(1 << 16)
                if not data:
                    raise EOFError
                self._buffer += data
                self._frames.extend(split(self._buffer))

    async def expect(self, name: str) -> tuple[int, Any]:
        """Return the next method of that name, skipping others."""
        while True:
            channel, method = await self.next()
            if method.name == name:
                return channel, method

    async def greet(self) -> None:
        """Read the protocol header and send `connection.start`."""
        assert await self.reader.readexactly(8) == HEADER_AMQP091
        self.send(commands.Connection.Start(server_properties={"product": "fake"}, mechanisms="PLAIN AMQPLAIN"))

    async def tune(self, channel_max: int = 10, frame_max: int = 4096, heartbeat: int = 0) -> None:
        await self.expect("Connection.StartOk")
        self.send(commands.Connection.Tune(channel_max, frame_max, heartbeat))
        await self.expect("Connection.TuneOk")

    async def handshake(self, **tuning: int) -> None:
        await self.greet()
        await self.tune(**tuning)
        await self.expect("Connection.Open")
        self.send(commands.Connection.OpenOk())

    async def channel(self) -> int:
        """Open a channel with confirms."""
        number, _ = await self.expect("Channel.Open")
        self.send(commands.Channel.OpenOk(), number)
        await self.expect("Confirm.Select")
        self.send(commands.Confirm.SelectOk(), number)
        return number

    async def closing(self) -> None:
        """Answer every close until the client closes the socket."""
        try:
            while True:
                channel, method = await self.next()
                if method.name == "Connection.Close":
                    self.send(commands.Connection.CloseOk())
                elif method.name == "Channel.Close":
                    self.send(commands.Channel.CloseOk(), channel)
        except (EOFError, ConnectionError):
            pass


@asynccontextmanager
async def scripted_server(
    script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Run the script for every connection and yield the port. An exception of the script fails the test."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    async def run(accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            await script(reader, writer)
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as error:
            failed.append(error)
        finally:
            writer.close()

    # A server of asyncio accepts in tasks of its own, which may outlast the server if a client connects at its end.
    def accept() -> None:
        accepted, _ = listener.accept()
        task = asyncio.create_task(run(accepted))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        loop.add_reader(listener, accept)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)
            # A task that is cancelled before its first step would leave its socket open.
            await asyncio.sleep(0)
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise failed[0]


@asynccontextmanager
async def fake_server(script: Script) -> AsyncIterator[str]:
    """Run the script for every connection of AMQP 0-9-1 and yield the URL."""
    async with scripted_server(lambda reader, writer: script(Peer(reader, writer))) as port:
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
