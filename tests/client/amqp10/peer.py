"""A scripted server of AMQP 1.0, for correct and incorrect behaviour."""

from __future__ import annotations

import asyncio

from leveret.wire.amqp10 import frames
from leveret.wire.amqp10.frames import FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transport import Begin, Open


class Peer:
    """The server side of an AMQP 1.0 connection, driven by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameReader(1 << 20)
        self.output = Output(1 << 20)
        self.coming: list[object] = []

    async def next(self) -> object:
        while not self.coming:
            data = await self.reader.read(1 << 16)
            if not data:
                raise asyncio.IncompleteReadError(b"", None)
            self.coming.extend(self.frames.receive(data))
        return self.coming.pop(0)

    async def flush(self) -> None:
        self.writer.write(self.output.to_send())
        await self.writer.drain()

    async def open(self, **fields: object) -> tuple[str | None, str | None]:
        """Return the hostnames of the login and of the open."""
        await self.next()
        self.output.send_header(frames.SASL)
        self.output.send(SaslMechanisms(("PLAIN",)))
        await self.flush()
        init = await self.next()
        assert isinstance(init, SaslInit)
        self.output.send(SaslOutcome(0))
        await self.flush()
        await self.next()
        theirs = await self.next()
        assert isinstance(theirs, Open)
        self.output.send_header(frames.AMQP)
        self.output.send(Open("peer", **fields))  # type: ignore[arg-type]
        await self.flush()
        return init.hostname, theirs.hostname

    async def begin(self) -> None:
        begin = await self.next()
        assert isinstance(begin, Begin)
        self.output.send(Begin(0, 100, 100, begin.channel))
        await self.flush()
