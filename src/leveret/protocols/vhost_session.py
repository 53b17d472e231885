"""Sessions in a vhost, for all protocols: the user's permissions and the routes of publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.errors import AccessRefused
from leveret.broker.routing import Route
from leveret.protocols.ingress_throttle import IngressThrottle
from leveret.protocols.services import Services
from leveret.protocols.session import Session

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost

MAX_ROUTES: Final = 4096
OPERATIONS: Final = ("configure", "write", "read")


class VhostSession(Session):
    """A session that publishes and consumes in one vhost. Routes and permissions are cached until they change.

    Attributes:
        vhost: the vhost that the client has opened; None before.
        routes: routes by canonical address, valid for `topology` of the vhost and `generation` of the users.
        allowed: granted operations and resources, valid for `generation`.
    """

    services: Services
    vhost: Any
    vhost_name: str

    def __init__(self) -> None:
        self.ingress = IngressThrottle(self)
        self.routes: dict[bytes, Route] = {}
        self.topology = -1
        self.generation = -1
        self.allowed: set[tuple[str, str]] = set()

    def find_route(self, address: bytes) -> Route:
        """Return the route of a publish.

        Raises:
            AccessRefused: the user may not write to the exchange, or the exchange is internal.
        """
        vhost = self.vhost
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
        if route.owner and route.owner != self.user:
            raise AccessRefused(
                f"the sink transaction of '{route.exchange_name}' in vhost '{self.vhost_name}' belongs to another user"
            )
        self.routes[address] = route
        return route

    def enter_vhost(self, vhost: Vhost) -> None:
        """Open a vhost for the client: count the connection there and for its user."""
        self.vhost = vhost
        self.vhost_name = vhost.name
        vhost.connections += 1
        by_user = self.services.by_user
        by_user[self.user] = by_user.get(self.user, 0) + 1
        self.opened = True
        self.peer.opened()

    def leave_vhost(self, done: Callable[[], None] | None = None) -> None:
        """Leave the vhost, delete the exclusive queues of the connection, then call `done`."""
        vhost = self.vhost
        self.vhost = None
        vhost.connections -= 1
        by_user = self.services.by_user
        count = by_user.get(self.user, 0) - 1
        if count > 0:
            by_user[self.user] = count
        else:
            by_user.pop(self.user, None)
        vhost.remove_exclusive(self, done)

    @property
    def session(self) -> object:
        """The owner of exclusive queues declared on this session: the session itself."""
        return self

    def check_peer(self) -> None:
        self.ingress.check_peer()

    def check_any(self, resource: str) -> None:
        """Raise AccessRefused unless the user has a permission for the exchange or queue."""
        may = self.services.users.may
        if not any(may(self.user, self.vhost_name, operation, resource) for operation in OPERATIONS):
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
        if not users.may(self.user, self.vhost_name, operation, resource):
            raise AccessRefused(
                f"{operation} access to '{resource or 'amq.default'}' in vhost '{self.vhost_name}'"
                f" refused for user '{self.user}'"
            )
        if len(self.allowed) >= MAX_ROUTES:
            self.allowed.clear()
        self.allowed.add(key)
