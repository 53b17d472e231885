"""Accounts that tokens stand for."""

from __future__ import annotations

from leveret.security.accounts import ExportedAccount
from leveret.security.oauth.scopes import Scopes
from leveret.security.users import UserLimits


class TokenAccount:
    """The account of a token. It has no limits of its own, and is not stored."""

    is_token = True
    limits = UserLimits()

    def __init__(self, name: str, scopes: Scopes, expires_at: float) -> None:
        self.name = name
        self.expires_at = expires_at
        self._scopes = scopes

    @property
    def tags(self) -> tuple[str, ...]:
        return self._scopes.tags

    def exists(self) -> bool:
        return True

    def may(self, vhost: str, operation: str, resource: str) -> bool:
        return self._scopes.allow(vhost, operation, resource)

    def may_topic(self, vhost: str, operation: str, exchange: str, routing_key: str, client_id: str = "") -> bool:
        return self._scopes.allow_topic(vhost, operation, exchange, routing_key)

    def may_every_topic(self, vhost: str, exchange: str) -> bool:
        # A scope may name routing keys.
        return False

    def may_open(self, vhost: str) -> bool:
        return self._scopes.open(vhost)

    def has_any_permission(self, vhost: str) -> bool:
        return self._scopes.open(vhost)

    def export(self) -> ExportedAccount:
        scopes = self._scopes
        # Half a surrogate pair, which JSON can contain, is in no name that a client can use, and cannot be encoded.
        variables = {name: value for name, value in scopes.variables.items() if _is_unicode(name + value)}
        return ExportedAccount(self.name, self.expires_at, tuple(filter(_is_unicode, scopes.scopes)), variables)


def _is_unicode(text: str) -> bool:
    return text.encode(errors="replace").decode() == text
