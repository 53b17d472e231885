"""Connections of AMQP 1.0: headers, SASL, open and close, sessions, output (transport sections 2.2 to 2.4).

`data_received` processes every complete frame in the data. After all ready sockets have been read, the broker ends the
turn: it delivers, commits and calls `flush`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker import values
from leveret.broker.broker import MAX_CONVERTED
from leveret.broker.errors import BrokerError, NotAllowed, ResourceError
from leveret.management.descriptions import (
    ChannelInfo,
    ConnectionInfo,
    SessionInfo,
    SessionLinkInfo,
    TransactionInfo,
)
from leveret.management.json_values import ClientTable
from leveret.protocols.amqp10.connection import exclusive_container, opening
from leveret.protocols.amqp10.connection.exclusive_container import ContainerMembership
from leveret.protocols.amqp10.connection.idle_timeout import IdleTimers
from leveret.protocols.amqp10.connection.sasl import Login, anonymous_user
from leveret.protocols.amqp10.connection.sessions import Sessions
from leveret.protocols.amqp10.errors import ConnectionRefused, Refusal, SessionRefused, condition_of, make_error
from leveret.protocols.amqp10.management.link_pair import PendingResponses
from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
from leveret.protocols.amqp10.shared_state import Amqp10State
from leveret.protocols.amqp10.terminus.terminus import Key, Terminus
from leveret.protocols.amqp10.transaction.transaction import OpenTransactions
from leveret.protocols.detect import HEADER_1_0, HEADER_1_0_SASL
from leveret.protocols.ingress_throttle import LOGIN, OUTPUT, TURN
from leveret.protocols.peer import Peer
from leveret.protocols.vhost_session import QUANTUM, VhostSession
from leveret.security.accounts import Account, UserAccount, import_account
from leveret.security.mechanisms.anonymous import Anonymous
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.descriptors import ATTACH, END, TRANSFER
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.frames import AMQP, EMPTY, FAILURE, HEADER, SASL, Failure, FrameReader, Header
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Attach, Begin, Close, Open
from leveret.wire.amqp10.values import Table

if TYPE_CHECKING:
    from leveret.protocols.adoption import Adoption

logger = logging.getLogger("leveret.connection")

# States of a connection (transport section 2.4.6), named by the input that it expects.
IN_SASL: Final = 0
AWAIT_HEADER: Final = 1
AWAIT_OPEN: Final = 2
OPENED: Final = 3
CLOSED: Final = 4
# Bytes of replies that a client may leave unread before the broker stops reading its socket.
MAX_UNWRITTEN: Final = 4 << 20
# Seconds for a client to reply to close, or to read it if its frames can no longer be parsed.
CLOSE_TIMEOUT: Final = 5.0
UNFRAMED_CLOSE_TIMEOUT: Final = 0.25
# Seconds between the open and the close that refuse a vhost.
VHOST_REFUSAL_DELAY: Final = 1.0
# Maximum units of work (about 1 µs each) of all connections together in one turn, as in 0-9-1.
MAX_WORK: Final = 20_000
# The same of the frames of one connection.
MAX_OWN_WORK: Final = 5000
# Maximum units of work to parse the data of one read.
MAX_READ: Final = 2500
# Maximum number of values in the performative of one frame: enough for an unsettled map of 10,000 deliveries.
MAX_FRAME_VALUES: Final = 32_768
# Units of work to end a suspended link.
TERMINUS_WORK: Final = 5
# Cost of a frame by its kind, in the same units; further work is counted as it is done.
COSTS: Final[list[int]] = [
    {
        descriptors.OPEN: 100,
        descriptors.BEGIN: 30,
        descriptors.ATTACH: 150,
        descriptors.FLOW: 3,
        descriptors.TRANSFER: 3,
        descriptors.DISPOSITION: 2,
        descriptors.DETACH: 30,
        descriptors.END: 30,
        descriptors.CLOSE: 30,
    }.get(kind, 1)
    for kind in range(256)
]
# Performatives of a session, starting with ATTACH.
OPERATIONS: Final = ("attach", "flow", "transfer", "disposition", "detach", "end")


class Connection(VhostSession):
    """One connection of AMQP 1.0.

    With an adoption, the connection begins with the client's open, before which another process has sent the headers.

    Attributes:
        number: identifier of the connection within the process.
        shared: the state of all AMQP 1.0 connections.
        container: its membership in the container of its client.
        transactions: transactions that are not yet discharged.
        responses: responses of the management node.
        paused: whether deliveries stop because the socket's buffer is full.
        starved: whether a consumer was refused a delivery because of `paused`.
        routes: routes with checked permissions, valid for `topology` of the vhost and `generation` of the users.
    """

    def __init__(self, peer: Peer, shared: Amqp10State, sasl: bool, adoption: Adoption | None = None) -> None:
        services = shared.services
        super().__init__(peer, services)
        self.shared = shared
        self.users = services.users
        self.own = shared.settings
        self.reader = FrameReader(self.own.max_frame_size, max_values=MAX_FRAME_VALUES, max_cost=MAX_READ)
        self.output = Output()
        self.container_id = ""
        self.container = ContainerMembership(shared.containers)
        self.client_properties: values.FieldTable = {}
        self.login: Login | None = None
        self.sessions = Sessions()
        self.transactions = OpenTransactions()
        self.responses = PendingResponses()
        # Suspended termini whose last session belonged to this connection and has ended.
        self.termini: dict[Terminus, None] = {}
        self.state = IN_SASL if sasl else AWAIT_OPEN
        self.open_sent = False
        # Whether the termini have been notified of the end of the connection.
        self.released = False
        # Output
        self.paused = False
        self.starved = False
        self.unread_replies = 0
        self.touched: list[SessionEndpoint] = []
        # Input
        self.published_any = False
        # Bytes of incomplete deliveries.
        self.partial = 0
        self.waiting_login = False
        self.unreadable = False
        self.rest: list[Performative] = []
        # Frame in progress that continues in the next turn, before all others.
        self.deferred: Performative | None = None
        self.bytes_out = 0
        # Number of writes to the socket.
        self.writes = 0
        self.idle_timers = IdleTimers()
        services.add(self)
        # The caller has read the header to detect the protocol; the reader needs it, too.
        self.reader.receive(HEADER_1_0_SASL if sasl else HEADER_1_0)
        if sasl:
            self.output.send_header(SASL)
            self.login = Login(self)
            self.login.begin()
        elif adoption is not None:
            self.set_account(import_account(adoption.account, self.users))
        elif self.anonymous_user() is None:
            self._require_sasl()
        else:
            self.output.send_header(AMQP)
        self.mark()
        self.broker.end_turn()

    # Input

    def data_received(self, data: bytes | memoryview) -> None:
        self.count_input(len(data))
        self.idle_timers.received()
        waits = self.waiting_login or bool(self.rest) or self.reader.more
        frames = self._read(data)
        if waits:
            self.rest.extend(frames)
        else:
            self._perform_all(frames)
        if self.opened:
            self.ingress.adapt(False, len(frames), len(data), True)

    def _read(self, data: bytes | memoryview) -> list[Performative]:
        """Return the complete frames in the data, up to the limit of one turn."""
        frames = self.reader.receive(data)
        self.broker.work += self.reader.cost
        return frames

    def _perform_all(self, frames: list[Performative]) -> None:
        """Process frames, up to the limit of one turn."""
        services = self.services
        broker = self.broker
        most = min(MAX_WORK, broker.work + MAX_OWN_WORK)
        done = 0
        for frame in frames:
            done += 1
            broker.work += COSTS[frame.kind]
            self._perform(frame)
            if broker.work > most or self.waiting_login or self.deferred is not None:
                break
        deferred = self.deferred
        if done < len(frames) or deferred is not None:
            self.rest = frames[done:]
            if deferred is not None:
                self.deferred = None
                self.rest.insert(0, deferred)
        if (self.rest or self.reader.more) and not self.waiting_login:
            self.ingress.pause_for_turn()
        if self.touched:
            self._resolve_touched()
        if self.published_any:
            self.ingress.pause_for_commit(self.broker.log, True)
        services.end_turn_soon()

    def perform_pending(self) -> None:
        frames = self.rest
        self.rest = []
        self.operation = ""
        self.services.served.append(self.number)
        if not frames and self.reader.more:
            frames = self._read(b"")
        self._perform_all(frames)
        if not self.rest and not self.reader.more:
            self.ingress.release(TURN)

    def _resolve_touched(self) -> None:
        touched = self.touched
        self.touched = []
        for session in touched:
            session.resolve_listed()
        self.mark()

    def _perform(self, frame: Performative) -> None:
        """Process one frame. An error ends its link, its session or the connection."""
        if self.closing:
            if isinstance(frame, Close):
                if self.released:
                    self.peer.close()
                else:  # the client has refused the open of `_refuse_vhost`
                    self._closed(frame)
            return
        kind = frame.kind
        if kind == FAILURE:
            self.unreadable = True
        try:
            if self.state == OPENED:
                session = self.sessions.by_channel.get(frame.channel) if ATTACH <= kind <= END else None
                if session is not None:
                    if kind != TRANSFER:
                        self.operation = OPERATIONS[kind - ATTACH]
                    session.receive(frame)
                else:
                    self._opened(frame)
            else:
                self._handshake(frame)
        except Refusal as refused:
            session = self.sessions.by_channel.get(frame.channel) if isinstance(refused, SessionRefused) else None
            if session is not None:
                session.end(refused.error())
            else:
                self.close(refused.condition, refused.text, refused.info)
        except BrokerError as error:
            self.close(condition_of(error), str(error))
        except EncodeError as failed:
            self.close(constants.FRAME_SIZE_TOO_SMALL, str(failed))
        except Exception:
            logger.exception("%s: internal error while processing a frame of kind 0x%02x", self.peer.subject, frame.kind)
            self.close(constants.INTERNAL_ERROR, "internal error; see the broker's log")

    def _opened(self, frame: Performative) -> None:
        """Process a frame whose channel has no session."""
        kind = frame.kind
        if ATTACH <= kind <= END:
            raise ConnectionRefused(constants.NOT_ALLOWED, f"channel {frame.channel} has no session")
        if kind == EMPTY:
            pass
        elif kind == descriptors.BEGIN:
            assert isinstance(frame, Begin)
            self.sessions.begin(self, frame)
        elif kind == descriptors.CLOSE:
            assert isinstance(frame, Close)
            self._closed(frame)
        elif isinstance(frame, Failure):
            raise ConnectionRefused(frame.condition, frame.text)
        else:
            raise ConnectionRefused(constants.ILLEGAL_STATE, "the connection is already open")

    def _handshake(self, frame: Performative) -> None:
        state = self.state
        if state == CLOSED:
            return
        if isinstance(frame, Failure):
            if self.state == AWAIT_OPEN:
                raise ConnectionRefused(frame.condition, frame.text)
            logger.info("%s: %s", self.peer.subject, frame.text)
            self.flush()
            self.peer.finish()
            self.state = CLOSED
        elif state == IN_SASL:
            assert self.login is not None
            if frame.kind == HEADER:
                self.state = CLOSED
                self.flush()
                self.peer.finish()
            else:
                self.login.receive(frame)
                self.mark()
        elif state == AWAIT_HEADER:
            self.output.send_header(AMQP)
            self.mark()
            if isinstance(frame, Header) and frame.protocol == AMQP and frame.is_supported():
                self.state = AWAIT_OPEN
                return
            self.state = CLOSED
            self.flush()
            self.peer.finish()
        elif isinstance(frame, Open):
            self._open(frame)
        elif frame.kind != EMPTY:
            raise ConnectionRefused(constants.ILLEGAL_STATE, "the first frame must be an open")

    # Login

    def logged_in(self, account: Account) -> None:
        """Handle a successful login."""
        self.login = None
        self.state = AWAIT_HEADER
        self.set_account(account)

    def login_waits(self, waiting: bool) -> None:
        """Pause or resume input while a password is checked."""
        self.waiting_login = waiting
        if waiting:
            self.ingress.pause(LOGIN)
            return
        frames = self.rest
        self.rest = []
        self._perform_all(frames)
        self.ingress.release(LOGIN)
        self.mark()

    def _require_sasl(self) -> None:
        """Refuse a client without SASL: send the SASL header and close (transport section 2.2)."""
        logger.info("%s: refused without SASL; see amqp10.anonymous_user and auth.loopback_users", self.peer.subject)
        self.output.send_header(SASL)
        self.state = CLOSED
        self.flush()
        self.peer.finish()

    def end_login(self) -> None:
        self.state = CLOSED
        self.login = None

    def anonymous_user(self) -> str | None:
        return anonymous_user(self)

    # Open and close

    def _open(self, frame: Open) -> None:
        """Process the client's open and reply with the broker's.

        If this raises ConnectionRefused, `close` sends an open with the property `ESTABLISHMENT_FAILED`, then the close.
        """
        opening.check_channel(frame)
        self.container_id = frame.container_id
        self.output.max_frame_size = opening.frame_limit(frame)
        self.sessions.limit(frame.channel_max)
        self.client_properties = opening.properties_of(frame)
        if not self.user:
            name = self.anonymous_user()
            if name is None:
                raise ConnectionRefused(
                    constants.UNAUTHORIZED_ACCESS, "clients must log in with SASL; the setting is amqp10.anonymous_user"
                )
            self.peer.choose_mechanism(Anonymous.name)
            self.set_account(UserAccount(name, self.users))
        try:
            self._enter(
                opening.vhost_of(frame, self.broker.vhosts), exclusive_container.CAPABILITY in frame.desired_capabilities
            )
        except ResourceError as error:
            raise ConnectionRefused(constants.RESOURCE_LIMIT_EXCEEDED, str(error)) from None
        except NotAllowed as error:
            self._refuse_vhost(str(error))
            return
        self.idle_timers.start(self, int(self.own.idle_timeout * 1000), frame.idle_time_out or 0)
        self.send_open()

    def _refuse_vhost(self, text: str) -> None:
        """Reply with an open that has the reason in place of the product, and close after a delay.

        RabbitMQ's clients give up if the open is not one of RabbitMQ. After a close, some of them reconnect for ever.
        """
        logger.info("%s: connection refused: %s", self.peer.subject, text)
        self.send_open(failed=True, refusal=text)
        self.closing = True
        self.peer.call_later(VHOST_REFUSAL_DELAY, partial(self._close_refused, text))

    def _close_refused(self, text: str) -> None:
        if not self.released:
            self._release()
            self.output.send(Close(make_error(constants.UNAUTHORIZED_ACCESS, text)))
            self.flush()
            self.peer.call_later(CLOSE_TIMEOUT, self.close_timed_out)

    def _enter(self, name: str, exclusive: bool) -> None:
        """Open a vhost for the client."""
        vhost = self.broker.vhosts.get(name)
        if vhost is None or not self.account.may_open(name):
            # The same error in both cases, so that a user without permissions does not learn whether the vhost exists.
            raise NotAllowed(f"vhost '{name}' does not exist, or user '{self.user}' has no permissions in it")
        self.services.check_limits(self.account, vhost, ResourceError)
        self.vhost_name = name
        self.container.enter((name, self.user, self.container_id), exclusive)
        self.enter_vhost(vhost)
        self.state = OPENED

    def send_open(self, failed: bool = False, refusal: str = "") -> None:
        """Send open, the first frame. `failed` means that a close follows, `refusal` is as in `opening.reply`."""
        self.output.send(opening.reply(self.services, self.own, self.output.max_frame_size, failed, refusal))
        self.open_sent = True
        self.mark()

    def close(self, condition: str, text: str, info: Table | None = None) -> None:
        """Send close with an error. From then on, only the client's close is processed."""
        if self.closing or self.lost:
            return
        logger.info("%s: connection closed with %s: %s", self.peer.subject, condition, text)
        if self.state != OPENED and self.state != AWAIT_OPEN:
            self.peer.close()
            return
        if not self.open_sent:
            self.send_open(failed=True)
        self._release()
        self.closing = True
        self.output.send(Close(make_error(condition, text, info)))
        self.mark()
        self.ingress.resume()
        # Without frame boundaries, no close can be parsed. Still, the socket stays open briefly: unread input would cause a
        # reset, which could overtake the broker's close.
        self.peer.call_later(UNFRAMED_CLOSE_TIMEOUT if self.unreadable else CLOSE_TIMEOUT, self.close_timed_out)

    def _closed(self, frame: Close) -> None:
        """Handle the client's close."""
        if frame.error is not None:
            logger.info(
                "%s: the client closed with %s: %s", self.peer.subject, frame.error.condition, frame.error.description
            )
        self._release()
        self.closing = True
        self.output.send(Close())
        self.flush()
        self.peer.close()

    def _release(self) -> None:
        self.sessions.release()
        self.released = True
        self.broker.jobs.run_steps(self._closing_termini())
        if self.vhost is not None:
            self.container.leave()
            self.leave_vhost()

    def _closing_termini(self) -> Iterator[int]:
        """Notify suspended termini of the end of the connection, in steps."""
        termini = self.termini
        while termini:
            terminus, _ = termini.popitem()
            terminus.connection_closed()
            yield TERMINUS_WORK

    def connection_lost(self) -> None:
        if self.lost:
            return
        self.lost = True
        self.ingress.detach()
        if self.opened and not self.closing:
            logger.warning("%s: connection lost without close", self.peer.subject)
        self.closing = True
        self.services.remove(self)
        self.idle_timers.stop()
        self.login = None
        self.rest = []
        self._release()
        self.broker.end_turn()

    def close_forced(self, reason: str) -> None:
        self.close(constants.CONNECTION_FORCED, reason)

    def close_unauthorized(self, reason: str) -> None:
        self.close(constants.UNAUTHORIZED_ACCESS, reason)

    def link_key(self, frame: Attach) -> Key:
        """Return the identity of the link of an attach."""
        return self.vhost_name, self.user, self.container_id, frame.name, not frame.role

    def is_performing(self) -> bool:
        """Return whether the connection still processes frames other than close."""
        return not self.closing

    def defer(self, frame: Performative) -> None:
        """Process this frame, or the rest of it, in the next turn before all others."""
        self.deferred = frame

    # Sessions

    def client_id(self) -> str:
        return self.container_id

    def channel_count(self) -> int:
        return len(self.sessions.by_number)

    # Output

    def send(self, frame: Performative) -> None:
        self.output.send(frame)
        self.mark()

    def send_empty(self) -> None:
        self.output.send_empty()
        self.mark()

    def wake_soon(self) -> None:
        """Wake links in the next turn: one has reached the limit of this one."""
        self.starved = True
        self.mark()

    def is_full(self) -> bool:
        """Return whether deliveries must wait for the socket."""
        output = self.output
        if (
            self.paused
            or (output.pending > QUANTUM and self.exceeds_quantum(output))
            or self.broker.converted > MAX_CONVERTED
        ):
            self.wake_soon()
            return True
        return False

    def is_writable(self) -> bool:
        """Return whether the socket has taken all output so far."""
        return not self.paused and self.peer.is_writable()

    def flush(self) -> None:
        self.dirty = False
        if not self.closing:
            for session in self.sessions.by_channel.values():
                if session.draining:
                    session.drain()
        size = self.output.pending
        if size and not self.lost:
            self.idle_timers.sent()
            self.bytes_out += size
            self.writes += 1
            if self.paused:
                # Deliveries stop while the socket is full, so this output is replies that the client does not read.
                self.unread_replies += size
                if self.unread_replies > MAX_UNWRITTEN:
                    self.ingress.pause(OUTPUT)
            pieces = self.output.take_pieces()
            if pieces:
                self.peer.write_pieces(pieces, size)
            else:
                self.peer.write(self.output.to_send())
        elif size:
            self.output.to_send()
        if self.starved and not self.paused:
            self.starved = False
            self.wake_later()

    def wake(self) -> None:
        """Wake links: the output has room again."""
        if self.lost:
            return
        self.broker.inputs += 1
        for session in self.sessions.all():
            session.wake()
        self.broker.end_turn()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.starved = False
        self.unread_replies = 0
        self.ingress.release(OUTPUT)
        self.wake()

    # Back pressure

    def must_be_read(self) -> bool:
        """Return whether the client consumes, or has something to settle or to discharge."""
        if len(self.transactions):
            return True
        sessions = self.sessions.by_channel
        self.broker.work += len(sessions) >> 3
        return any(session.consumes() for session in sessions.values())

    def count_partial(self, size: int) -> None:
        """Count bytes of incomplete deliveries; a negative number when they are complete or dropped."""
        self.partial += size

    def alarm(self, reason: str) -> None:
        """Withdraw or restore the credit of publishers. Messages in flight are still accepted."""
        if not self.opened or self.closing:
            return
        for session in self.sessions.by_channel.values():
            if not session.ended:
                session.alarm(bool(reason))
        self.mark()

    # Statistics

    def sent_bytes(self) -> int:
        return self.bytes_out

    def describe(self) -> ConnectionInfo:
        return ConnectionInfo(
            number=self.number,
            name=self.peer.name,
            protocol="AMQP 1.0",
            user=self.user,
            vhost=self.vhost_name,
            state=self._state(),
            channels=len(self.sessions.by_channel),
            tls=self.peer.tls,
            websocket_path=self.peer.websocket_path,
            mechanism=self.peer.mechanism,
            tls_info=self.peer.tls_info,
            unwritten=self.peer.unwritten(),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            reads=self.reads,
            writes=self.writes,
            client_properties=ClientTable(self.client_properties),
            frame_max=self.output.max_frame_size,
            channel_max=min(self.own.sessions - 1, self.sessions.channel_max),
            heartbeat=int(self.own.idle_timeout),
            connected_at=self.peer.connected_at,
            container_id=self.container_id,
        )

    def describe_channels(self) -> list[ChannelInfo]:
        return [session.describe() for session in self.sessions.by_channel.values() if not session.ended]

    def describe_transactions(self) -> Iterator[TransactionInfo]:
        return self.transactions.describe()

    def describe_sessions(self) -> list[SessionInfo]:
        return [session.describe_session() for session in self.sessions.by_channel.values() if not session.ended]

    def describe_links(self) -> Iterator[SessionLinkInfo]:
        for session in list(self.sessions.by_channel.values()):
            for link in list(session.handles.values()):
                yield link.describe()

    def _state(self) -> str:
        if self.closing:
            return "closing"
        if not self.opened:
            return "opening"
        return "flow" if self.ingress.is_slowed() else "running"
