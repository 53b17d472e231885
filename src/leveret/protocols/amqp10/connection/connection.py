"""Connections of AMQP 1.0: headers, SASL, open and close, sessions, output (transport sections 2.2 to 2.4).

`data_received` processes every complete frame in the data. After all ready sockets have been read, the broker ends the
turn: it delivers, commits and calls `flush`.
"""

from __future__ import annotations

import logging
import platform
from typing import Final

from leveret.broker import values
from leveret.broker.broker import MAX_CONVERTED
from leveret.broker.errors import BrokerError
from leveret.broker.vhost import Vhost
from leveret.management.descriptions import ChannelInfo, ConnectionInfo
from leveret.management.json_values import ClientTable
from leveret.protocols.amqp10.connection import exclusive_container, opening
from leveret.protocols.amqp10.connection.idle_timeout import IdleTimeout, Keepalive
from leveret.protocols.amqp10.connection.sasl import Login, anonymous_user
from leveret.protocols.amqp10.connection.state import AWAIT_HEADER, AWAIT_OPEN, CLOSED, IN_SASL, OPENED
from leveret.protocols.amqp10.errors import ConnectionRefused, Refusal, SessionRefused, condition_of, make_error
from leveret.protocols.amqp10.link.outgoing import QUANTUM, OutgoingLink
from leveret.protocols.amqp10.management import link_pair
from leveret.protocols.amqp10.messages import MAX_UINT
from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
from leveret.protocols.amqp10.session.serial_numbers import Numbers
from leveret.protocols.amqp10.shared_state import Amqp10State
from leveret.protocols.amqp10.terminus import shared_subscription
from leveret.protocols.amqp10.terminus.terminus import Key, Terminus
from leveret.protocols.amqp10.transaction.transaction import LocalTransaction
from leveret.protocols.detect import HEADER_1_0, HEADER_1_0_SASL
from leveret.protocols.ingress_throttle import LOGIN, OUTPUT, TURN
from leveret.protocols.peer import Peer
from leveret.protocols.vhost_session import VhostSession
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.descriptors import ATTACH, END, TRANSFER
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.frames import AMQP, EMPTY, FAILURE, HEADER, SASL, Failure, FrameReader, Header
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Attach, Begin, Close, Open
from leveret.wire.amqp10.values import Table, Value

logger = logging.getLogger("leveret.connection")

# Bytes of replies that a client may leave unread before the broker stops reading its socket.
MAX_UNWRITTEN: Final = 4 << 20
# Seconds for a client to reply to close, or to read it if its frames can no longer be parsed.
CLOSE_TIMEOUT: Final = 5.0
UNFRAMED_CLOSE_TIMEOUT: Final = 0.25
# Maximum units of work (about 1 µs each) of all connections together in one turn, as in 0-9-1.
MAX_WORK: Final = 20_000
# Maximum units of work to parse the data of one read.
MAX_READ: Final = 10_000
# Maximum number of values in the performative of one frame: enough for an unsettled map of 10,000 deliveries.
MAX_FRAME_VALUES: Final = 32_768
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
PRODUCT: Final = "Leveret"
CAPABILITIES: Final = (
    "ANONYMOUS-RELAY",
    "DELAYED_DELIVERY",
    link_pair.CAPABILITY,
    shared_subscription.CAPABILITY,
    exclusive_container.CAPABILITY,
)
# Property of an open before a close: the client must not consider the connection open.
ESTABLISHMENT_FAILED: Final = "amqp:connection-establishment-failed"


# Performatives of a session, starting with ATTACH.
OPERATIONS: Final = ("attach", "flow", "transfer", "disposition", "detach", "end")


