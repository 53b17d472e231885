"""Tags of users, and the roles in management that they grant, as in RabbitMQ, or restrict.

Any other tag is stored without effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MANAGEMENT: Final = "management"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"
ADMINISTRATOR: Final = "administrator"
# They take rights away from the roles of other tags: to change anything, and to read payloads of messages.
READ_ONLY: Final = "read-only"
NO_PAYLOADS: Final = "no-payloads"
# Not a role in management: the user may publish with the `user-id` of other users.
IMPERSONATOR: Final = "impersonator"

# The roles that a tag grants.
_ROLES: Final = {
    MANAGEMENT: frozenset({MANAGEMENT}),
    POLICYMAKER: frozenset({POLICYMAKER, MANAGEMENT}),
    MONITORING: frozenset({MONITORING, MANAGEMENT}),
    ADMINISTRATOR: frozenset({ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT}),
}


def roles_of(tags: Iterable[str]) -> frozenset[str]:
    """Return the roles that the tags grant: `administrator` grants all of them, every role grants `management`."""
    return frozenset().union(*[_ROLES.get(tag, frozenset()) for tag in tags])


def parse_tags(tags: str | Iterable[str]) -> tuple[str, ...]:
    """Return the tags of a list, or of a text with commas, without spaces around them, empty ones and duplicates."""
    found = tags.split(",") if isinstance(tags, str) else tags
    return tuple(dict.fromkeys(tag.strip() for tag in found if tag.strip()))
