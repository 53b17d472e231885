"""What the sessions of all protocols have in their vhost: the user's permissions, and the routes of publishes."""

from __future__ import annotations

from typing import Any, Final

from leveret.broker.errors import AccessRefused
from leveret.broker.routing import Route
from leveret.protocols.ingress_throttle import IngressThrottle
from leveret.protocols.services import Services
from leveret.protocols.session import Session

MAX_ROUTES: Final = 4096
OPERATIONS: Final = ("configure", "write", "read")


class VhostSession(Session):
    """A session that publishes and consumes in one vhost. What was found is remembered until something changes.

    vhost       None before the client has chosen it
    routes      by canonical address; good for `topology` of the vhost and `generation` of the users
    allowed     operations and resources that the user may, as of `generation`
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
        """The route of a publish, with the user's permission to write to the exchange."""
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

    @property
    def session(self) -> object:
        """The owner of the exclusive queues that the session declares: itself."""
        return self

    def check_peer(self) -> None:
        self.ingress.check_peer()

    def check_any(self, resource: str) -> None:
        """Raise AccessRefused unless the user may do something with the exchange or queue."""
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
