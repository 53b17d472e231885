"""Connections of 0-9-1 and 0-9: dispatch of commands to channels, output and flow control of the socket.

`data_received` performs every complete command in the data. When all ready sockets have been read, the broker ends the
turn: it delivers, commits and calls `flush`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import BrokerError, NotIndexed
from leveret.broker.message import Message
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route, are_behind, are_starving
from leveret.management.descriptions import ChannelInfo, ConnectionInfo, TransactionInfo
from leveret.management.json_values import ClientTable
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.channel.confirms import PublisherConfirms
from leveret.protocols.amqp091.channel.window import ConnectionWindow
from leveret.protocols.amqp091.connection.commands import ids_of, name_of
from leveret.protocols.amqp091.connection.handshake import Handshake
from leveret.protocols.amqp091.connection.heartbeat import Heartbeat
from leveret.protocols.amqp091.connection.outgoing import ConnectionOutput, Sending
from leveret.protocols.amqp091.reply_codes import CODES, FAILURE, HARD_ERRORS, reply_text
from leveret.protocols.ingress_throttle import ALARM, BACKLOG, FEW, TURN
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.protocols.vhost_session import QUANTUM, VhostSession
from leveret.wire.amqp0.commands import (
    CHANNEL_SCOPE,
    SOCKET_SCOPE,
    Ack,
    Command,
    ContentPart,
    ContentStart,
    Error,
    Method,
    Nack,
    Publish,
)
from leveret.wire.amqp0.constants import CONNECTION_FORCED, INTERNAL_ERROR, NOT_ALLOWED
from leveret.wire.amqp0.engine import SERVER, Engine, Input
from leveret.wire.amqp0.model import Version

if TYPE_CHECKING:
    from leveret.protocols.adoption import Adoption

logger = logging.getLogger("leveret.connection")

# Methods that open a channel; channel.resume exists in 0-9 only.
OPENING: Final = ("channel.open", "channel.resume")
# Seconds for a client to answer connection.close, or to read it if its frames can no longer be parsed.
CLOSE_TIMEOUT: Final = 5.0
UNFRAMED_CLOSE_TIMEOUT: Final = 0.25
# Units of work that all connections together may do in one turn. Above it, each connection performs one command per turn,
# so that a flood does not delay the others.
MAX_WORK: Final = 10_000
# Units of work that the commands of one connection may do in one turn.
MAX_OWN_WORK: Final = 1200
# Maximum units of work to parse at once.
MAX_PARSED: Final = 1000
# Units of work of a method other than publish, ack and nack.
METHOD_WORK: Final = 15
# Units of work of opening a channel.
OPEN_WORK: Final = 30
# Units of work of closing a channel.
CHANNEL_WORK: Final = 5
# Queues or channels (as a power of two) that are checked for one unit of work.
WORK_SHIFT: Final = 3
# Content up to this size may be a request to the broker, which becomes known only when it is complete.
MAX_REQUEST_BYTES: Final = 64 << 10


class BaseConnection(VhostSession):
    """Base class of connections. A subclass dispatches the methods of its protocol.

    With an adoption, the connection begins after the handshake, which another process has run.

    Attributes:
        number: identifies the connection within the process.
        protocol: name of the protocol.
        handshake: the negotiation with the client, and the client.
        output: output to the socket.
        window: the prefetch window of all channels together.
        published_any: whether the connection has published; during an alarm, since the alarm began.
        spools: whether the connection has published a spooled body.
        max_encoded: maximum size in bytes of a body that is encoded as a whole.
        routes: routes with checked permissions, valid for `topology` of the vhost and `generation` of the users.
    """

    def __init__(
        self,
        peer: Peer,
        services: Services,
        version: Version,
        protocol: str,
        handshake: Handshake,
        adoption: Adoption | None = None,
    ) -> None:
        super().__init__(peer, services)
        self.protocol = protocol
        self.handshake = handshake
        settings = services.settings
        self.engine = Engine(
            SERVER,
            version,
            frame_max=settings.frame_max,
            channel_max=settings.channel_max,
            heartbeat=settings.heartbeat,
            max_body_size=settings.max_message_size,
            spool_threshold=settings.spool_threshold,
            strict_framing=settings.strict,
        )
        self.engine.max_cost = MAX_PARSED
        self.output = ConnectionOutput(self)
        self.max_encoded = min(QUANTUM, settings.spool_threshold)
        self.qos_spec = settings.qos_spec
        self.consumer_timeout = 0
        # Cancel notifications by queue, deferred until the reply to this connection's own queue.delete; None if there are
        # none.
        self.pending_cancels: dict[Queue, list[tuple[Channel, str]]] | None = None
        self.channels: dict[int, Channel] = {}
        self.awaits_close_ok = False
        # The client has sent connection.close. The reply is sent when the broker has released the connection.
        self.owes_close_ok = False
        # Number of channels and other parts being released.
        self.releasing = 0
        self.confirming: list[PublisherConfirms] = []
        # Route of the last row of a record batch; None before the first one.
        self.batch_route: Route | None = None
        # Input
        self.blocked = False
        self.published_any = False
        self.spools = False
        # Commands left over from the previous turn.
        self.rest: list[Command] = []
        self.window = ConnectionWindow()
        self.heartbeat: Heartbeat | None = None
        services.add(self)
        if adoption is None:
            handshake.start(self)
        else:
            handshake.resume(self, adoption)
        self.mark()
        self.broker.end_turn()

    # Methods of the protocol

    @abstractmethod
    def open_channel(self, command: Method) -> None:
        """Perform a method that opens a channel."""

    @abstractmethod
    def perform_method(self, channel: Channel, command: Method) -> None:
        """Perform a method of a channel other than publish, ack and nack.

        Raises:
            BrokerError: the method is refused.
        """

    # Input

    def data_received(self, data: Input) -> None:
        self.count_input(len(data))
        waits = bool(self.rest) or self.engine.more
        commands = self._parse(data)
        if waits:
            self.rest.extend(commands)
        else:
            self._perform_all(commands)
        if self.opened:
            self._adapt_reads(commands, len(data))

    def _adapt_reads(self, commands: list[Command], size: int) -> None:
        """Choose the size of the next read after these commands: less from a publisher whose queues are behind."""
        behind = False
        shared = self.broker.inputs > FEW
        route: Route | None = None
        if not commands:
            route = self.batch_route  # the rest of a record batch, probably
        else:
            last = commands[-1]
            if isinstance(last, Publish):
                route = self.routes.get(last.address) or self.batch_route
            elif isinstance(last, (ContentStart, ContentPart)):
                behind = self.ingress.behind  # the queues are known when the message is complete
        if route is not None:
            queues = route.latest
            self.broker.work += len(queues) >> WORK_SHIFT
            behind = are_behind(queues) and not self._must_be_read()
            shared = shared or len(queues) > FEW
            if behind and are_starving(queues):
                self.ingress.pause_briefly()
        self.ingress.adapt(behind, len(commands), size, shared)

    def note_batch(self, route: Route) -> None:
        """Note the route of the last row of a record batch: it decides whether the broker is behind."""
        self.batch_route = route

    def _must_be_read(self) -> bool:
        """Return whether the client consumes, or has something to settle or to commit."""
        channels = self.channels
        self.broker.work += len(channels) >> WORK_SHIFT
        for channel in channels.values():
            if len(channel.consumers) or len(channel.unacked) or len(channel.transaction):
                return True
        return False

    def _parse(self, data: Input) -> list[Command]:
        """Return the commands in the data, or as many as one turn may parse."""
        commands = self.engine.receive(data)
        self.broker.work += self.engine.cost
        return commands

    def _perform_all(self, commands: list[Command]) -> None:
        """Perform commands, or as many as one turn may perform."""
        channels = self.channels
        broker = self.broker
        most = min(MAX_WORK, broker.work + MAX_OWN_WORK)
        done = 0
        for command in commands:
            done += 1
            number = command.channel
            channel = channels.get(number)
            if channel is None:
                broker.work += OPEN_WORK
                self._control(command)
            elif channel.stalled:
                self._queue_command(channel, command)
            else:
                self.perform(channel, command)
            if broker.work + done > most:
                break
        broker.work += done
        if done < len(commands) or self.engine.more:
            self.rest = commands[done:]
            self.ingress.pause_for_turn()
        confirming = self.confirming
        if confirming:
            for confirms in confirming:
                confirms.resolve_listed()
            confirming.clear()
            self.mark()
        if self.services.alarm and not self.published_any and self.engine.is_receiving_content(MAX_REQUEST_BYTES):
            self._block(self.services.alarm)  # it is publishing, although its first message is incomplete
        if self.published_any:
            self.ingress.pause_for_commit(self.broker.log, self.spools)
        self.services.end_turn_soon()

    def perform_pending(self) -> None:
        commands = self.rest
        self.rest = []
        if not commands and self.engine.more:
            commands = self._parse(b"")
        self._perform_all(commands)
        if not self.rest and not self.engine.more:
            self.ingress.release(TURN)

    def _queue_command(self, channel: Channel, command: Command) -> None:
        backlog = channel.backlog
        backlog.add(command)
        if backlog.is_full():
            self.ingress.pause(BACKLOG)

    def perform(self, channel: Channel, command: Command) -> None:
        """Perform one command. An error closes the channel or the connection."""
        try:
            if isinstance(command, Publish):
                channel.publish(command)
                if not self.published_any:
                    self.first_publish(channel)
            elif isinstance(command, Ack):
                channel.ack(command.delivery_tag, command.multiple)
            elif isinstance(command, Nack):
                channel.nack(command.delivery_tag, command.multiple, command.requeue)
            elif isinstance(command, Method):
                self.operation = command.name
                self.broker.work += METHOD_WORK
                self.perform_method(channel, command)
                self.mark()
            elif isinstance(command, ContentPart):
                channel.body.add(command.data)
            elif isinstance(command, ContentStart):
                if command.publish is not None:
                    channel.begin_content(command.publish)
                elif command.method is not None:
                    channel.begin_stage(command.method)
            elif isinstance(command, Error):
                self._protocol_error(command)
        except NotIndexed as unindexed:
            channel.wait_indexed(unindexed.queue, command)
        except BrokerError as error:
            class_id, method_id = self.ids_of(channel, command)
            if error.closes_connection:
                self.close(CODES[error.condition], str(error), class_id, method_id)
            else:
                self.refuse(channel, CODES[error.condition], str(error), class_id, method_id)
        except Exception:
            logger.exception("%s: internal error in %s", self.peer.subject, name_of(command))
            class_id, method_id = ids_of(command)
            self.close(INTERNAL_ERROR, FAILURE, class_id, method_id)

    def ids_of(self, channel: Channel, command: Command) -> tuple[int, int]:
        """Return the class and method id of a refused command."""
        return ids_of(command)

    def _control(self, command: Command) -> None:
        """Perform a command on channel 0 or on a channel that is not open."""
        if isinstance(command, Error):
            self._protocol_error(command)
        elif isinstance(command, Method):
            try:
                if command.name in OPENING:
                    self.open_channel(command)
                elif command.name == "channel.close" and not self.engine.is_closing(command.channel):
                    self.engine.send(command.channel, "channel.close-ok", {})
                elif command.channel == 0:
                    self.handshake.perform(self, command)
            except BrokerError as error:
                self.close(CODES[error.condition], str(error), command.class_id, command.method_id)
            except Exception:
                logger.exception("%s: internal error in %s", self.peer.subject, command.name)
                self.close(INTERNAL_ERROR, FAILURE, command.class_id, command.method_id)
            self.mark()

    def _protocol_error(self, error: Error) -> None:
        logger.info("%s: %d %s", self.peer.subject, error.code, error.text)
        if error.scope == CHANNEL_SCOPE:
            channel = self.channels.get(error.channel)
            if channel is not None:
                self.refuse(channel, error.code, error.text, error.class_id, error.method_id)
        elif error.scope == SOCKET_SCOPE:
            # The specification requires closing the socket without sending anything (0-9-1 section 4.2.3,
            # connection.tune-ok).
            self.closing = True
            self.output.drop()
            self.engine.to_send()
            self.peer.close()
        else:
            self.close(error.code, error.text, error.class_id, error.method_id)

    def refuse(self, channel: Channel, code: int, text: str, class_id: int, method_id: int) -> None:
        """Close the channel or, after a hard error, the connection."""
        if code in HARD_ERRORS:
            self.close(code, text, class_id, method_id)
            return
        full_text = reply_text(code, text)
        logger.info("%s: channel %d closed with %d: %s", self.peer.subject, channel.number, code, full_text)
        channel.resolve()
        self.close_channel(channel)
        # The engine drops this if the client has already sent channel.close.
        self.engine.send(
            channel.number,
            "channel.close",
            {"reply_code": code, "reply_text": full_text, "class_id": class_id, "method_id": method_id},
        )
        self.mark()

    def close_channel(self, channel: Channel, done: Callable[[], None] | None = None) -> None:
        """Remove a channel, requeue its unacknowledged entries, then call `done`."""
        self.channels.pop(channel.number, None)
        self.window.forget(channel)
        self.releasing += 1
        channel.close(partial(self._channel_closed, done))
        channel.update_window()
        if self.window.is_limited():
            channel.wake()  # its share of the connection's window is free

    def _channel_closed(self, done: Callable[[], None] | None) -> None:
        if done is not None:
            done()
        self._part_released()

    def defer_cancels(self, queue: Queue) -> None:
        """Defer the cancel notifications of a queue until `release_notices`."""
        if self.pending_cancels is None:
            self.pending_cancels = {}
        self.pending_cancels[queue] = []

    def release_notices(self, queue: Queue) -> None:
        """Send the cancel notifications deferred until the reply to queue.delete."""
        pending = self.pending_cancels
        if pending is not None:
            for channel, tag in pending.pop(queue, ()):
                channel.notify_cancel(tag)

    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Send connection.close. From now on, all input except connection.close-ok is discarded."""
        if self.closing or self.lost:
            return
        full_text = reply_text(code, text)
        logger.info("%s: connection closed with %d: %s", self.peer.subject, code, full_text)
        self.closing = True
        self.awaits_close_ok = True
        self.output.drop()
        self.engine.send(
            0,
            "connection.close",
            {"reply_code": code, "reply_text": full_text, "class_id": class_id, "method_id": method_id},
        )
        self._release()
        self.mark()
        self.ingress.resume()
        # Without frame boundaries, close-ok cannot be parsed. The socket stays open briefly nevertheless: unread input
        # would cause a reset, which could overtake connection.close.
        self.peer.call_later(UNFRAMED_CLOSE_TIMEOUT if self.engine.lost else CLOSE_TIMEOUT, self.close_timed_out)

    def close_received(self) -> None:
        """Release the connection on connection.close, then send connection.close-ok."""
        self.closing = True
        self.output.drop()
        self.owes_close_ok = True
        self.releasing += 1  # until all parts are counted
        self._release()
        self._part_released()

    def close_ok_received(self) -> None:
        """Close the socket on connection.close-ok."""
        self.awaits_close_ok = False
        self.peer.close()

    def _release(self) -> None:
        """Release channels, consumers and exclusive queues."""
        channels = dict(self.channels)
        self.channels.clear()
        self.window.forget_all()
        for channel in channels.values():
            channel.abandon()
        self.output.stop_deliveries()  # no more deliveries while consumers are removed in steps
        self.releasing += 1
        if self.broker.jobs.run_steps(self._releasing(channels), self._part_released, self._part_released):
            self._part_released()
        if self.vhost is not None:
            self.releasing += 1
            self.leave_vhost(self._part_released)

    def _releasing(self, channels: dict[int, Channel]) -> Iterator[int]:
        """Close the channels one by one. Large ones close in steps of their own."""
        remaining = list(channels.values())
        channels.clear()
        remaining.reverse()
        while remaining:
            channel = remaining.pop()  # frees them one by one
            self.releasing += 1
            try:
                channel.close(self._part_released)
            except Exception:
                logger.exception("%s: cannot close channel %d", self.peer.subject, channel.number)
                self._part_released()
            yield CHANNEL_WORK

    def _part_released(self) -> None:
        """Count a released part. After the last one, answer connection.close."""
        self.releasing -= 1
        if self.owes_close_ok and not self.releasing:
            self.owes_close_ok = False
            if not self.lost:
                self.engine.send(0, "connection.close-ok", {})
                self.flush()
                self.peer.close()

    def connection_lost(self) -> None:
        if self.lost:
            return
        self.lost = True
        self.ingress.detach()
        self.output.detach()
        if self.opened and not self.closing:
            logger.warning("%s: connection lost without connection.close", self.peer.subject)
        elif self.awaits_close_ok:
            logger.warning("%s: connection lost without connection.close-ok", self.peer.subject)
        self.closing = True
        self.services.remove(self)
        self.handshake.end_login()
        self.rest = []
        if self.heartbeat is not None:
            self.heartbeat.detach()
            self.heartbeat = None
        self.output.drop()
        self._release()
        self.broker.end_turn()

    def apply_vhost_settings(self) -> None:
        """Apply the settings of the vhost that the client has opened."""
        settings = self.services.vhost_settings.get(self.vhost_name)
        if settings is not None:
            if settings.qos_spec is not None:
                self.qos_spec = settings.qos_spec
            self.consumer_timeout = settings.consumer_timeout

    def vhost_opened(self) -> None:
        """Start heartbeats and apply settings and alarms, after connection.open-ok."""
        self.apply_vhost_settings()
        interval = self.engine.heartbeat
        if interval:
            self.heartbeat = Heartbeat(self, interval)
            self.broker.timers.check_periodically(self.heartbeat)
        if self.services.alarm:
            self.alarm(self.services.alarm)

    def close_forced(self, reason: str) -> None:
        self.close(CONNECTION_FORCED, reason)

    def close_unauthorized(self, reason: str) -> None:
        self.close(NOT_ALLOWED, reason)

    # Output

    def starve(self) -> None:
        """Note that a consumer was parked, because deliveries must wait for the socket or for the next turn."""
        self.output.starve()
        self.mark()

    def window_freed(self) -> None:
        """Wake all channels at the end of the turn: the connection's window has room again."""
        self.window.free()
        self.mark()

    def flush(self) -> None:
        self.dirty = False
        if self.broker.in_turn and self.window.take_freed():
            self.broker.work += len(self.channels) >> 3
            for channel in self.channels.values():
                channel.wake_own()
        self.output.flush()

    def wake(self) -> None:
        """Wake consumers: the output has room again."""
        if self.lost:
            return
        self.broker.inputs += 1
        for channel in self.channels.values():
            channel.wake_own()
        self.broker.end_turn()

    def send_body(self, number: int, message: Message) -> None:
        """Send the body of a message that is too large to be encoded as a whole, after its header.

        Other output follows the body.
        """
        self.send_later(Sending(number, message.body, message.size))

    def send_later(self, sending: Sending) -> None:
        """Send a large content as the socket accepts it, between the output encoded so far and later output."""
        self.output.send_later(sending)
        self.mark()

    def pause_writing(self) -> None:
        self.output.socket_full()

    def resume_writing(self) -> None:
        if self.output.socket_drained():
            self.wake()

    def note_spooled(self) -> None:
        """Note that the connection publishes a spooled body."""
        self.spools = True

    def after_backlog(self) -> None:
        """Confirm publishes and resume reading after a channel has performed its backlog."""
        self.ingress.release(BACKLOG)
        for confirms in self.confirming:
            confirms.resolve_listed()
        self.confirming.clear()
        self.mark()

    def channel_count(self) -> int:
        return len(self.channels)

    # Alarms
    #
    # As in RabbitMQ, the first publish during an alarm is accepted and blocks its connection. Until then, the broker reads
    # the connection, because its acknowledgements may end the alarm.

    def first_publish(self, channel: Channel) -> None:
        """Handle the first publish of the connection, or the first since an alarm began.

        Called once per channel for clients without the capability `connection.blocked`. Requests to the broker do not
        count.
        """
        if channel.take_requested():
            return
        if self.services.alarm and not self.handshake.client.blocked_notifications:
            channel.ask_to_pause()
            self.mark()
            return
        self.published_any = True
        if self.services.alarm:
            self._block(self.services.alarm)

    def _block(self, reason: str) -> None:
        """Stop reading a publisher and send it `connection.blocked` with the reason."""
        if self.handshake.client.blocked_notifications and not self.blocked:
            self.blocked = True
            self.engine.send(0, "connection.blocked", {"reason": reason})
            self.mark()
        self.ingress.pause(ALARM)

    def alarm(self, reason: str) -> None:
        if not self.opened or self.closing:
            return
        if reason:
            self.published_any = False
            if not self.handshake.client.blocked_notifications:
                # Clients without connection.blocked get channel.flow. The broker stops reading those that keep publishing.
                for channel in self.channels.values():
                    channel.ask_to_pause()
        else:
            if self.blocked:
                self.blocked = False
                self.engine.send(0, "connection.unblocked", {})
            for channel in self.channels.values():
                channel.ask_to_resume()
            self.ingress.release(ALARM)
        self.mark()

    # Statistics

    def sent_bytes(self) -> int:
        return self.output.bytes

    def describe(self) -> ConnectionInfo:
        return ConnectionInfo(
            number=self.number,
            name=self.peer.name,
            protocol=self.protocol,
            user=self.user,
            vhost=self.vhost_name,
            state=self._state(),
            channels=len(self.channels),
            tls=self.peer.tls,
            websocket_path=self.peer.websocket_path,
            mechanism=self.peer.mechanism,
            tls_info=self.peer.tls_info,
            unwritten=self.peer.unwritten(),
            bytes_in=self.bytes_in,
            bytes_out=self.output.bytes,
            reads=self.reads,
            writes=self.output.writes,
            client_properties=ClientTable(self.handshake.client.properties),
            frame_max=self.engine.frame_max,
            channel_max=self.engine.channel_max,
            heartbeat=self.engine.heartbeat,
            connected_at=self.peer.connected_at,
        )

    def describe_channels(self) -> Iterator[ChannelInfo]:
        for channel in list(self.channels.values()):
            transaction = channel.transaction
            yield ChannelInfo(
                connection=self.number,
                vhost=self.vhost_name,
                user=self.user,
                number=channel.number,
                consumers=len(channel.consumers),
                unacked=len(channel.unacked),
                prefetch=channel.window.prefetch,
                consumer_prefetch=channel.window.default_prefetch,
                published=channel.publish_count - len(transaction.publishes) - transaction.rolled_back,
                uncommitted=len(transaction.publishes),
                uncommitted_acks=len(transaction.settlements),
                confirmed=0 if channel.confirms is None else channel.confirms.confirmed,
                unconfirmed=0 if channel.confirms is None else channel.confirms.published - channel.confirms.confirmed,
                delivered=channel.unacked.delivered(),
                delivered_no_ack=channel.unacked.untracked - channel.get_count - channel.get_no_ack_count,
                got=channel.get_count,
                got_no_ack=channel.get_no_ack_count,
                got_empty=channel.get_empty_count,
                redelivered=channel.redelivered,
                acked=channel.ack_count,
                returned=channel.returned,
                dropped=channel.dropped,
                mode="tx" if channel.transacted else "" if channel.confirms is None else "confirm",
                state="running" if channel.active else "flow off",
            )

    def describe_transactions(self) -> Iterator[TransactionInfo]:
        now = self.broker.timers.now()
        for channel in list(self.channels.values()):
            transaction = channel.transaction
            if transaction.committing or len(transaction):
                yield TransactionInfo(
                    vhost=self.vhost_name,
                    user=self.user,
                    connection=self.number,
                    channel=channel.number,
                    kind=channel.transaction_kind(),
                    id="",
                    publishes=len(transaction.publishes),
                    settlements=len(transaction.settlements),
                    size=transaction.size,
                    state="committing" if transaction.committing else "open",
                    reason="",
                    age=max(now - transaction.since, 0) / 1000,
                )

    def _state(self) -> str:
        if self.closing:
            return "closing"
        if not self.opened:
            return "opening"
        if ALARM in self.ingress.reasons:
            return "blocked"
        return "flow" if self.ingress.is_slowed() else "running"
