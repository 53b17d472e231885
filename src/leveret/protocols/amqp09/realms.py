"""Realms and access tickets (0-9 class access).

A realm is a set of exchanges and queues of a vhost, with the rights of its users. A client requests a ticket for a realm,
which is valid on one channel. A channel has at most one ticket per realm; a new one replaces it. A vhost without realms
grants every ticket, because old clients request one before they do anything else.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import AccessRefused, NotAllowed
from leveret.security.patterns import matches

PASSIVE: Final = "passive"
ACTIVE: Final = "active"
WRITE: Final = "write"
READ: Final = "read"
EXCLUSIVE: Final = "exclusive"
RIGHTS: Final = (EXCLUSIVE, PASSIVE, ACTIVE, WRITE, READ)
# Matches every user.
ANY_USER: Final = "*"
LAST_TICKET: Final = 0xFFFF


class Realm:
    """A configured realm.

    Attributes:
        resources: pattern for the full names of exchanges and queues.
        rights: rights by user.
    """

    def __init__(self, name: str, resources: str, rights: dict[str, frozenset[str]]) -> None:
        self.name = name
        self.resources = resources
        self.rights = rights

    def rights_of(self, user: str) -> frozenset[str]:
        return self.rights.get(user, frozenset()) | self.rights.get(ANY_USER, frozenset())


class Ticket:
    """The access of one channel to one realm. `realm` is None if the realm is not configured."""

    def __init__(self, number: int, name: str, realm: Realm | None, rights: frozenset[str]) -> None:
        self.number = number
        self.name = name
        self.realm = realm
        self.rights = rights


class Realms:
    """The realms of one vhost.

    Attributes:
        configured: realms by name. If there are none, every ticket is granted, and none is required.
        active: tickets by realm, then by channel.
    """

    def __init__(self, configured: dict[str, Realm]) -> None:
        self.configured = configured
        self.active: dict[str, dict[object, Ticket]] = {}

    def leave(self, name: str, channel: object) -> None:
        """Remove a channel's ticket for a realm."""
        tickets = self.active.get(name)
        if tickets is not None:
            tickets.pop(channel, None)
            if not tickets:
                del self.active[name]


class Tickets:
    """The tickets of one channel, by number. `siblings` lists the tickets of all channels of the connection."""

    def __init__(self, realms: Realms, user: str, channel: object, siblings: list[Tickets]) -> None:
        self.realms = realms
        self.user = user
        self.channel = channel
        self.siblings = siblings
        siblings.append(self)
        self.by_number: dict[int, Ticket] = {}
        self._last = 0

    @property
    def required(self) -> bool:
        """Whether methods need a ticket other than 0."""
        return bool(self.realms.configured)

    def request(self, name: str, wanted: frozenset[str]) -> Ticket:
        """Grant a ticket for a realm. It replaces the channel's previous one.

        Raises:
            AccessRefused: the user does not have these rights, the realm does not exist (with the same text), or exclusive
                access conflicts with another channel.
        """
        realms = self.realms
        realm = realms.configured.get(name)
        if realms.configured and (realm is None or not wanted <= realm.rights_of(self.user)):
            raise AccessRefused(f"access to realm '{name}' refused for user '{self.user}'", closes_connection=True)
        others = [ticket for channel, ticket in realms.active.get(name, {}).items() if channel is not self.channel]
        if others and (EXCLUSIVE in wanted or any(EXCLUSIVE in ticket.rights for ticket in others)):
            raise AccessRefused(
                f"realm '{name}' is in use by other channels, which excludes exclusive access", closes_connection=True
            )
        before = realms.active.get(name, {}).get(self.channel)
        if before is not None:
            self.by_number.pop(before.number, None)
        ticket = Ticket(self._new_number(), name, realm, wanted)
        self.by_number[ticket.number] = ticket
        realms.active.setdefault(name, {})[self.channel] = ticket
        return ticket

    def _new_number(self) -> int:
        """Return a number that is unused on the whole connection, so that tickets of other channels are recognized."""
        number = max((tickets._last for tickets in self.siblings), default=0)
        for _ in range(LAST_TICKET):
            number = number % LAST_TICKET + 1
            if not any(number in tickets.by_number for tickets in self.siblings):
                self._last = number
                return number
        raise NotAllowed(f"the connection already has {LAST_TICKET} access tickets, the maximum")

    def check(self, number: int, right: str, resource: str) -> None:
        """Check that a ticket grants a right to a queue or exchange.

        Raises:
            AccessRefused: it does not.
            NotAllowed: it is the ticket of another channel.
        """
        if number == 0:
            if self.realms.configured:
                raise AccessRefused(
                    f"{right} access to '{resource}' requires a ticket: the vhost has realms, send access.request first"
                )
            return
        ticket = self.by_number.get(number)
        if ticket is None:
            if any(number in tickets.by_number for tickets in self.siblings):
                raise NotAllowed(f"ticket {number} was granted on another channel")
            raise AccessRefused(f"ticket {number} was not granted on this channel")
        realm = ticket.realm
        if realm is None:
            return  # the vhost has no realms
        if right not in ticket.rights:
            raise AccessRefused(f"ticket {number} for realm '{ticket.name}' does not grant {right} access")
        if not matches(realm.resources, resource, True):
            raise AccessRefused(f"'{resource}' is not in realm '{ticket.name}'")

    def move(self, siblings: list[Tickets]) -> None:
        """Move the tickets to the connection that resumes the channel."""
        self.siblings.remove(self)
        self.siblings = siblings
        siblings.append(self)

    def close(self) -> None:
        """Remove the tickets of a closed channel."""
        for ticket in self.by_number.values():
            self.realms.leave(ticket.name, self.channel)
        self.by_number.clear()
        if self in self.siblings:
            self.siblings.remove(self)
