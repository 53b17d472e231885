"""What channels of AMQP 0-9 have beside the others, for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, cast

from leveret.client.access import Access
from leveret.client.aio.files import FileConsumer
from leveret.client.core.amqp09.channel import Amqp09Channel, channel_of
from leveret.client.core.amqp09.upload import Upload, open_source
from leveret.client.core.encoding import name_of
from leveret.client.core.host import Waiter
from leveret.client.core.kinds import AnyChannelCore
from leveret.client.core.unconfirmed import Outgoing
from leveret.client.errors import ConnectionClosed
from leveret.client.limit import DEFAULT, Limit
from leveret.client.properties import Properties

if TYPE_CHECKING:
    from leveret.client.aio.channel import Channel
    from leveret.client.aio.connection import Connection
    from leveret.client.aio.queue import Exchange, Queue

Progress = Callable[[int, int], object]


class Amqp09Calls:
    """The calls of a channel that are of AMQP 0-9 alone; over other protocols they raise `NotSupported`."""

    connection: Connection
    _core: AnyChannelCore

    if TYPE_CHECKING:
        async def _call(self, what: str, send: Callable[[], Waiter], timeout: Limit = DEFAULT) -> Any: ...

        async def send(self, outgoing: Outgoing, timeout: Limit) -> None: ...

    async def ping(self, *, timeout: Limit = DEFAULT) -> None:
        """Until the server has done everything that was sent before on this channel (`channel.ping`): over a channel
        without confirms, until what was published is in its queues and, where it is durable, on disk."""
        core = channel_of(self._core)
        await self._call("channel.ping", core.ping, timeout)

    # Realms

    async def request_access(self, realm: str, *, exclusive: bool = False, passive: bool = False, active: bool = False,
                       write: bool = False, read: bool = False, timeout: Limit = DEFAULT) -> Access:
        """Ask for access to a realm (`access.request`): what follows on the channel goes under its ticket. What the server
        refuses ends the connection, as the specification has it."""
        core = channel_of(self._core)
        access = Access(realm, exclusive, passive, active, write, read)
        await self._call("access.request", lambda: core.request_access(access), timeout)
        return access

    def use_access(self, access: Access | None) -> None:
        """Have what follows go under another ticket that the channel has asked for, or under none."""
        core = channel_of(self._core)
        core.use_access(access)

    # Files

    async def send_file(self, source: str | bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes],
                  routing_key: str | Queue = "", exchange: str | Exchange = "", *, identifier: str = "",
                  filename: str | None = None, mandatory: bool = False, immediate: bool = False,
                  progress: Progress | None = None, timeout: Limit = DEFAULT, properties: Properties | None = None,
                  **keywords: Any) -> str:
        """Send a file by staging, and publish it (class file); its identifier. Octets that the server has are not sent
        again: neither after a lost connection, nor when it is called again with the same identifier.

        source      a path, octets, or a file that is read from where it stands; it must not change meanwhile
        identifier  "" for one that is made up
        filename    a property; other properties are keywords, as far as class file has them
        progress    is called with the octets that were sent, and those of the whole file
        timeout     of each step

        Raises `InvalidMessage` before anything is sent, `Returned`, and what `publish` raises.
        """
        channel_of(self._core)
        file, ours = open_source(source)
        try:
            upload = Upload(file, name_of(exchange), name_of(routing_key), identifier, mandatory, immediate, filename,
                            properties, keywords)
            while True:
                await self.connection.until_open(timeout)
                try:
                    await self._stage(upload, progress, timeout)
                    await self.send(upload.outgoing(), timeout)
                    return upload.identifier
                except ConnectionClosed:
                    if self.connection.is_closed:
                        raise
        finally:
            if ours:
                file.close()

    async def _stage(self, upload: Upload, progress: Progress | None, timeout: Limit) -> None:
        """On a channel of its own: what is wrong with it does not cost this one."""
        connection = self.connection
        core = connection.core.new_channel(False, False)
        assert isinstance(core, Amqp09Channel)
        core.internal = True
        try:
            await connection.run(core.open(), timeout, "channel.open")
            await connection.wait(upload.find(core), timeout, "file.open")
            while True:
                data = await asyncio.to_thread(upload.read)
                while not upload.may_go_on(core):
                    await connection.wait(core.until_flowing(), timeout, f"file.stage while {core.why_stopped()}")
                upload.stage(core, data)
                if progress is not None:
                    progress(upload.sent, upload.size)
                if upload.complete:
                    break
            await connection.wait(core.ping(), timeout, "file.stage")
            await connection.run(core.close(), timeout, "channel.close")
        finally:
            core.abandon()

    def consume_files(self, queue: str | Queue, *, directory: str | os.PathLike[str] | None = None, prefetch: int = 10,
                      no_ack: bool = False, exclusive: bool = False, no_local: bool = False, consumer_tag: str = "",
                      arguments: dict[str, Any] | None = None) -> FileConsumer:
        """The files of a queue, as they come: `async for file in channel.consume_files("files"): ...`

        directory  where they go, the same for all consumers of the channel. What came in part goes on there, also when
                   the process has died meanwhile. Without one they are temporary files, which goes on only after a lost
                   connection
        prefetch   how many it may hold that are not acknowledged, those that are on their way included; 0 is no limit
        no_ack     they are settled as they are sent
        """
        core = channel_of(self._core)
        sent = {"no_ack": no_ack, "exclusive": exclusive, "no_local": no_local, "arguments": dict(arguments or {})}
        found = core.new_file_consumer(name_of(queue), prefetch, sent, None if directory is None else os.fspath(directory))
        found.tag = consumer_tag
        return FileConsumer(cast("Channel", self), found, queue)

    # Distributed transactions

    async def dtx_select(self, *, timeout: Limit = DEFAULT) -> None:
        """Have the channel work in distributed transactions (`dtx.select`), before anything else is done on it."""
        core = channel_of(self._core)
        await self._call("dtx.select", core.dtx_select, timeout)

    async def dtx_start(self, identifier: str, *, timeout: Limit = DEFAULT) -> None:
        """Begin a branch (`dtx.start`): what is published and acknowledged from now on takes effect when a coordinator says
        so. The channel does not come back when the connection is lost within it: `TransactionLost`."""
        core = channel_of(self._core)
        await self._call("dtx.start", lambda: core.dtx_start(identifier), timeout)
