"""Access to realms of AMQP 0-9."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """An `access.request` for a realm.

    A channel with granted access has a ticket, which its methods carry. Recovery requests the access again.
    """

    realm: str
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False

    @property
    def rights(self) -> dict[str, bool]:
        """The fields of `access.request`, by name."""
        return {
            "exclusive": self.exclusive,
            "passive": self.passive,
            "active": self.active,
            "write": self.write,
            "read": self.read,
        }
