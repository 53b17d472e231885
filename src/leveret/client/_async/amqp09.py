"""A channel of AMQP 0-9, async API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from leveret.client._async.channel import Channel
from leveret.client._async.consumer import Consumer
from leveret.client._async.files import FileConsumer
from leveret.client.access import Access
from leveret.client.engine.amqp09.channel import Amqp09ChannelCore, Directory
from leveret.client.engine.amqp09.sources import Source, body_of, file_of
from leveret.client.engine.amqp09.streams import stream_publish, tunnel_request
from leveret.client.engine.amqp09.transfers import Transfer
from leveret.client.engine.amqp09.upload import Upload
from leveret.client.engine.common.encoding import Body, name_of
from leveret.client.errors import ConnectionClosed, Error
from leveret.client.files import FileMessage
from leveret.client.properties import Properties, PropertyValue
from leveret.client.timeouts import DEFAULT, Limit
from leveret.wire.amqp0.values import FieldMapping

if TYPE_CHECKING:
    from leveret.client._async.connection import Amqp09Connection
    from leveret.client._async.queue import Exchange, Queue

Progress = Callable[[int, int], object]


class Amqp09Channel(Channel):
    """An AMQP 0-9 channel: a `Channel` with the content classes, realms, pings and tunnels of AMQP 0-9."""

    _connection: Amqp09Connection
    _core: Amqp09ChannelCore

    def __init__(self, connection: Amqp09Connection, core: Amqp09ChannelCore) -> None:
        super().__init__(connection, core)

    @property
    def connection(self) -> Amqp09Connection:
        """Connection of the channel."""
        return self._connection

    @property
    def core(self) -> Amqp09ChannelCore:
        """The engine of the channel."""
        return self._core

    async def ping(self, *, timeout: Limit = DEFAULT) -> None:
        """Wait until the server has processed everything sent before on this channel (`channel.ping`).

        On a channel without confirms, messages published before are then in their queues and, if durable, on disk.
        """
        core = self._core
        await self._call("channel.ping", core.ping, timeout)

    # Realms

    async def request_access(
        self,
        realm: str,
        *,
        exclusive: bool = False,
        passive: bool = False,
        active: bool = False,
        write: bool = False,
        read: bool = False,
        timeout: Limit = DEFAULT,
    ) -> Access:
        """Request access to a realm (`access.request`). Later methods on the channel use its ticket.

        If the server refuses it, it closes the connection, as the specification requires.
        """
        core = self._core
        access = Access(realm, exclusive, passive, active, write, read)
        await self._call("access.request", lambda: core.request_access(access), timeout)
        return access

    def use_access(self, access: Access | None) -> None:
        """Use an access that the channel has requested for later methods, or none."""
        core = self._core
        with self._connection.driver.lock:
            core.use_access(access)

    # Files

    async def send_file(
        self,
        source: Source,
        routing_key: str | Queue = "",
        exchange: str | Exchange = "",
        *,
        identifier: str = "",
        filename: str | None = None,
        mandatory: bool = False,
        immediate: bool = False,
        progress: Progress | None = None,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> str:
        """Stage and publish a file (class file), and return its identifier.

        Bytes that the server already has are not sent again after a lost connection or in a later call with the same
        identifier.

        Args:
            source: A path, bytes, or a file that is read from its current position. It must not change during the call.
            routing_key: Routing key, or a queue.
            exchange: Exchange.
            identifier: Identifier of the upload; "" for a new one.
            filename: File name for consumers.
            mandatory: Raise `Returned` if the message is unroutable.
            immediate: Raise `Returned` if the message has no consumer.
            progress: Called with the bytes sent so far and the size of the file.
            timeout: Timeout of each step.
            properties: Properties of the message.
            **keywords: Properties that class file has; they replace those of `properties`.

        Raises:
            InvalidMessage: The message cannot be encoded; nothing was sent.
            Returned: The message was returned.
        """
        with file_of(source) as file:
            upload = Upload(
                file,
                name_of(exchange),
                name_of(routing_key),
                identifier,
                mandatory,
                immediate,
                filename,
                properties,
                keywords,
            )
            while True:
                await self._connection.driver.wait_open(timeout)
                try:
                    await self._stage(upload, progress, timeout)
                    await self.send(upload.outgoing(), timeout)
                    return upload.identifier
                except ConnectionClosed:
                    if self._connection.is_closed:
                        raise

    async def _stage(self, upload: Upload, progress: Progress | None, timeout: Limit) -> None:
        driver = self._connection.driver
        core = await self._open_upload_channel(timeout)
        try:
            await driver.wait(driver.call(upload.open, core), timeout, "file.open")
            while True:
                data = await driver.read_file(upload.read)
                while True:
                    with driver.lock:
                        if upload.can_send(core):
                            driver.call(upload.stage, core, data)
                            break
                        waiter = core.flow_waiter()
                    await driver.wait(waiter, timeout, f"file.stage while {core.blocked_reason()}")
                if progress is not None:
                    progress(upload.sent, upload.size)
                if upload.complete:
                    break
            await driver.wait(driver.call(core.ping), timeout, "file.stage")
            await driver.run(core.close(), timeout, "channel.close")
        finally:
            with driver.lock:
                core.abandon()

    def consume_files(
        self,
        queue: str | Queue,
        *,
        directory: Directory = None,
        prefetch: int = 10,
        no_ack: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
        consumer_tag: str = "",
        arguments: FieldMapping | None = None,
    ) -> FileConsumer:
        """Consume the files of a queue, as in `async for file in channel.consume_files("files")`.

        Args:
            queue: Queue to consume from.
            directory: Directory for received files, the same for all consumers of the channel. An interrupted transfer
                resumes there, even after a restart of the process. Without a directory, files are temporary, and
                transfers resume only after a lost connection.
            prefetch: Maximum number of unacked files, including those in transit; 0 is unlimited.
            no_ack: The server settles files when it sends them.
            exclusive: Request to be the only consumer of the queue.
            no_local: Do not receive files published over this connection.
            consumer_tag: Consumer tag; "" for a generated one.
            arguments: Additional arguments.
        """
        found = self._core.new_file_consumer(
            name_of(queue),
            consumer_tag,
            prefetch,
            directory,
            arguments,
            no_ack=no_ack,
            exclusive=exclusive,
            no_local=no_local,
        )
        return FileConsumer(self, found, queue)

    # Streams

    async def publish_stream(
        self,
        body: Body,
        routing_key: str | Queue = "",
        exchange: str | Exchange = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> None:
        """Publish a message that quickly becomes outdated (class stream).

        The call returns when the message is written. The message is not published again after a lost connection. With
        `mandatory` or `immediate`, the call waits for the outcome and raises `Returned` if there is no queue or consumer.
        """
        outgoing = stream_publish(body, name_of(exchange), name_of(routing_key), mandatory, immediate, properties, keywords)
        await self.send(outgoing, timeout)

    def consume_stream(
        self,
        queue: str | Queue,
        *,
        exclusive: bool = False,
        no_local: bool = False,
        consumer_tag: str = "",
        arguments: FieldMapping | None = None,
    ) -> Consumer:
        """Consume the stream messages of a queue; they need no acknowledgement.

        The `routing_key` of a message is the queue. `stream_qos` sets the rate of delivery.
        """
        found = self._core.new_stream_consumer(
            name_of(queue), consumer_tag, arguments, exclusive=exclusive, no_local=no_local
        )
        return Consumer(self, found, queue)

    async def stream_qos(
        self, consume_rate: int = 0, prefetch_size: int = 0, prefetch_count: int = 0, *, timeout: Limit = DEFAULT
    ) -> None:
        """Limit the rate of the channel's streams and how far deliveries may exceed it (`stream.qos`); 0 is unlimited.

        Args:
            consume_rate: Bytes per second.
            prefetch_size: Bytes ahead of the rate.
            prefetch_count: Messages ahead of the rate.
            timeout: Timeout of the call.
        """
        core = self._core
        await self._call("stream.qos", lambda: core.stream_qos(consume_rate, prefetch_size, prefetch_count), timeout)

    # Tunnels

    async def tunnel(
        self,
        data_name: str,
        body: Body = b"",
        *,
        headers: FieldMapping | None = None,
        meta_data: FieldMapping | None = None,
        proxy_name: str = "",
        durable: bool = False,
        broadcast: bool = False,
        timeout: Limit = DEFAULT,
    ) -> None:
        """Send a request to a handler of the server (`tunnel.request`), and wait until it is processed.

        Args:
            data_name: Name of the handler.
            body: Body of the request.
            headers: Headers of the request.
            meta_data: Metadata of the request.
            proxy_name: Name of a proxy.
            durable: Property `durable` of the request.
            broadcast: Property `broadcast` of the request.
            timeout: Timeout of the call.

        Raises:
            NotFound: The server has no such handler.
            PreconditionFailed: The handler refused the request; the message contains its reason.
        """
        core = self._core
        sent = tunnel_request(data_name, body, headers, meta_data, proxy_name, durable, broadcast)
        await self._call("tunnel.request", lambda: core.tunnel(*sent), timeout)

    # Class message

    async def transfer(
        self,
        body: Source,
        routing_key: str | Queue = "",
        exchange: str | Exchange = "",
        *,
        identifier: str = "",
        immediate: bool = False,
        progress: Progress | None = None,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> None:
        """Publish a message of class message, of any size, and wait until the server has accepted it.

        Args:
            body: Text, bytes, a path, or a file that is read from its current position. It must not change during the
                call.
            routing_key: Routing key, or a queue.
            exchange: Exchange.
            identifier: Identifier of its checkpoints: an interrupted message resumes at the last one, after a lost
                connection or in a later call with the same identifier. "" to start from the beginning.
            immediate: Reject the message if it has no consumer.
            progress: Called with the bytes sent so far and the size, if the body does not fit a frame.
            timeout: Timeout of each step.
            properties: Properties of the message.
            **keywords: Properties that replace those of `properties`; `transaction_id` and `security_token` exist only in
                this class.

        Raises:
            InvalidMessage: The message cannot be encoded; nothing was sent.
            Nacked: No queue accepts the message.
        """
        core = self._core
        with body_of(body) as file:
            sending = Transfer(
                core, file, name_of(exchange), name_of(routing_key), identifier, immediate, properties, keywords
            )
            while True:
                try:
                    refused = await self._transfer(sending, progress, timeout)
                    break
                except ConnectionClosed:
                    if self._connection.is_closed or core.in_transaction:
                        raise
        if refused is not None:
            raise refused

    async def _transfer(self, sending: Transfer, progress: Progress | None, timeout: Limit) -> Error | None:
        core = self._core
        await self.wait_flowing(timeout)
        if sending.inline:
            return cast("Error | None", await self._call("message.transfer", sending.send, timeout))
        in_transaction = core.in_transaction
        channel = core if in_transaction else await self._open_upload_channel(timeout)
        sending.set_channel(channel)
        driver = self._connection.driver
        try:
            await driver.wait(driver.call(sending.begin), timeout, "message.open")
            while not sending.complete:
                data = await driver.read_file(sending.read)
                while True:
                    with driver.lock:
                        if sending.can_send():
                            driver.call(sending.append, data)
                            break
                        waiter = channel.flow_waiter()
                    await driver.wait(waiter, timeout, f"message.append while {channel.blocked_reason()}")
                if progress is not None:
                    progress(sending.sent, sending.size)
            return cast("Error | None", await driver.wait(driver.call(sending.finish), timeout, "message.transfer"))
        finally:
            if not in_transaction:
                with driver.lock:
                    channel.abandon()

    async def _open_upload_channel(self, timeout: Limit) -> Amqp09ChannelCore:
        """Open a channel for one upload, with the access of this one. Its errors do not close this channel."""
        driver = self._connection.driver
        with driver.lock:
            core = self._connection.core.new_channel(False, False)
            core.internal = True
            access = self._core.access
        try:
            await driver.run(core.open(), timeout, "channel.open")
            await driver.run(core.prepare({"access": access}), timeout, "access.request")
            with driver.lock:
                core.use_access(access)
        except BaseException:
            with driver.lock:
                core.abandon()
            raise
        return core

    def consume_messages(
        self,
        queue: str | Queue,
        *,
        directory: Directory = None,
        prefetch: int = 100,
        no_ack: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
        consumer_tag: str = "",
        arguments: FieldMapping | None = None,
    ) -> FileConsumer:
        """Consume the class message contents of a queue, of any size.

        Content that exceeds a frame is written to disk, as with `consume_files`, and resumes after an interruption.
        Messages can be accepted or rejected, but not requeued.
        """
        found = self._core.new_message_consumer(
            name_of(queue),
            consumer_tag,
            prefetch,
            directory,
            arguments,
            no_ack=no_ack,
            exclusive=exclusive,
            no_local=no_local,
        )
        return FileConsumer(self, found, queue)

    async def get_message(
        self, queue: str | Queue, *, no_ack: bool = False, timeout: Limit = DEFAULT
    ) -> FileMessage | None:
        """Return the next message of a queue, or None if it is empty (`message.get`)."""
        core = self._core
        name = name_of(queue)
        found: FileMessage | None = await self._call("message.get", lambda: core.get_message(name, no_ack), timeout)
        return found

    # Distributed transactions

    async def dtx_select(self, *, timeout: Limit = DEFAULT) -> None:
        """Enable distributed transactions on the channel (`dtx.select`), before any other work on it."""
        core = self._core
        await self._call("dtx.select", core.dtx_select, timeout)

    async def dtx_start(self, identifier: str, *, timeout: Limit = DEFAULT) -> None:
        """Start a branch (`dtx.start`). Later publishes and acknowledgements take effect when a coordinator commits it.

        If the connection is lost within the branch, the channel is closed with `TransactionLost`.
        """
        core = self._core
        await self._call("dtx.start", lambda: core.dtx_start(identifier), timeout)
