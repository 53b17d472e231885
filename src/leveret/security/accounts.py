"""Accounts: the user of a connection or request, and what it may do.

A stored user is looked up at each check, so that changes apply at once. The rights of a token are those of its scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from leveret.security.users import UserLimits, UserStore


class TokenRefused(Exception):
    """A token that is not accepted. The text is for the log."""


class ExportedAccount(msgspec.Struct, frozen=True):
    """An account as another process of the broker gets it.

    Attributes:
        name: The name of the user.
        expires_at: As in `Account`.
        scopes: The scopes of a token; None for a user of the store, whose rights the other process knows.
        variables: The values of variables in the scopes.
    """

    name: str
    expires_at: float = 0.0
    scopes: tuple[str, ...] | None = None
    variables: Mapping[str, str] = {}


class Account(Protocol):
    """A user who has logged in.

    Attributes:
        name: The name of the user.
        expires_at: Seconds of Unix time at which the login ends; 0 for never.
        is_token: Whether the rights come from a token, which can be renewed.
    """

    @property
    def name(self) -> str: ...

    @property
    def expires_at(self) -> float: ...

    @property
    def is_token(self) -> bool: ...

    @property
    def tags(self) -> tuple[str, ...]: ...

    @property
    def limits(self) -> UserLimits: ...

    def exists(self) -> bool:
        """Return whether the user has not been deleted."""

    def may(self, vhost: str, operation: str, resource: str) -> bool:
        """Return whether the user may configure, write or read an exchange or queue; "" is the default exchange."""

    def may_topic(self, vhost: str, operation: str, exchange: str, routing_key: str, client_id: str = "") -> bool:
        """Return whether the user may write or read a routing key of a topic exchange."""

    def may_every_topic(self, vhost: str, exchange: str) -> bool:
        """Return whether the user may write and read every routing key of a topic exchange."""

    def may_open(self, vhost: str) -> bool:
        """Return whether the user may use the vhost."""

    def has_any_permission(self, vhost: str) -> bool:
        """Return whether the user may do anything in the vhost."""

    def export(self) -> ExportedAccount:
        """Return the account for another process, which makes it an account again with `import_account`."""


class UserAccount:
    """The account of a user of the store."""

    __slots__ = ("_users", "name")

    expires_at = 0.0
    is_token = False

    def __init__(self, name: str, users: UserStore) -> None:
        self.name = name
        self._users = users

    @property
    def tags(self) -> tuple[str, ...]:
        user = self._users.get(self.name)
        return () if user is None else user.tags

    @property
    def limits(self) -> UserLimits:
        user = self._users.get(self.name)
        return UserLimits() if user is None else user.limits

    def exists(self) -> bool:
        return self._users.get(self.name) is not None

    def may(self, vhost: str, operation: str, resource: str) -> bool:
        return self._users.may(self.name, vhost, operation, resource)

    def may_topic(self, vhost: str, operation: str, exchange: str, routing_key: str, client_id: str = "") -> bool:
        return self._users.may_topic(self.name, vhost, operation, exchange, routing_key, client_id)

    def may_every_topic(self, vhost: str, exchange: str) -> bool:
        return self._users.may_every_topic(self.name, vhost, exchange)

    def may_open(self, vhost: str) -> bool:
        return self._users.may_open(self.name, vhost)

    def has_any_permission(self, vhost: str) -> bool:
        return self._users.has_any_permission(self.name, vhost)

    def export(self) -> ExportedAccount:
        return ExportedAccount(self.name)


def import_account(exported: ExportedAccount, users: UserStore) -> Account:
    """Return the account that another process has exported. `users` are the users of this process."""
    if exported.scopes is None:
        return UserAccount(exported.name, users)
    # Imported here, because few brokers have logins by token.
    from leveret.security.oauth.account import TokenAccount
    from leveret.security.oauth.scopes import Scopes

    return TokenAccount(exported.name, Scopes(exported.scopes, exported.variables), exported.expires_at)


class TokenLogins(Protocol):
    """Logins by token."""

    def is_token(self, password: bytes) -> bool:
        """Return whether a password has the form of a token."""

    def known(self, token: bytes) -> Account | TokenRefused | None:
        """Return the account of a token that was verified before; None if it must be verified."""

    def submit(self, token: bytes, host: str, done: Callable[[Account | TokenRefused], None]) -> None:
        """Verify a token of a client with this address; "" is this machine. `done` is called once, in a later turn."""
