"""Tickets: logins of the broker at itself, for its shovels, with the rights of a user and without a password.

A ticket is the initial response of a SASL mechanism that is never offered. It is valid for a short time, in all processes
of one broker: they share the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Final

import msgspec

from leveret.security.accounts import ExportedAccount
from leveret.security.tags import ADMINISTRATOR, IMPERSONATOR

MECHANISM: Final = "LEVERET-TICKET"
# Seconds for which a ticket is valid.
VALIDITY: Final = 60.0
# An operator of the broker, who may do everything.
OPERATOR: Final = ExportedAccount(
    "leveret-operator",
    scopes=("configure:*/*", "write:*/*", "read:*/*", f"tag:{ADMINISTRATOR}", f"tag:{IMPERSONATOR}"),
)
_SIZE: Final = 32
# Keeps tickets apart from everything else that is derived from the same secret.
_PERSON: Final = b"leveret ticket"


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    expires_at: float
    user: str | None


def issue(secret: bytes, user: str | None) -> bytes:
    """Return a ticket for a user of the store, or for an operator if None, signed with the secret of the broker."""
    content = msgspec.msgpack.encode(_Ticket(time.time() + VALIDITY, user))
    return _sign(secret, content) + content


def open_ticket(secret: bytes, ticket: bytes) -> ExportedAccount | None:
    """Return the account of a ticket, who may have been deleted; None if the ticket is invalid or has expired."""
    signature, content = ticket[:_SIZE], ticket[_SIZE:]
    if not hmac.compare_digest(signature, _sign(secret, content)):
        return None
    found = msgspec.msgpack.decode(content, type=_Ticket)
    if time.time() >= found.expires_at:
        return None
    return OPERATOR if found.user is None else ExportedAccount(found.user)


def _sign(secret: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, key=secret, person=_PERSON, digest_size=_SIZE).digest()
