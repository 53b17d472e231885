"""What channels of AMQP 0-9 have beside the others, blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from leveret.client.access import Access
from leveret.client.blocking.consumer import Consumer
from leveret.client.blocking.files import FileConsumer
from leveret.client.core.amqp09.channel import Amqp09Channel, Directory, channel_of
from leveret.client.core.amqp09.sources import Source, body_of, file_of
from leveret.client.core.amqp09.streams import stream_publish, tunnel_request
from leveret.client.core.amqp09.transfers import Transfer
from leveret.client.core.amqp09.upload import Upload
from leveret.client.core.encoding import Body, name_of
from leveret.client.core.frontend import Waiter
from leveret.client.core.pending_confirms import Outgoing
from leveret.client.core.protocols import AnyChannelCore
from leveret.client.errors import ConnectionClosed, Error
from leveret.client.files import FileMessage
from leveret.client.properties import Properties
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client.blocking.channel import Channel
    from leveret.client.blocking.connection import Connection
    from leveret.client.blocking.queue import Exchange, Queue

Progress = Callable[[int, int], object]


class Amqp09Calls:
    """The calls of a channel that are of AMQP 0-9 alone; over other protocols they raise `NotSupported`."""

    connection: Connection
    _core: AnyChannelCore

    if TYPE_CHECKING:
        def _call(self, what: str, send: Callable[[], Waiter], timeout: Limit = DEFAULT) -> Any: ...

        def send(self, outgoing: Outgoing, timeout: Limit) -> None: ...

        def wait_flowing(self, timeout: Limit = DEFAULT) -> None: ...

    def ping(self, *, timeout: Limit = DEFAULT) -> None:
        """Until the server has done everything that was sent before on this channel (`channel.ping`): over a channel
        without confirms, until what was published is in its queues and, where it is durable, on disk."""
        core = channel_of(self._core)
        self._call("channel.ping", core.ping, timeout)

    # Realms

    def request_access(self, realm: str, *, exclusive: bool = False, passive: bool = False, active: bool = False,
                       write: bool = False, read: bool = False, timeout: Limit = DEFAULT) -> Access:
        """Ask for access to a realm (`access.request`): what follows on the channel goes under its ticket. What the server
        refuses ends the connection, as the specification has it."""
        core = channel_of(self._core)
        access = Access(realm, exclusive, passive, active, write, read)
        self._call("access.request", lambda: core.request_access(access), timeout)
        return access

    def use_access(self, access: Access | None) -> None:
        """Have what follows go under another ticket that the channel has asked for, or under none."""
        core = channel_of(self._core)
        with self.connection.driver.lock:
            core.use_access(access)

    # Files

    def send_file(self, source: Source, routing_key: str | Queue = "", exchange: str | Exchange = "", *,
                  identifier: str = "", filename: str | None = None, mandatory: bool = False,
                  immediate: bool = False, progress: Progress | None = None, timeout: Limit = DEFAULT,
                  properties: Properties | None = None, **keywords: Any) -> str:
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
        with file_of(source) as file:
            upload = Upload(file, name_of(exchange), name_of(routing_key), identifier, mandatory, immediate, filename,
                            properties, keywords)
            while True:
                self.connection.driver.wait_open(timeout)
                try:
                    self._stage(upload, progress, timeout)
                    self.send(upload.outgoing(), timeout)
                    return upload.identifier
                except ConnectionClosed:
                    if self.connection.is_closed:
                        raise

    def _stage(self, upload: Upload, progress: Progress | None, timeout: Limit) -> None:
        driver = self.connection.driver
        core = self._own_channel(timeout)
        try:
            opened = self._locked(lambda: upload.find(core))
            driver.wait(opened, timeout, "file.open")
            while True:
                data = upload.read()
                while True:
                    with driver.lock:
                        if upload.can_send(core):
                            break
                        waiter = core.flow_waiter()
                    driver.wait(waiter, timeout, f"file.stage while {core.blocked_reason()}")
                self._locked(lambda: upload.stage(core, data))  # noqa: B023 it is called at once
                if progress is not None:
                    progress(upload.sent, upload.size)
                if upload.complete:
                    break
            driver.wait(self._locked(core.ping), timeout, "file.stage")
            driver.run(core.close(), timeout, "channel.close")
        finally:
            with driver.lock:
                core.abandon()

    def _locked(self, send: Callable[[], Any]) -> Any:
        driver = self.connection.driver
        with driver.lock:
            try:
                return send()
            except BaseException as error:
                driver.interrupted(error)
                raise

    def consume_files(self, queue: str | Queue, *, directory: Directory = None, prefetch: int = 10,
                      no_ack: bool = False, exclusive: bool = False, no_local: bool = False, consumer_tag: str = "",
                      arguments: dict[str, Any] | None = None) -> FileConsumer:
        """The files of a queue, as they come: `for file in channel.consume_files("files"): ...`

        directory  where they go, the same for all consumers of the channel. What came in part goes on there, also when
                   the process has died meanwhile. Without one they are temporary files, which goes on only after a lost
                   connection
        prefetch   how many it may hold that are not acknowledged, those that are on their way included; 0 is no limit
        no_ack     they are settled as they are sent
        """
        found = channel_of(self._core).new_file_consumer(
            name_of(queue), consumer_tag, prefetch, directory, arguments, no_ack=no_ack, exclusive=exclusive,
            no_local=no_local)
        return FileConsumer(cast("Channel", self), found, queue)

    # Streams

    def publish_stream(self, body: Body, routing_key: str | Queue = "", exchange: str | Exchange = "", *,
                       mandatory: bool = False, immediate: bool = False, timeout: Limit = DEFAULT,
                       properties: Properties | None = None, **keywords: Any) -> None:
        """Publish a message that is worth something in time only (class stream): done when it is written, and not sent
        again over another connection. With `mandatory` or `immediate` it waits for what becomes of it, and raises
        `Returned`."""
        channel_of(self._core)
        outgoing = stream_publish(body, name_of(exchange), name_of(routing_key), mandatory, immediate, properties, keywords)
        self.send(outgoing, timeout)

    def consume_stream(self, queue: str | Queue, *, exclusive: bool = False, no_local: bool = False,
                       consumer_tag: str = "", arguments: dict[str, Any] | None = None) -> Consumer:
        """The messages of class stream of a queue, as they come; there is nothing to acknowledge. `routing_key` is the
        queue. `stream_qos` says how fast they come."""
        found = channel_of(self._core).new_stream_consumer(
            name_of(queue), consumer_tag, arguments, exclusive=exclusive, no_local=no_local)
        return Consumer(cast("Channel", self), found, queue)

    def stream_qos(self, consume_rate: int = 0, prefetch_size: int = 0, prefetch_count: int = 0, *,
                   timeout: Limit = DEFAULT) -> None:
        """How fast the streams of the channel come, in octets a second, and how far ahead of that they may be, in octets
        and messages (`stream.qos`); 0 is no limit."""
        core = channel_of(self._core)
        self._call("stream.qos", lambda: core.stream_qos(consume_rate, prefetch_size, prefetch_count), timeout)

    # Tunnels

    def tunnel(self, data_name: str, body: Body = b"", *, headers: dict[str, Any] | None = None,
               meta_data: dict[str, Any] | None = None, proxy_name: str = "", durable: bool = False,
               broadcast: bool = False, timeout: Limit = DEFAULT) -> None:
        """Send a request to the server's handler of that name (`tunnel.request`), and wait until it is done with it.
        Raises `NotFound` where there is none, and `PreconditionFailed` with what the handler says where it refuses."""
        core = channel_of(self._core)
        sent = tunnel_request(data_name, body, headers, meta_data, proxy_name, durable, broadcast)
        self._call("tunnel.request", lambda: core.tunnel(*sent), timeout)

    # Class message

    def transfer(self, body: Source, routing_key: str | Queue = "", exchange: str | Exchange = "", *,
                 identifier: str = "", immediate: bool = False, progress: Progress | None = None,
                 timeout: Limit = DEFAULT, properties: Properties | None = None, **keywords: Any) -> None:
        """Publish a message of class message, of any size, and wait until the server has taken it.

        body        text, octets, a path, or a file that is read from where it stands; it must not change meanwhile
        identifier  of its checkpoints: a message that is interrupted goes on from the last one, after a lost connection
                    and when it is sent again with the same identifier. "": it begins copy_error
        progress    is called with the octets that were sent, and those of the whole, where it does not fit a frame
        keywords    properties; `transaction_id` and `security_token` are of this class alone

        Raises `InvalidMessage` before anything is sent, and `Nacked` when no queue takes it.
        """
        core = channel_of(self._core)
        with body_of(body) as file:
            sending = Transfer(core, file, name_of(exchange), name_of(routing_key), identifier, immediate, properties,
                               keywords)
            while True:
                try:
                    refused = self._transfer(sending, progress, timeout)
                    break
                except ConnectionClosed:
                    if self.connection.is_closed or core.in_transaction:
                        raise
        if refused is not None:
            raise refused

    def _transfer(self, sending: Transfer, progress: Progress | None, timeout: Limit) -> Error | None:
        core = channel_of(self._core)
        self.wait_flowing(timeout)
        if sending.inline:
            return cast("Error | None", self._call("message.transfer", sending.send, timeout))
        within = core.in_transaction
        own = core if within else self._own_channel(timeout)
        sending.use(own)
        driver = self.connection.driver
        try:
            driver.wait(self._locked(sending.begin), timeout, "message.open")
            while not sending.complete:
                data = sending.read()
                while True:
                    with driver.lock:
                        if sending.can_send():
                            sending.append(data)
                            break
                        waiter = own.flow_waiter()
                    driver.wait(waiter, timeout, f"message.append while {own.blocked_reason()}")
                if progress is not None:
                    progress(sending.sent, sending.size)
            return cast("Error | None", driver.wait(self._locked(sending.finish), timeout, "message.transfer"))
        finally:
            if not within:
                with driver.lock:
                    own.abandon()

    def _own_channel(self, timeout: Limit) -> Amqp09Channel:
        """A channel for one upload, with the access of this one: what is wrong with it does not cost this one."""
        driver = self.connection.driver
        with driver.lock:
            core = self.connection._core.new_channel(False, False)
            assert isinstance(core, Amqp09Channel)
            core.internal = True
            access = channel_of(self._core).access
        try:
            driver.run(core.open(), timeout, "channel.open")
            driver.run(core.prepare({"access": access}), timeout, "access.request")
            with driver.lock:
                core.use_access(access)
        except BaseException:
            with driver.lock:
                core.abandon()
            raise
        return core

    def consume_messages(self, queue: str | Queue, *, directory: Directory = None,
                         prefetch: int = 100, no_ack: bool = False, exclusive: bool = False, no_local: bool = False,
                         consumer_tag: str = "", arguments: dict[str, Any] | None = None) -> FileConsumer:
        """The messages of class message of a queue, of any size, as they come. What does not come in one frame goes to
        disk, as with `consume_files`, and goes on where it was interrupted. They are taken or rejected, not requeued."""
        found = channel_of(self._core).new_message_consumer(
            name_of(queue), consumer_tag, prefetch, directory, arguments, no_ack=no_ack, exclusive=exclusive,
            no_local=no_local)
        return FileConsumer(cast("Channel", self), found, queue)

    def get_message(self, queue: str | Queue, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> FileMessage | None:
        """The next message of class message of a queue, None when there is none (`message.get`)."""
        core = channel_of(self._core)
        name = name_of(queue)
        found: FileMessage | None = self._call("message.get", lambda: core.get_message(name, no_ack), timeout)
        return found

    # Distributed transactions

    def dtx_select(self, *, timeout: Limit = DEFAULT) -> None:
        """Have the channel work in distributed transactions (`dtx.select`), before anything else is done on it."""
        core = channel_of(self._core)
        self._call("dtx.select", core.dtx_select, timeout)

    def dtx_start(self, identifier: str, *, timeout: Limit = DEFAULT) -> None:
        """Begin a branch (`dtx.start`): what is published and acknowledged from now on takes effect when a coordinator says
        so. The channel does not come back when the connection is lost within it: `TransactionLost`."""
        core = channel_of(self._core)
        self._call("dtx.start", lambda: core.dtx_start(identifier), timeout)
