"""Clients of the front until they open a vhost: the handshake, then the hand-over to the shard of the vhost."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.cluster.node_handshake import LinkFailed
from leveret.cluster.openings import Amqp0Opening, Amqp10Opening, Opening
from leveret.cluster.relay import Relay
from leveret.cluster.waiting import INTERVAL, Waiting
from leveret.protocols.adoption import Adoption
from leveret.protocols.amqp09.connection.connection import Connection as Connection09
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp091.connection.connection import Connection as Connection091
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.detect import V0_9, V0_9_1, V1_0_SASL
from leveret.protocols.opening import Protocols
from leveret.protocols.peer import Peer, Receiver, Result
from leveret.protocols.services import Services
from leveret.security.accounts import Account
from leveret.server.transport import SocketPeer

if TYPE_CHECKING:
    from leveret.cluster.links import Route

logger = logging.getLogger("leveret.connection")

# Seconds between looks whether a client that waits for its shard has left.
HANG_UP_INTERVAL: Final = 1.0


class Target(Protocol):
    """A shard that clients can be handed over to."""

    @property
    def unavailable(self) -> str:
        """Why the shard takes no connections at the moment, for the client; "" if it does."""

    @property
    def client_addresses(self) -> tuple[str, str]:
        """The addresses of its node for clients, without and with TLS; "" if that is here or unknown."""

    @property
    def refers(self) -> bool:
        """Whether clients that are not redirected must connect to its node for a while, if its address is known."""

    @property
    def connect(self) -> Callable[[Adoption], Coroutine[Any, Any, Route]] | None:
        """Connects a client to the shard in another node. Raises `LinkFailed`. None if the shard is in this node."""

    def hand_over(self, sock: socket.socket, adoption: Adoption) -> None:
        """Send the socket and the adoption to the shard, and close the socket here. Must not raise.

        The target sets the adoption's numbers of connections in other shards.
        """


class Placement(Protocol):
    """The shards of the vhosts.

    Attributes:
        patience: Seconds for which a client waits for its shard, which may be about to start in any node.
    """

    patience: float

    def shard_of(self, vhost: str) -> Target | None:
        """Return the shard of a vhost; None if the vhost does not exist."""


class PlacedVhosts:
    """The names of the placed vhosts, as a container."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._placement.shard_of(name) is not None


def _is_due(placement: Placement, vhost: str) -> bool:
    """Return whether clients that wait for the shard of a vhost should continue: it takes connections, or is gone."""
    target = placement.shard_of(vhost)
    return target is None or not target.unavailable


