"""An AMQP 0-9 connection: a 0-9-1 connection with redirects and AMQP 0-9 channels."""

from __future__ import annotations

from typing import ClassVar, Final

from leveret.client.engine.amqp09.channel import Amqp09ChannelCore
from leveret.client.engine.amqp091.channel import ChannelCore
from leveret.client.engine.amqp091.connection import ConnectionCore
from leveret.client.engine.amqp091.recovery import MAX_LOCKED_ATTEMPTS
from leveret.client.engine.common.connection import RECOVERING
from leveret.client.engine.common.frontend import FrontEnd, Procedure, Waiter
from leveret.client.errors import ChannelClosed, ConnectionClosed, InvalidUrl, NotSupported, Redirected
from leveret.client.parameters import Parameters
from leveret.client.url import split_host
from leveret.wire.amqp0.commands import CONTENT_PART, CONTENT_START, Command, ContentPart, ContentStart, Method
from leveret.wire.amqp0.constants import CHANNEL_ERROR, CONNECTION_FORCED
from leveret.wire.amqp0.engine import Engine
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.table_amqp09 import V0_9

QUEUE_CLASS: Final = 50


class Amqp09ConnectionCore(ConnectionCore):
    """A connection of AMQP 0-9.

    Attributes:
        interrupted: Server-assigned ids of channels that were lost with their connection.
    """

    header: ClassVar[bytes] = b"AMQP\x01\x01\x00\x09"
    version: ClassVar[Version] = V0_9
    channel_class: ClassVar[type[ChannelCore]] = Amqp09ChannelCore

    def __init__(self, frontend: FrontEnd, parameters: Parameters) -> None:
        super().__init__(frontend, parameters)
        self.interrupted: list[str] = []

    def new_channel(self, confirms: bool, transactional: bool) -> Amqp09ChannelCore:
        channel = super().new_channel(confirms, transactional)
        assert isinstance(channel, Amqp09ChannelCore)
        return channel

    def recover(self) -> Procedure:
        yield from self._end_interrupted()
        yield from super().recover()

    def _end_interrupted(self) -> Procedure:
        """Close channels that the server keeps for resumption (a procedure).

        Recovery opens new channels, as with other protocols. Closing the old channels requeues their messages at once and
        frees their exclusive resources.
        """
        while self.interrupted and not self.is_full:
            channel = self.new_channel(False, False)
            channel.internal = True
            try:
                yield channel.resume(self.interrupted[-1])
                yield from channel.close()
            except ChannelClosed:
                pass  # the server no longer keeps it
            except ConnectionClosed as error:
                if error.reply_code:
                    # A server that does not resume channels.
                    self.interrupted.clear()
                raise
            self.interrupted.pop()
        self.interrupted.clear()

    def _new_engine(self, parameters: Parameters) -> Engine:
        engine = super()._new_engine(parameters)
        # Write files of any size to disk as they arrive.
        engine.spools_uploads = True
        engine.max_upload_size = 1 << 62
        return engine

    def _dispatch_other(self, command: Command, channel: ChannelCore | None) -> None:
        kind = command.kind
        if kind == CONTENT_START:
            assert isinstance(command, ContentStart)
            if isinstance(channel, Amqp09ChannelCore) and command.method is not None:
                channel.incoming.begin(command.method)
        elif kind == CONTENT_PART:
            assert isinstance(command, ContentPart)
            if isinstance(channel, Amqp09ChannelCore):
                channel.incoming.part(command.data)
        else:
            super()._dispatch_other(command, channel)

    def _connection_method(self, command: Method) -> None:
        if command.name != "connection.redirect":
            if self._is_locked(command):
                # channel-error: it concerns a declaration of the recovery.
                self.locked_attempts += 1
                command.arguments["reply_code"] = CONNECTION_FORCED
            super()._connection_method(command)
            return
        target = command.arguments["host"]
        host, port = split_host(target, self.parameters.port)
        redirected = Redirected(
            f"{self.parameters.host}:{self.parameters.port} redirects clients to {target}", host=host, port=port
        )
        redirected.known_hosts = self._endpoints(command.arguments["known_hosts"])
        self._fail_awaited(redirected)
        self.frontend.close_socket()

    def _endpoints(self, known_hosts: str) -> tuple[tuple[str, int], ...]:
        """Parse the known hosts of a redirect. Skips invalid entries."""
        endpoints = []
        for endpoint in known_hosts.replace(",", " ").split():
            try:
                endpoints.append(split_host(endpoint, self.parameters.port))
            except InvalidUrl:
                continue
        return tuple(endpoints)

    def _is_locked(self, command: Method) -> bool:
        """Whether the server closes the connection because an exclusive queue still belongs to the lost one."""
        arguments = command.arguments
        return (
            command.name == "connection.close"
            and self.state == RECOVERING
            and self.locked_attempts < MAX_LOCKED_ATTEMPTS
            and arguments["reply_code"] == CHANNEL_ERROR
            and arguments["class_id"] == QUEUE_CLASS
        )

    def update_secret(self, secret: str, reason: str) -> Waiter:
        raise NotSupported("AMQP 0-9 cannot update a secret; expected a connection of 0-9-1 or 1.0 (option protocol)")
