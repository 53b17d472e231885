"""State shared by all AMQP 0-9 connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.protocols.amqp09.connection.interrupted import Interrupted
from leveret.protocols.amqp09.realms import Realms
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp09.tunnels import Tunnels
from leveret.protocols.shared_state import SharedState

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.protocols.services import Services
    from leveret.security.users import UserStore


class Amqp09State(SharedState):
    """Channels that can be resumed, tunnel handlers, and realms by vhost."""

    def __init__(self, services: Services, settings: Amqp09Settings | None = None) -> None:
        self.services = services
        self.settings = settings or Amqp09Settings()
        self.interrupted = Interrupted()
        self.tunnels = Tunnels()
        self.realms: dict[str, Realms] = {}
        services.register(self)

    def start(self, post: Callable[[Callable[[], None]], object]) -> None:
        self.tunnels.start(post)

    def users_changed(self, users: UserStore) -> None:
        self.interrupted.users_changed(users)

    def vhost_removed(self, vhost: Vhost) -> None:
        self.interrupted.vhost_removed(vhost)
