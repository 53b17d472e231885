"""Realms and access tickets (0-9 class access).

A realm is a set of exchanges and queues of a vhost, with what users may do there. A client asks for a ticket onto a realm,
which holds on one channel; a channel has one ticket for each realm, the newest. A vhost without configured realms grants
every ticket that is asked for, onto whatever realm, for old clients ask for one before they do anything.
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
# In the place of a user: all of them.
EVERYBODY: Final = "*"
LAST_TICKET: Final = 0xFFFF


class Realm:
    """A configured realm.

    resources  a pattern of the whole names of exchanges and queues
    rights     those of each user
    """

    def __init__(self, name: str, resources: str, rights: dict[str, frozenset[str]]) -> None:
        self.name = name
        self.resources = resources
        self.rights = rights

    def rights_of(self, user: str) -> frozenset[str]:
        return self.rights.get(user, frozenset()) | self.rights.get(EVERYBODY, frozenset())


class Ticket:
    """The access of one channel to one realm. `realm` is None for a realm that is not configured."""

    def __init__(self, number: int, name: str, realm: Realm | None, rights: frozenset[str]) -> None:
        self.number = number
        self.name = name
        self.realm = realm
        self.rights = rights


class Realms:
    """The realms of one vhost, and who has tickets onto them: by realm, then by channel.

    configured  by name; none means that tickets are granted freely, and that 0 will do
    """

    def __init__(self, configured: dict[str, Realm]) -> None:
        self.configured = configured
        self.active: dict[str, dict[object, Ticket]] = {}

    def leave(self, name: str, channel: object) -> None:
        """A channel's ticket onto a realm ends."""
        tickets = self.active.get(name)
        if tickets is not None:
            tickets.pop(channel, None)
            if not tickets:
                del self.active[name]


class Tickets:
    """The tickets of one channel, by number. `siblings` are those of all channels of the connection."""

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
        """Whether ticket 0 does not do."""
        return bool(self.realms.configured)

    def request(self, name: str, wanted: frozenset[str]) -> Ticket:
        """A ticket onto a realm, in the place of the channel's one before. AccessRefused, in the same words, for realms
        that do not exist and for those that the user may not enter so."""
        realms = self.realms
        realm = realms.configured.get(name)
        if realms.configured and (realm is None or not wanted <= realm.rights_of(self.user)):
            raise AccessRefused(f"access to realm '{name}' refused for user '{self.user}'", closes_connection=True)
        others = [ticket for channel, ticket in realms.active.get(name, {}).items() if channel is not self.channel]
        if others and (EXCLUSIVE in wanted or any(EXCLUSIVE in ticket.rights for ticket in others)):
            raise AccessRefused(
                f"realm '{name}' is in use by other channels, exclusive access to it cannot be had", closes_connection=True
            )
        before = realms.active.get(name, {}).get(self.channel)
        if before is not None:
            self.by_number.pop(before.number, None)
        ticket = Ticket(self._new_number(), name, realm, wanted)
        self.by_number[ticket.number] = ticket
        realms.active.setdefault(name, {})[self.channel] = ticket
        return ticket

    def _new_number(self) -> int:
        """A number that no channel of the connection has: so that another one's ticket is known as such."""
        number = max((tickets._last for tickets in self.siblings), default=0)
        for _ in range(LAST_TICKET):
            number = number % LAST_TICKET + 1
            if not any(number in tickets.by_number for tickets in self.siblings):
                self._last = number
                return number
        raise NotAllowed(f"the connection has {LAST_TICKET} access tickets, the maximum")

    def check(self, number: int, right: str, resource: str) -> None:
        """Raise unless the ticket gives this right onto a queue or exchange: AccessRefused, or NotAllowed where it is
        another channel's."""
        if number == 0:
            if self.realms.configured:
                raise AccessRefused(
                    f"{right} access to '{resource}' needs a ticket: vhosts with realms take access.request first"
                )
            return
        ticket = self.by_number.get(number)
        if ticket is None:
            if any(number in tickets.by_number for tickets in self.siblings):
                raise NotAllowed(f"ticket {number} was granted on another channel")
            raise AccessRefused(f"ticket {number} was not granted on this channel")
        realm = ticket.realm
        if realm is None:
            return  # of a vhost without realms, which looks at nothing but whose ticket it is
        if right not in ticket.rights:
            raise AccessRefused(f"ticket {number} onto realm '{ticket.name}' does not give {right} access")
        if not matches(realm.resources, resource, True):
            raise AccessRefused(f"'{resource}' is not in realm '{ticket.name}'")

    def move(self, siblings: list[Tickets]) -> None:
        """Resume as a channel of another connection."""
        self.siblings.remove(self)
        self.siblings = siblings
        siblings.append(self)

    def close(self) -> None:
        """The channel is gone, and its tickets with it."""
        for ticket in self.by_number.values():
            self.realms.leave(ticket.name, self.channel)
        self.by_number.clear()
        if self in self.siblings:
            self.siblings.remove(self)
