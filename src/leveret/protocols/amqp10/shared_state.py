"""State shared by all AMQP 1.0 connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.protocols.amqp10.link.withheld_credit import WithheldCredit
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.amqp10.terminus.registry import TerminusRegistry
from leveret.protocols.amqp10.terminus.terminus import Key
from leveret.protocols.shared_state import SharedState

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.vhost import Vhost
    from leveret.protocols.amqp10.connection.exclusive_container import ContainerKey, ContainerMembership
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.services import Services
    from leveret.security.users import UserStore


class Amqp10State(SharedState):
    """Links, containers and termini.

    Attributes:
        links: attached links by identity.
        containers: memberships of connections in each container, by vhost, user and container-id.
        withheld_credit: links whose credit is withheld.
        termini: termini, which may outlive their links.
    """

    def __init__(self, services: Services, settings: Amqp10Settings | None = None) -> None:
        self.services = services
        self.settings = settings or Amqp10Settings()
        self.links: dict[Key, Link] = {}
        self.containers: dict[ContainerKey, dict[ContainerMembership, None]] = {}
        self.withheld_credit = WithheldCredit(services.broker.jobs)
        self.termini = TerminusRegistry(services.broker, self.settings)
        services.register(self)

    def recover(self, recovery: Recovery) -> None:
        self.termini.recover(recovery)

    def start(self, post: Callable[[Callable[[], None]], object]) -> None:
        self.termini.start()

    def is_ready(self) -> bool:
        return self.termini.is_ready()

    def users_changed(self, users: UserStore) -> None:
        self.termini.users_changed(users)

    def vhost_removed(self, vhost: Vhost) -> None:
        self.termini.vhost_removed(vhost.name)
