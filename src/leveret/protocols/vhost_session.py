"""Sessions in a vhost, for all protocols: the user's permissions and the routes of publishes."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.errors import AccessRefused
from leveret.broker.routing import Route
from leveret.protocols.ingress_throttle import IngressThrottle
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.protocols.session import Session
from leveret.security.accounts import Account, TokenRefused
from leveret.security.tags import IMPERSONATOR
from leveret.wire.output_buffer import OutputBuffer

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.connection")

MAX_ROUTES: Final = 4096
# Bytes of deliveries to one connection per turn, without large payloads and with them. Further deliveries wait until the
# socket has accepted them. More than a read has, so that a queue that keeps up with its publisher is not behind.
QUANTUM: Final = 256 << 10
LARGE_QUANTUM: Final = 1 << 20
# Connections with output in this turn and the next ones above which large payloads do not extend the quantum.
FEW_OUTPUTS: Final = 8
OPERATIONS: Final = ("configure", "write", "read")
# Maximum seconds between two checks whether a token has expired, since the wall clock may be set.
MAX_EXPIRY_INTERVAL: Final = 600.0
# Operation in `allowed` that covers every routing key of a topic exchange.
EVERY_TOPIC: Final = "every topic"


class VhostSession(Session):
    """A session that publishes and consumes in one vhost. Routes and permissions are cached until they change.

    Attributes:
        may_impersonate: whether messages may have the user-id of another user.
        lost: whether the socket is closed.
        vhost: the vhost that the client has opened; None before.
        routes: routes by canonical address, valid for `topology` of the vhost and `generation` of the users.
        allowed: granted operations and resources, valid for `generation`.
    """

    vhost: Any

    def __init__(self, peer: Peer, services: Services) -> None:
        self.peer = peer
        self.services = services
        self.broker = services.broker
        self.settings = services.settings
        self.number = peer.subject.number = services.new_number()
        peer.subject.name = peer.name
        self.vhost = None
        self.vhost_name = ""
        self.account = None
        self.user = ""
        self.may_impersonate = False
        self.opened = False
        self.operation = ""
        self.closing = False
        self.lost = False
        self.dirty = False
        self.bytes_in = 0
        # Number of reads of the socket.
        self.reads = 0
        self.ingress = IngressThrottle(self)
        self.routes: dict[bytes, Route] = {}
        self.topology = -1
        self.generation = -1
        # A dict, because an empty set takes four times as much memory, and idle connections have none.
        self.allowed: dict[tuple[str, str], None] = {}
        # The time of the next check whether the token has expired; 0 for none.
        self.expiry_check = 0.0
        self.renewing = False

    # Input and output

    def count_input(self, size: int) -> None:
        """Count the bytes of one read, and begin to process them."""
        self.bytes_in += size
        self.reads += 1
        self.broker.inputs += 1
        self.operation = ""
        self.services.served.append(self.number)

    def mark(self) -> None:
        """Schedule `flush` for the end of the turn."""
        if not self.dirty:
            self.dirty = True
            self.broker.outputs.append(self)

    def exceeds_quantum(self, output: OutputBuffer) -> bool:
        """Return whether more than QUANTUM bytes of output are the share of the connection in this turn."""
        pending = output.pending
        broker = self.broker
        return (
            pending > LARGE_QUANTUM
            or pending - output.pending_large > QUANTUM
            or len(broker.outputs) + broker.waking > FEW_OUTPUTS
        )

    def wake_later(self) -> None:
        """Wake consumers in a later turn: the connection has had its share of this one."""
        self.broker.waking += 1
        self.peer.call_soon(self._wake)

    def _wake(self) -> None:
        self.broker.waking -= 1
        self.wake()

    # Publishes

    def find_route(self, address: bytes) -> Route:
        """Return the route of a publish.

        Raises:
            AccessRefused: the user may not write to the exchange or to this routing key, or the exchange is internal.
        """
        return self.find_route_in(self.vhost, address)

    def find_route_in(self, vhost: Vhost, address: bytes) -> Route:
        """Return the route of a publish in the vhost of the session, even if the session has left it since."""
        users = self.services.users
        if self.topology != vhost.topology or self.generation != users.generation or len(self.routes) > MAX_ROUTES:
            self.routes.clear()
            self.topology = vhost.topology
            if self.generation != users.generation:
                self.allowed.clear()
                self.generation = users.generation
        found = self.routes.get(address)
        if found is not None:
            return found
        route: Route = vhost.route(address)
        if route.exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{route.exchange_name}' in vhost '{self.vhost_name}'")
        self.check("write", route.exchange_name)
        if route.exchange.has_topics and not self._may_every_topic(route.exchange_name):
            self.check_topic("write", route.exchange_name, route.routing_key)
        if route.owner and route.owner != self.user:
            raise AccessRefused(
                f"the sink transaction of '{route.exchange_name}' in vhost '{self.vhost_name}' belongs to another user"
            )
        self.routes[address] = route
        return route

    # The vhost and its end

    def enter_vhost(self, vhost: Vhost) -> None:
        """Open a vhost for the client: count the connection there and for its user."""
        self.vhost = vhost
        self.vhost_name = self.peer.subject.vhost = vhost.name
        vhost.connections += 1
        self.broker.churn.connection_opened()
        by_user = self.services.by_user
        by_user[self.user] = by_user.get(self.user, 0) + 1
        self.opened = True
        self.peer.opened()

    def leave_vhost(self, done: Callable[[], None] | None = None) -> None:
        """Leave the vhost, delete the exclusive queues of the connection, then call `done`."""
        vhost = self.vhost
        self.vhost = None
        vhost.connections -= 1
        self.broker.churn.connection_closed()
        vhost.statistics.retire_connection(self.bytes_in, self.sent_bytes())
        by_user = self.services.by_user
        count = by_user.get(self.user, 0) - 1
        if count > 0:
            by_user[self.user] = count
        else:
            by_user.pop(self.user, None)
        vhost.remove_exclusive(self, done)

    @abstractmethod
    def sent_bytes(self) -> int:
        """Return the number of bytes sent."""

    @abstractmethod
    def close_forced(self, reason: str) -> None:
        """Send a close at an operator's request."""

    @abstractmethod
    def close_unauthorized(self, reason: str) -> None:
        """Send a close because the client's login has ended."""

    def shut_down(self, reason: str) -> None:
        if not self.opened:
            self.peer.close()
            return
        self.close_forced(reason)
        self.broker.end_turn()

    def vhost_removed(self, vhost: Vhost) -> None:
        if self.vhost is vhost:
            self.shut_down(f"vhost '{vhost.name}' was deleted")

    def users_changed(self) -> None:
        if self.user and not self.account.exists():
            self.shut_down(f"user '{self.user}' was deleted")

    def close_timed_out(self) -> None:
        """Close the socket of a client that did not answer a close in time."""
        if not self.lost:
            self.peer.close()

    def peer_name(self) -> str:
        return self.peer.name

    # The user and its permissions

    def set_account(self, account: Account) -> None:
        """Set the authenticated user, or the rights of its renewed token."""
        self.account = account
        self.user = self.peer.subject.user = account.name
        self.may_impersonate = IMPERSONATOR in account.tags
        # Drop what was cached under the rights of an earlier token.
        self.routes.clear()
        self.allowed.clear()
        if account.expires_at and not 0 < self.expiry_check <= account.expires_at:
            self._check_expiry_in(account.expires_at - time.time())

    def _check_expiry_in(self, seconds: float) -> None:
        delay = min(max(seconds, 0.0), MAX_EXPIRY_INTERVAL)
        due = time.time() + delay
        self.expiry_check = due
        self.peer.call_later(delay, lambda: self._check_expiry(due))

    def _check_expiry(self, due: float) -> None:
        """Close the connection if its token has expired. A later check than `due` may have been replaced."""
        if due != self.expiry_check or self.closing or self.lost:
            return
        remaining = self.account.expires_at - time.time()
        if remaining > 0:
            self._check_expiry_in(remaining)
        elif self.opened:
            self.close_unauthorized("the token has expired")
            self.broker.end_turn()
        else:
            self.peer.close()

    def renew(self, token: bytes, done: Callable[[str], None]) -> None:
        """Replace the client's token. The user must stay the same. A password cannot be replaced and need not be.

        `done` is called with the reason of a refusal, or an empty string; at once if the token is known.
        """
        tokens = self.services.tokens
        if tokens is None or not self.account.is_token:
            done("")
        elif self.renewing:
            done("another token is being verified")
        else:
            known = tokens.known(token)
            if known is not None:
                self._renew(known, done)
                return
            self.renewing = True
            tokens.submit(token, "" if self.peer.local else self.peer.host, lambda result: self._verified(result, done))

    def _verified(self, result: Account | TokenRefused, done: Callable[[str], None]) -> None:
        self.renewing = False
        if not self.closing and not self.lost:
            self._renew(result, done)
            self.mark()
            self.broker.end_turn()

    def _renew(self, result: Account | TokenRefused, done: Callable[[str], None]) -> None:
        if isinstance(result, TokenRefused):
            logger.warning("%s: renewed token of user '%s' refused: %s", self.peer.subject, self.user, result)
            done("the broker refused the token; see its log")
        elif result.name != self.user:
            done(f"the token is for user '{result.name}', expected '{self.user}'")
        else:
            self.set_account(result)
            done("")

    def may_publish_as(self, user_id: bytes) -> bool:
        """Return whether messages of this connection may have the user-id."""
        return user_id == self.user.encode("utf-8", "surrogateescape") or self.may_impersonate

    @property
    def session(self) -> object:
        """The owner of exclusive queues declared on this session: the session itself."""
        return self

    def check_peer(self) -> None:
        self.ingress.check_peer()

    def client_id(self) -> str:
        """Return the client's id, the value of `{client_id}` in topic permissions; "" if the protocol has none."""
        return ""

    def check_topic(self, operation: str, exchange: str, routing_key: str) -> None:
        """Raise AccessRefused unless the user may write or read this routing key of a topic exchange."""
        if not self.account.may_topic(self.vhost_name, operation, exchange, routing_key, self.client_id()):
            raise AccessRefused(
                f"{operation} access to topic '{routing_key}' in exchange '{exchange}' in vhost '{self.vhost_name}'"
                f" refused for user '{self.user}'"
            )

    def _may_every_topic(self, exchange: str) -> bool:
        """Return whether no topic permission limits the routing keys of the user. Called after `check`."""
        key = (EVERY_TOPIC, exchange)
        if key in self.allowed:
            return True
        if not self.account.may_every_topic(self.vhost_name, exchange):
            return False
        self._allow(key)
        return True

    def check_topics(self, route: Route, routing_keys: list[str]) -> None:
        """Raise AccessRefused unless the user may write these routing keys, from the CC and BCC headers of a message."""
        if route.exchange.has_topics:
            for routing_key in routing_keys:
                self.check_topic("write", route.exchange_name, routing_key)

    def check_any(self, resource: str) -> None:
        """Raise AccessRefused unless the user has a permission for the exchange or queue."""
        may = self.account.may
        if not any(may(self.vhost_name, operation, resource) for operation in OPERATIONS):
            raise AccessRefused(
                f"access to '{resource or 'amq.default'}' in vhost '{self.vhost_name}' refused for user '{self.user}'"
            )

    def check(self, operation: str, resource: str) -> None:
        """Raise AccessRefused unless the user may configure, write or read the exchange or queue."""
        users = self.services.users
        if self.generation != users.generation:
            self.allowed.clear()
            self.routes.clear()
            self.generation = users.generation
        key = (operation, resource)
        if key in self.allowed:
            return
        if not self.account.may(self.vhost_name, operation, resource):
            raise AccessRefused(
                f"{operation} access to '{resource or 'amq.default'}' in vhost '{self.vhost_name}'"
                f" refused for user '{self.user}'"
            )
        self._allow(key)

    def _allow(self, key: tuple[str, str]) -> None:
        if len(self.allowed) >= MAX_ROUTES:
            self.allowed.clear()
        self.allowed[key] = None