class FrontSession(Peer):
    """Object between the socket of a client and the session that runs its handshake.

    Towards the socket it is the receiver of input, which it keeps from the client's open on. Towards the session, it
    is the socket.
    """

    __slots__ = (
        "_held",
        "_opening",
        "_paused",
        "_placement",
        "_placing",
        "_proceeding",
        "_protocol",
        "_socket",
        "_vhosts",
        "_waiting",
    )

    def __init__(self, protocol: int, peer: SocketPeer, placement: Placement, waiting: Waiting) -> None:
        self._socket = peer
        super().__init__()
        self._protocol = protocol
        self._placement = placement
        self._waiting = waiting
        self._vhosts = PlacedVhosts(placement)
        self._opening: Opening | None = None
        self._held = b""
        self._paused = False
        self._proceeding = False
        self.subject = peer.subject
        # The task that waits for the client's shard.
        self._placing: asyncio.Task[None] | None = None
        self.name = peer.name
        self.host = peer.host
        self.local = peer.local
        self.certificate = peer.certificate
        self.tls = peer.tls
        self.tls_info = peer.tls_info
        self.websocket_path = peer.websocket_path
        self.connected_at = peer.connected_at

    def begin(self, opening: Opening) -> None:
        """Begin the handshake of a session, which has this object as its peer."""
        self._opening = opening

    def choose_mechanism(self, name: str) -> None:
        super().choose_mechanism(name)
        self._socket.choose_mechanism(name)

    # Towards the socket

    def data_received(self, data: bytes | memoryview) -> None:
        self._held += bytes(data)
        self._proceed()

    def _proceed(self) -> None:
        """Pass input to the session up to the client's open, unless the session wants none at the moment."""
        self._proceeding = False
        while self._held and not self._paused and self._placing is None:
            opening = self._opening
            if opening is None:
                return
            data = self._held
            if opening.ends or opening.session.closing:
                self._held = b""
                opening.session.data_received(data)
                return
            start, end = opening.find(data)
            if start:
                self._held = data[start:]
                opening.session.data_received(data[:start])
            elif end == start:
                return  # incomplete
            elif not opening.is_due() or not self._place(opening, data[:end]):
                self._held = data[end:]
                opening.session.data_received(data[:end])
            else:
                return

    def _place(self, opening: Opening, frame: bytes) -> bool:
        """Hand the client over to the shard of its vhost. Return False if the session has to answer the open."""
        vhost = opening.vhost(frame, self._vhosts)
        target = None if vhost is None else self._placement.shard_of(vhost)
        account = opening.account()
        if vhost is None or target is None or account is None:
            return False
        if target.unavailable and not account.may_open(vhost):
            return False
        if target.unavailable and not self._placement.patience:
            opening.refuse(target.unavailable)
            return False
        if not target.unavailable and self._send_away(opening, frame, vhost, account, target):
            return False
        opening.session.flush()
        self._socket.pause_reading()
        if target.unavailable or target.connect is not None:
            self._placing = asyncio.get_running_loop().create_task(self._reach(opening, frame, vhost, account))
        else:
            self._hand_over(opening, account, target)
        return True

    def _send_away(self, opening: Opening, frame: bytes, vhost: str, account: Account, target: Target) -> bool:
        """Have the session answer an open whose client should connect to another node. Return False if it should not."""
        # The addresses are those of other listeners than the one for WebSockets.
        address = "" if self.websocket_path else target.client_addresses[self.tls]
        if not address or not account.may_open(vhost):
            return False
        if opening.redirect(frame, address):
            return True
        if target.refers:
            opening.refuse(f"another node has drained: connect to {address}, or here after 'cluster.referral_time'")
            return True
        return False

    async def _reach(self, opening: Opening, frame: bytes, vhost: str, account: Account) -> None:
        """Wait until the client can be passed on to its shard, or refuse it after a while."""
        # The client waits for the broker, and not the broker for the client.
        self._socket.checking = True
        try:
            if await self._is_placed(opening, frame, vhost, account):
                return
        finally:
            self._socket.checking = False
        self._placing = None
        if not self._paused:
            self._socket.resume_reading()
        self._proceed()

    async def _is_placed(self, opening: Opening, frame: bytes, vhost: str, account: Account) -> bool:
        """Return True when the client is passed on, or has left, and False when its session is to answer the open."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._placement.patience
        while not opening.session.closing:
            target = self._placement.shard_of(vhost)
            if target is None:
                break
            reason = target.unavailable
            if reason:
                await self._await_turn(vhost, deadline)
                if _is_due(self._placement, vhost):
                    continue  # however late the turn of the client comes
            elif self._send_away(opening, frame, vhost, account, target):
                break
            elif target.connect is None:
                self._placing = None
                self._hand_over(opening, account, target)
                return True
            else:
                try:
                    route = await target.connect(self._adoption(opening, account))
                except LinkFailed as error:
                    reason = str(error)
                    await asyncio.sleep(INTERVAL)
                else:
                    self._held = b""
                    self._placing = None
                    route.relay(self._socket, self._protocol)
                    self.connection_lost()
                    return True
            if self._socket.hung_up():  # nothing is read that would show it
                self._socket.abort()
                return True
            if loop.time() > deadline:
                opening.refuse(reason)
                break
        return False

    async def _await_turn(self, vhost: str, deadline: float) -> None:
        """Wait until the shard of a vhost takes connections, until a deadline, or until the client has left."""
        loop = asyncio.get_running_loop()
        with self._waiting.turn(vhost) as turn:
            while not turn.done() and loop.time() <= deadline and not self._socket.hung_up():
                await asyncio.wait([turn], timeout=max(0.001, min(HANG_UP_INTERVAL, deadline - loop.time())))

    def _hand_over(self, opening: Opening, account: Account, target: Target) -> None:
        """Hand the client over to a shard in this node, as soon as all output is written."""
        is_plain = self._socket.is_plain
        if is_plain and not self._socket.is_writable():
            self._socket.await_drain()
            return
        adoption = self._adoption(opening, account)
        self._held = b""
        if is_plain:
            self._give_away(adoption, target)
        else:
            self._relay(adoption, target)

    def _adoption(self, opening: Opening, account: Account) -> Adoption:
        return Adoption(
            protocol=self._protocol,
            connection=opening.session.number,
            peer=self._socket.facts(),
            input=self._held,
            account=account.export(),
            client=opening.client(),
        )

    def _give_away(self, adoption: Adoption, target: Target) -> None:
        self._socket.opened()
        try:
            duplicate = self._socket.give_away()
        except OSError as error:
            logger.error("%s: cannot hand over the connection to its shard: %s", self.subject, error)
            self._socket.abort()
            return
        target.hand_over(duplicate, adoption)

    def _relay(self, adoption: Adoption, target: Target) -> None:
        try:
            near, far = socket.socketpair()
        except OSError as error:
            logger.error("%s: cannot hand over the connection to its shard: %s", self.subject, error)
            self._socket.abort()
            return
        Relay(self._socket, self._protocol, near)
        self.connection_lost()
        target.hand_over(far, adoption)

    def pause_writing(self) -> None:
        if self._opening is not None:
            self._opening.session.pause_writing()

    def resume_writing(self) -> None:
        if self._opening is not None:
            self._opening.session.resume_writing()
            if not self._paused:
                # Reading was paused for the hand-over, which the shard may not accept any more.
                self._socket.resume_reading()
            self._proceed_soon()

    def connection_lost(self) -> None:
        opening = self._opening
        self._opening = None
        if self._placing is not None:
            self._placing.cancel()
            self._placing = None
        if opening is not None:
            opening.session.connection_lost()

    # Towards the session

    @property
    def checking(self) -> bool:
        """Whether a login is waiting for its password check, as the socket's protocol needs to know."""
        return self._socket.checking

    @checking.setter
    def checking(self, checking: bool) -> None:
        self._socket.checking = checking

    def opened(self) -> None:
        self._socket.opened()

    def write(self, data: bytes) -> None:
        self._socket.write(data)

    def write_pieces(self, pieces: list[bytes | memoryview], size: int) -> None:
        self._socket.write_pieces(pieces, size)

    def close(self) -> None:
        self._socket.close()

    def finish(self) -> None:
        self._socket.finish()

    def abort(self) -> None:
        self._socket.abort()

    def pause_reading(self) -> None:
        self._paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._socket.resume_reading()
        self._proceed_soon()

    def _proceed_soon(self) -> None:
        """Continue with the input that was kept when the session has finished its present work."""
        if self._held and not self._proceeding:
            self._proceeding = True
            self._socket.call_soon(self._proceed)

    def limit_reads(self, size: int, slowed: bool) -> None:
        self._socket.limit_reads(size, slowed)

    def is_writable(self) -> bool:
        return self._socket.is_writable()

    def hung_up(self) -> bool:
        return self._socket.hung_up()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._socket.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._socket.call_later(seconds, callback)

    def run_blocking(self, function: Callable[[], Result], done: Callable[[Result], None]) -> None:
        self._socket.run_blocking(function, done)


class FrontProtocols(Protocols):
    """The protocols that the front speaks, up to the client's open.

    Args:
        services: The services of the front, whose broker has no vhosts.
        placement: The shards of the vhosts.
        amqp10: The settings of 1.0.
        amqp09: The settings of 0-9.
    """

    def __init__(
        self,
        services: Services,
        placement: Placement,
        *,
        amqp10: Amqp10Settings | None = None,
        amqp09: Amqp09Settings | None = None,
    ) -> None:
        super().__init__(services, amqp10=amqp10, amqp09=amqp09)
        self._placement = placement
        self._waiting = Waiting(partial(_is_due, placement))

    def make_session(self, protocol: int, peer: Peer) -> Receiver:
        assert isinstance(peer, SocketPeer)
        front = FrontSession(protocol, peer, self._placement, self._waiting)
        if protocol == V0_9_1:
            front.begin(Amqp0Opening(Connection091(front, self.services)))
        elif protocol == V0_9:
            front.begin(Amqp0Opening(Connection09(front, self.amqp09)))
        else:
            front.begin(Amqp10Opening(Connection10(front, self.amqp10, protocol == V1_0_SASL)))
        return front