class Connection(VhostSession):
    """One connection of AMQP 1.0.

    Attributes:
        number: identifier of the connection within the process.
        shared: the state of all AMQP 1.0 connections.
        sessions: sessions by incoming channel. A session that the broker has ended stays until the client's end arrives.
        container: key in `Amqp10State.containers`.
        exclusive: whether the connection must be the only one of its container.
        paused: whether deliveries stop because the socket's buffer is full.
        starved: whether a consumer was refused a delivery because of `paused`.
        routes: routes with checked permissions, valid for `topology` of the vhost and `generation` of the users.
    """

    def __init__(self, peer: Peer, shared: Amqp10State, sasl: bool) -> None:
        super().__init__()
        self.peer = peer
        self.shared = shared
        services = shared.services
        self.services = services
        self.broker = services.broker
        self.settings = services.settings
        self.users = services.users
        self.own = shared.settings
        self.number = services.new_number()
        self.reader = FrameReader(self.own.max_frame_size, max_values=MAX_FRAME_VALUES, max_cost=MAX_READ)
        self.output = Output()
        self.vhost = None
        self.vhost_name = ""
        self.user = ""
        self.user_bytes = b""
        self.may_impersonate = False
        self.container_id = ""
        self.container: tuple[str, str, str] | None = None
        self.exclusive = False
        self.client_properties: values.FieldTable = {}
        self.login: Login | None = None
        self.sessions: dict[int, SessionEndpoint] = {}
        self.channels_out: dict[int, SessionEndpoint] = {}
        self.numbers = Numbers()
        # Transactions that are not yet discharged, by id.
        self.transactions: dict[bytes, LocalTransaction] = {}
        # Links whose queue the management request in progress deletes.
        self.detaching_links: list[OutgoingLink] | None = None
        # Bytes of unsent replies of the management node.
        self.answer_bytes = 0
        self.next_work = 1
        # Transactions whose discharge is answered once their acquired deliveries are aborted.
        self.aborting: list[LocalTransaction] = []
        # Suspended termini whose last session belonged to this connection and has ended.
        self.termini: dict[Terminus, None] = {}
        self.remote_channel_max = 65535
        self.state = IN_SASL if sasl else AWAIT_OPEN
        self.open_sent = False
        self.opened = False
        self.operation = ""
        self.closing = False
        self.lost = False
        # Whether the termini have been notified of the end of the connection.
        self.released = False
        # Output
        self.dirty = False
        # Whether a session was refused a delivery because the connection has too many unsettled ones.
        self.window_full = False
        self.paused = False
        self.starved = False
        self.spoke = False
        self.unread_replies = 0
        self.touched: list[SessionEndpoint] = []
        # Input
        self.heard = True
        self.published_any = False
        # Bytes of incomplete deliveries.
        self.partial = 0
        self.waiting_login = False
        self.unreadable = False
        self.rest: list[Performative] = []
        # Frame in progress that continues in the next turn, before all others.
        self.deferred: Performative | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.idle_timeout_timer: IdleTimeout | None = None
        self.keepalive: Keepalive | None = None
        services.add(self)
        # The caller has read the header to detect the protocol; the reader needs it, too.
        self.reader.receive(HEADER_1_0_SASL if sasl else HEADER_1_0)
        if sasl:
            self.output.send_header(SASL)
            self.login = Login(self)
            self.login.begin()
        elif self.anonymous_user() is None:
            self._require_sasl()
        else:
            self.output.send_header(AMQP)
        self.mark()
        self.broker.end_turn()

    # Input

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        self.broker.inputs += 1
        self.heard = True
        self.operation = ""
        self.services.served.append(self.number)
        waits = self.waiting_login or bool(self.rest) or self.reader.more
        frames = self._read(data)
        if waits:
            self.rest.extend(frames)
        else:
            self._perform_all(frames)

    def _read(self, data: bytes) -> list[Performative]:
        """Return the complete frames in the data, up to the limit of one turn."""
        frames = self.reader.receive(data)
        self.broker.work += self.reader.cost
        return frames

    def _perform_all(self, frames: list[Performative]) -> None:
        """Process frames, up to the limit of one turn."""
        services = self.services
        broker = self.broker
        done = 0
        for frame in frames:
            done += 1
            broker.work += COSTS[frame.kind]
            self._perform(frame)
            if broker.work > MAX_WORK or self.waiting_login or self.deferred is not None:
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
            session.listed = False
            if not session.ended:
                session.resolve()
        self.mark()

    def _perform(self, frame: Performative) -> None:
        """Process one frame. An error ends its link, its session or the connection."""
        if self.closing:
            if frame.kind == descriptors.CLOSE:
                self.peer.close()
            return
        kind = frame.kind
        if kind == FAILURE:
            self.unreadable = True
        try:
            if self.state == OPENED:
                session = self.sessions.get(frame.channel) if ATTACH <= kind <= END else None
                if session is not None:
                    if kind != TRANSFER:
                        self.operation = OPERATIONS[kind - ATTACH]
                    session.receive(frame)
                else:
                    self._opened(frame)
            else:
                self._handshake(frame)
        except Refusal as refused:
            session = self.sessions.get(frame.channel) if isinstance(refused, SessionRefused) else None
            if session is not None:
                session.end(refused.error())
            else:
                self.close(refused.condition, refused.text, refused.info)
        except BrokerError as error:
            self.close(condition_of(error), str(error))
        except EncodeError as failed:
            self.close(constants.FRAME_SIZE_TOO_SMALL, str(failed))
        except Exception:
            logger.exception("%s: internal error while processing a frame of kind 0x%02x", self.peer.name, frame.kind)
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
            self._begin(frame)
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
            logger.info("%s: %s", self.peer.name, frame.text)
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
            opening.open_connection(self, frame)
        elif frame.kind != EMPTY:
            raise ConnectionRefused(constants.ILLEGAL_STATE, "the first frame must be an open")

    # Login

    def logged_in(self, name: str) -> None:
        """Handle a successful login."""
        self.login = None
        self.state = AWAIT_HEADER
        self.set_user(name)

    def set_user(self, name: str) -> None:
        self.user = name
        self.user_bytes = name.encode("utf-8", "surrogateescape")
        user = self.services.users.get(name)
        self.may_impersonate = user is not None and "impersonator" in user.tags

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
        logger.info("%s: refused without SASL; see amqp10.anonymous_user and auth.loopback_users", self.peer.name)
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

    def send_open(self, failed: bool = False) -> None:
        """Send open, the first frame. `failed` means that a close follows."""
        own = self.own
        properties: dict[str, Value] = {
            "product": own.product,
            "version": own.version,
            "platform": f"{PRODUCT} {self.services.server_properties.get('version', '')}"
            f" (Python {platform.python_version()})",
            "node": self.services.node_name,
            "cluster_name": self.services.node_name,
        }
        if failed:
            properties[ESTABLISHMENT_FAILED] = True
        timeout = min(int(own.idle_timeout * 500), MAX_UINT)
        self.output.send(
            Open(
                self.services.node_name,
                None,
                own.max_frame_size,
                own.sessions - 1,
                timeout or None,
                offered_capabilities=CAPABILITIES,
                properties=properties,
            )
        )
        self.open_sent = True
        self.mark()

    def close(self, condition: str, text: str, info: Table | None = None) -> None:
        """Send close with an error. From then on, only the client's close is processed."""
        if self.closing or self.lost:
            return
        logger.info("%s: connection closed with %s: %s", self.peer.name, condition, text)
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
        self.peer.call_later(UNFRAMED_CLOSE_TIMEOUT if self.unreadable else CLOSE_TIMEOUT, self._close_timed_out)

    def _close_timed_out(self) -> None:
        if not self.lost:
            self.peer.close()

    def _closed(self, frame: Close) -> None:
        """Handle the client's close."""
        if frame.error is not None:
            logger.info("%s: the client closed with %s: %s", self.peer.name, frame.error.condition, frame.error.description)
        self._release()
        self.closing = True
        self.output.send(Close())
        self.flush()
        self.peer.close()

    def _release(self) -> None:
        for session in list(self.sessions.values()):
            session.release()
        self.sessions.clear()
        self.channels_out.clear()
        self.released = True
        for terminus in list(self.termini):
            terminus.connection_closed()
        self.termini.clear()
        if self.vhost is not None:
            exclusive_container.leave(self)
            self.leave_vhost()

    def connection_lost(self) -> None:
        if self.lost:
            return
        self.lost = True
        self.ingress.detach()
        if self.opened and not self.closing:
            logger.warning("%s: connection lost without close", self.peer.name)
        self.closing = True
        self.services.remove(self)
        for timer in (self.idle_timeout_timer, self.keepalive):
            if timer is not None:
                self.broker.timers.cancel(timer)
                timer.connection = None  # the timers may keep a reference for a while
        self.idle_timeout_timer = None
        self.keepalive = None
        self.login = None
        self.rest = []
        self._release()
        self.broker.end_turn()

    def vhost_removed(self, vhost: Vhost) -> None:
        if self.vhost is vhost:
            self.shut_down(f"vhost '{vhost.name}' was deleted")

    def users_changed(self) -> None:
        if self.user and self.services.users.get(self.user) is None:
            self.shut_down(f"user '{self.user}' was deleted")

    def shut_down(self, reason: str) -> None:
        if not self.opened:
            self.peer.close()
            return
        self.close(constants.CONNECTION_FORCED, reason)
        self.broker.end_turn()

    def link_key(self, frame: Attach) -> Key:
        """Return the identity of the link of an attach."""
        return self.vhost_name, self.user, self.container_id, frame.name, not frame.role

    def defer(self, frame: Performative) -> None:
        """Process this frame, or the rest of it, in the next turn before all others."""
        self.deferred = frame

    # Sessions

    def _begin(self, frame: Begin) -> None:
        channel = frame.channel
        if frame.remote_channel is not None:
            raise ConnectionRefused(
                constants.NOT_ALLOWED, "begin has a remote-channel, but the broker has not begun a session"
            )
        if channel in self.sessions:
            raise ConnectionRefused(constants.NOT_ALLOWED, f"channel {channel} already has a session")
        if channel >= self.own.sessions:
            raise ConnectionRefused(
                constants.CONNECTION_FRAMING_ERROR,
                f"channel {channel} is above channel-max, {self.own.sessions - 1}; the setting is amqp10.sessions",
            )
        user = self.services.users.get(self.user)
        if user is not None and user.limits.max_channels:
            self.services.check_channel_limit(self.user, user.limits.max_channels)
        number = self.numbers.lowest(self.channels_out)
        if number > self.remote_channel_max:
            raise ConnectionRefused(
                constants.RESOURCE_LIMIT_EXCEEDED, "the client's channel-max does not allow another session"
            )
        session = SessionEndpoint(self, frame, number)
        self.sessions[channel] = session
        self.channels_out[number] = session
        session.start()

    def peer_name(self) -> str:
        return self.peer.name

    def unsettled_count(self) -> int:
        """Return the number of unsettled deliveries to the client."""
        count = 0
        for session in self.sessions.values():
            count += len(session.unacked) + len(session.retiring) + len(session.copies)
        return count

    def window_freed_in(self, session: SessionEndpoint) -> None:
        """Wake links that were refused a delivery because too many deliveries were unsettled."""
        if self.window_full:
            self.window_full = False
            for other in list(self.sessions.values()):
                if other.window_full:
                    other.window_full = False
                    other.wake()
        elif session.window_full:
            session.window_full = False
            session.wake()

    def channel_count(self) -> int:
        return len(self.channels_out)

    def forget_session(self, session: SessionEndpoint) -> None:
        """Remove a session that both sides have ended."""
        if self.sessions.get(session.channel_in) is session:
            del self.sessions[session.channel_in]
        if self.channels_out.get(session.channel) is session:
            del self.channels_out[session.channel]
            self.numbers.release(session.channel)
        self.window_freed_in(session)

    def end_transaction(self, transaction: LocalTransaction) -> None:
        """End the control link of an invalid transaction, which rolls the transaction back."""
        link = transaction.link
        link.session.refuse(link, make_error(constants.TRANSACTION_ROLLBACK, transaction.failed))

    def has_partial(self, transaction: LocalTransaction) -> bool:
        """Return whether a delivery of the transaction is incomplete."""
        return any(
            link.is_receiving_in(transaction) for session in self.sessions.values() for link in session.handles.values()
        )

    # Output

    def send(self, frame: Performative) -> None:
        self.output.send(frame)
        self.mark()

    def send_empty(self) -> None:
        self.output.send_empty()
        self.mark()

    def mark(self) -> None:
        """Schedule `flush` for the end of the turn."""
        if not self.dirty:
            self.dirty = True
            self.broker.outputs.append(self)

    def is_full(self) -> bool:
        """Return whether deliveries must wait for the socket."""
        if self.paused or self.output.pending > QUANTUM or self.broker.converted > MAX_CONVERTED:
            self.starved = True
            self.mark()
            return True
        return False

    def flush(self) -> None:
        self.dirty = False
        if not self.closing:
            for session in self.sessions.values():
                if session.draining:
                    session.drain()
        data = self.output.to_send()
        if data and not self.lost:
            self.spoke = True
            self.bytes_out += len(data)
            if self.paused:
                # Deliveries stop while the socket is full, so this output is replies that the client does not read.
                self.unread_replies += len(data)
                if self.unread_replies > MAX_UNWRITTEN:
                    self.ingress.pause(OUTPUT)
            self.peer.write(data)
        if self.starved and not self.paused:
            self.starved = False
            self.peer.call_soon(self.wake)

    def wake(self) -> None:
        """Wake links: the output has room again."""
        if self.lost:
            return
        self.broker.inputs += 1
        for session in list(self.sessions.values()):
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

    def alarm(self, reason: str) -> None:
        """Withdraw or restore the credit of publishers. Messages in flight are still accepted."""
        if not self.opened or self.closing:
            return
        for session in self.sessions.values():
            if not session.ended:
                session.alarm(bool(reason))
        self.mark()

    # Statistics

    def describe(self) -> ConnectionInfo:
        return ConnectionInfo(
            number=self.number,
            name=self.peer.name,
            protocol="AMQP 1.0",
            user=self.user,
            vhost=self.vhost_name,
            state=self._state(),
            channels=len(self.sessions),
            tls=self.peer.tls,
            octets_in=self.bytes_in,
            octets_out=self.bytes_out,
            client_properties=ClientTable(self.client_properties),
            frame_max=self.output.max_frame_size,
            channel_max=min(self.own.sessions - 1, self.remote_channel_max),
            heartbeat=int(self.own.idle_timeout),
        )

    def describe_channels(self) -> list[ChannelInfo]:
        return [session.describe() for session in self.sessions.values() if not session.ended]

    def _state(self) -> str:
        if self.closing:
            return "closing"
        return "running" if self.opened else "opening"
