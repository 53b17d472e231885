"""Realms of AMQP 0-9: what a channel asks to be allowed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """What was asked of a realm (`access.request`). A channel that was granted it has a ticket for it, which its methods
    carry; after a lost connection it is asked for again."""

    realm: str
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False

    @property
    def rights(self) -> dict[str, bool]:
        """Those of `access.request`, by name."""
        return {"exclusive": self.exclusive, "passive": self.passive, "active": self.active, "write": self.write,
                "read": self.read}
