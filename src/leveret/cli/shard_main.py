"""Entry point of the process of a shard. Its first line of standard input has the settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from leveret.broker.errors import BrokerError, StorageFailed
from leveret.cli.child_main import read_settings
from leveret.cli.running import Running, Stopped, stop_timeout
from leveret.cli.telemetry_process import TelemetryProcess
from leveret.cluster.control import ShardControl
from leveret.cluster.front_watch import FrontWatch
from leveret.cluster.link import (
    Adopt,
    Applied,
    AuditWritten,
    Beat,
    Change,
    Channels,
    Declare,
    Disown,
    Ended,
    KnownHosts,
    Link,
    Listeners,
    Lost,
    Message,
    OtherChannels,
    Ready,
    Refused,
    Reload,
    Stop,
    Suspended,
)
from leveret.cluster.parts import FrontStopped, ShardPart
from leveret.cluster.settings import COUNT_INTERVAL, ShardSettings, beat_interval
from leveret.config import Config, ConfigError
from leveret.management.control_socket import ControlServer
from leveret.node.composition import Composition
from leveret.node.errors import StartFailed
from leveret.node.part import Record
from leveret.protocols.adoption import Adoption
from leveret.protocols.services import Services
from leveret.security.declared import declared_users
from leveret.security.tls import TlsError
from leveret.storage.cluster import ClaimLost, ServerAway
from leveret.storage.data_directory import DirectoryInUse
from leveret.storage.salvage import NOTHING_LOST, Salvage

logger = logging.getLogger("leveret.serve")

# Seconds between attempts to lock the data directory, which the process of an earlier front may still use, and to reach
# PostgreSQL.
_LOCK_INTERVAL: Final = 0.05
_AWAY_INTERVAL: Final = 0.5
# Seconds for clients to answer the close after the front has ended: a new front may wait for the data directory. The same
# if the front does not answer, because it passes on what clients with TLS send.
_ORPHAN_TIMEOUT: Final = 0.5
_REFUSED: Final = 1
# Connections whose channels are counted in one turn.
_COUNTED_SESSIONS: Final = 1000
# The first descriptor beyond standard input, output and error.
_FIRST_DESCRIPTOR: Final = 3


class ShardServing(Running):
    """One run of a shard.

    Args:
        settings: The settings of the process.
        link: The link to the front.
    """

    _signals = (signal.SIGTERM,)

    def __init__(self, settings: ShardSettings, link: Link) -> None:
        super().__init__(settings.config, settings.number)
        self._settings = settings
        self._link = link
        self._salvage = Salvage(settings.accept_missing, settings.drop_damaged)
        self._part = ShardPart(settings, link)
        self._front = FrontWatch(settings.config.cluster.lease, self._find_takers, self._front_silent)
        self._reason = ""
        # Whether the front has been silent, so that the shard is for another node.
        self._is_left = False
        # Whether the link is served by the event loop.
        self._is_linked = False
        # The addresses that the front listens on; none if they are not known yet.
        self._listeners: list[str] = []
        self._is_announced = False
        # The task that counts the channels of users.
        self._counting: asyncio.Task[None] | None = None
        # The task that shows the front that the event loop runs.
        self._beating: asyncio.Task[None] | None = None

    async def _compose(self) -> Composition:
        composition = await self._open()
        self._salvage = NOTHING_LOST
        TelemetryProcess(self._config, self._control_path).trace(composition.services.broker)
        if not self._is_linked:
            self._is_linked = True
            self._link.start(self._received, self._front_ended)
            self._beating = asyncio.create_task(self._keep_beating())
        return composition

    async def _open(self) -> Composition:
        """Open the log. Shards of a front that was killed may still use the data directory for a moment.

        PostgreSQL may be away for longer. Other nodes may claim the shard meanwhile.
        """
        reason = ""
        pause = _LOCK_INTERVAL
        deadline = time.monotonic() + stop_timeout(self._config.server.shutdown_timeout)
        while True:
            try:
                return Composition(
                    self._config,
                    self._settings.config_name,
                    self._end.set,
                    salvage=self._salvage,
                    watchdog=self._watchdog,
                    part=self._part,
                )
            except DirectoryInUse:
                if time.monotonic() > deadline:
                    raise
            except ServerAway as error:
                pause = _AWAY_INTERVAL
                if str(error) != reason:
                    reason = str(error)
                    logger.warning("the start waits: %s", reason)
            self._part.check_front()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._end.wait()
                    raise Stopped

    @property
    def _control_path(self) -> Path:
        return Path(self._settings.control)

    def _make_control(self, composition: Composition) -> ControlServer:
        return ShardControl(composition.admin, self._control_path)

    async def _start(self, composition: Composition, control: ControlServer) -> None:
        await composition.server.start()
        await composition.part.started(composition.log, composition.broker)
        composition.start_tokens()
        await self._start_control(control)

    async def _announce(self, composition: Composition, control: ControlServer) -> None:
        logger.info("ready: %d vhosts", len(composition.broker.vhosts))
        self._link.send(Ready())
        self._counting = asyncio.create_task(self._count_channels(composition.services))

    def _start_shovels(self, composition: Composition) -> None:
        self._is_announced = True
        if self._listeners:
            composition.start_shovels(self._listeners)

    async def _keep_beating(self) -> None:
        """Show the front signs of life, without which it kills the process."""
        while True:
            self._link.send(Beat())
            await asyncio.sleep(beat_interval(self._config.cluster.shard_timeout))

    async def _count_channels(self, services: Services) -> None:
        """Report the numbers of channels of users with a limit on it, when they change."""
        reported: dict[str, int] = {}
        while True:
            await asyncio.sleep(COUNT_INTERVAL)
            counts: dict[str, int] = {}
            for number, session in enumerate(list(services.sessions), 1):
                if session.account is not None and session.account.limits.max_channels:
                    counts[session.user] = counts.get(session.user, 0) + session.channel_count()
                if not number % _COUNTED_SESSIONS:
                    await asyncio.sleep(0)
            if counts != reported:
                reported = counts
                self._link.send(Channels(counts))

    def _stop_reason(self) -> str:
        return self._reason or super()._stop_reason()

    def _reload(self) -> None:
        """Ignore SIGHUP: the front sends a changed configuration."""

    async def _finish(self, composition: Composition, control: ControlServer) -> None:
        if self._counting is not None:
            self._counting.cancel()
        self._is_announced = False
        self._link.send(Suspended())
        await super()._finish(composition, control)
        if self._is_left:
            self._link.send(Lost())

    # Messages of the front

    def _received(self, message: Message, carried: socket.socket | None) -> None:
        match message:
            case Adopt():
                self._adopt(carried, message.adoption)
            case Change():
                self._change(message.records)
                self._link.send(Applied(message.number))
            case AuditWritten():
                self._part.audit.note_written(message.number)
            case Declare():
                if self._composition is not None:
                    self._composition.declare_vhosts(message.vhosts)
            case Disown():
                if self._composition is not None:
                    self._composition.server.disown(message.node)
            case KnownHosts():
                if self._composition is not None:
                    self._composition.announce(message.hosts)
            case Listeners():
                self._listeners = message.urls
                if self._composition is not None and self._is_announced:
                    self._start_shovels(self._composition)
            case OtherChannels():
                if self._composition is not None:
                    self._composition.services.note_channels_elsewhere(message.counts)
            case Reload():
                self._apply(message.config)
            case Stop():
                self._stop_because(message.reason, message.client_timeout)
            case Beat():
                self._front.note_beat()
            case _:
                logger.error("the front sent an unexpected %s", type(message).__name__)

    def _front_ended(self) -> None:
        if not self._stopping:
            self._stop("the front has ended")
            self._hurry(_ORPHAN_TIMEOUT)

    def _find_takers(self, answer: Callable[[bool], None]) -> None:
        """Find out whether other nodes take shards."""
        if self._composition is None:
            answer(False)
        else:
            self._composition.log.find_takers(answer)

    def _front_silent(self) -> None:
        """Release the shard, because new clients do not reach it."""
        if not self._stopping:
            logger.error("the front does not answer: releasing the shard for another node")
            self._is_left = True
            self._stop_because("the node does not answer", _ORPHAN_TIMEOUT)

    def _stop_because(self, reason: str, client_timeout: float | None) -> None:
        if not self._stopping:
            self._reason = reason
            self._stop("the front")
            if client_timeout is not None:
                self._hurry(client_timeout)

    def _hurry(self, client_timeout: float) -> None:
        """Limit the seconds for the clients to answer the close."""
        if self._composition is not None:
            server = self._composition.server
            server.shutdown_timeout = min(server.shutdown_timeout, client_timeout)

    def _adopt(self, client: socket.socket | None, adoption: Adoption) -> None:
        ended = partial(self._link.send, Ended(adoption.connection))
        if client is None:
            logger.error("cannot take over a connection: too few file descriptors")
            ended()
        elif self._composition is None or self._stopping:
            client.close()
            ended()
        else:
            self._composition.server.adopt(client, adoption, ended)

    def _change(self, records: list[Record]) -> None:
        self._part.records.update({(kind, key): value for kind, key, value in records})
        composition = self._composition
        if composition is not None:
            composition.users.apply(records)
            composition.broker.global_parameters.apply(records)
            composition.broker.end_turn()

    def _apply(self, config: Config) -> None:
        self._config = config
        if self._composition is None:
            return
        try:
            self._composition.users.declare(declared_users(config.users))
        except (ConfigError, BrokerError) as error:
            logger.error("configuration not reloaded: %s", error)
            return
        self._composition.reload(config)


def serve_forked(settings: ShardSettings) -> int:
    """Serve a shard in a process that was forked from the front. Returns the exit code."""
    # The process has the descriptors of the front, too. It must not keep the other end of a link open. The objects of these
    # descriptors stay referenced by the caller, so that they never close them again.
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor >= _FIRST_DESCRIPTOR and descriptor != settings.descriptor:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return _serve(settings)


def _serve(settings: ShardSettings) -> int:
    # A signal for the whole process group, such as Ctrl-C in a terminal, is for the front.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    link = Link(socket.socket(fileno=settings.descriptor))
    try:
        return ShardServing(settings, link).run()
    except FrontStopped:
        return 0
    except ClaimLost as error:
        logger.info("%s", error)
        link.send(Lost())
        return 0
    except (ConfigError, TlsError, StorageFailed, StartFailed) as error:
        logger.error("%s", error)
        link.send(Refused(str(error)))
        return _REFUSED


def main() -> None:
    """Serve a shard until the front ends it."""
    settings, _ = read_settings(ShardSettings)
    sys.exit(_serve(settings))
