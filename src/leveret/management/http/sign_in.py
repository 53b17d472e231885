"""Credentials of requests: passwords, tokens, and cookies of sessions."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from leveret.management.http.attempts import Attempts
from leveret.management.http.control import Control, Row
from leveret.management.http.errors import NOT_AUTHORISED, BrokerRefused, HttpError, bad_request, not_authorised
from leveret.management.http.identity import MANAGEMENT_TAGS, Identity
from leveret.management.http.sessions import Session, Sessions
from leveret.management.http.settings import HttpSettings
from leveret.security.roles import Grant, Grants

if TYPE_CHECKING:
    from leveret.security.oauth.refreshing import Refresher

logger = logging.getLogger("leveret.http")

# Bytes of the cookies of a request in which that of the session is looked for.
MAX_COOKIES: Final = 4096
_REALM: Final = ("www-authenticate", 'Basic realm="RabbitMQ Management"')
# The console sends this header. Browsers would ask for a password if an answer had the header above.
CONSOLE_HEADER: Final = "x-leveret-console"
# Seconds for which credentials that were accepted are exempt from the limits on logins, and their maximum number.
_ACCEPTED_SECONDS: Final = 600.0
_MAX_ACCEPTED: Final = 4096
# Maximum number of concurrent renewals of tokens, and of revocations; seconds until the next attempt of a renewal if the
# provider does not answer.
_MAX_RENEWALS: Final = 8
_RETRY_RENEWAL: Final = 10.0
# Maximum number of refresh tokens that wait for their revocation. Those of further sessions are valid until they expire.
_MAX_REVOCATIONS: Final = 1000


class SignIn:
    """Verifies the credentials of requests. The broker checks passwords and tokens, and caches the checks.

    Args:
        settings: The settings of the process.
        control: The calls of the broker.
        logins: The same for logins with unknown credentials, so that they do not delay other calls.
    """

    def __init__(self, settings: HttpSettings, control: Control, logins: Control) -> None:
        self._settings = settings
        self._control = control
        self._logins = logins
        self._attempts = Attempts(settings.refused_logins)
        self._sessions = Sessions(settings.session_timeout, settings.session_idle_timeout)
        # Digests of credentials that were accepted, with the time until which they are exempt from limits.
        self._accepted: OrderedDict[bytes, float] = OrderedDict()
        self._key = secrets.token_bytes(32)
        # Checks in progress by the digest of the credentials and the address.
        self._checks: dict[tuple[bytes, str], asyncio.Task[Row]] = {}
        # The providers that renew tokens, by issuer; renewals in progress by the ids of sessions.
        self._clients = {client.issuer: client for client in settings.oauth_clients}
        self._refreshers: dict[str, Refresher] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}
        self._renewing = asyncio.Semaphore(_MAX_RENEWALS)
        self._revocations: set[asyncio.Task[None]] = set()
        self._revoking = asyncio.Semaphore(_MAX_RENEWALS)
        # Cookies do not depend on the port, and several brokers may run on one machine.
        port = settings.listeners[0].rstrip("/").removesuffix(settings.path_prefix).rpartition(":")[2]
        self._cookie = f"leveret_session_{port}"
        self._attributes = f"; Path={settings.path_prefix or '/'}; HttpOnly; SameSite=Strict"
        if settings.tls_cert is not None:
            self._attributes += "; Secure"

    async def identify(self, headers: Mapping[str, str], address: str, changes: bool) -> Identity:
        """Return the user of a request.

        Args:
            headers: The headers of the request.
            address: The IP address of the client.
            changes: Whether the request changes something.

        Raises:
            HttpError: 401, the credentials are missing or wrong, or the user has no tag for management; 429, the address
                has too many logins.
        """
        try:
            if "authorization" in headers:
                name, password = self._credentials(headers["authorization"])
                return identity_of(await self._authenticate(name, password, address), password)
            if not self._cookie_of(headers):
                if len(headers.get("cookie", "")) > MAX_COOKIES:
                    raise _refused(
                        f"no session in the first {MAX_COOKIES} bytes of the cookies;"
                        " remove those of other applications on this host"
                    )
                raise HttpError(401)
            if changes and CONSOLE_HEADER not in headers:
                # Another page of the same host cannot send the header without permission.
                raise _refused(f"a change in a session requires the header '{CONSOLE_HEADER}'")
            identity = await self.find(headers, address)
            if identity is None:
                raise _refused("the session has ended; sign in again")
            return identity
        except HttpError as error:
            if error.status == 401 and error.error != NOT_AUTHORISED and self._asks_for_password(headers):
                error.headers = (_REALM,)
            raise

    def _asks_for_password(self, headers: Mapping[str, str]) -> bool:
        """Return whether an answer without credentials may have a browser ask for them."""
        return self._settings.basic_auth and CONSOLE_HEADER not in headers

    async def find(self, headers: Mapping[str, str], address: str) -> Identity | None:
        """Return the user of the session of a request; None if there is none or it has ended."""
        value = self._cookie_of(headers)
        session = self._sessions.find(value) if value else None
        if session is None:
            return None
        await self._renew_if_due(session)
        try:
            return identity_of(await self._resume(session, address), session.token)
        except BrokerRefused:
            self._revoke_later(self._sessions.close(value))
            return None

    async def _resume(self, session: Session, address: str) -> Row:
        """Return the user of a session. Raises `BrokerRefused` if its password or token is not accepted any more."""
        if session.token:
            login = {"name": "", "password": session.token, "address": address}
            found: Row = await self._control.call("users.authenticate", login)
        else:
            resumed = {"name": session.name, "credential": session.credential, "address": address}
            found = await self._control.call("users.resume", resumed)
        return found

    async def _renew_if_due(self, session: Session) -> None:
        """Renew the token of a session if it expires soon. Requests of the session wait for one renewal."""
        if not self._sessions.is_due(session):
            return
        task = self._renewals.get(session.id)
        if task is None:
            task = self._renewals[session.id] = asyncio.get_running_loop().create_task(self._renew(session))
            task.add_done_callback(lambda _: self._renewals.pop(session.id, None))
        await asyncio.shield(task)

    async def _renew(self, session: Session) -> None:
        from leveret.security.oauth.refreshing import ProviderUnavailable, RefreshRefused

        async with self._renewing:
            try:
                tokens = await self._refresher(session.issuer).refresh(session.refresh_token)
                login = {"name": "", "password": tokens.access_token, "address": session.address}
                user: Row = await self._control.call("users.authenticate", login)
            except ProviderUnavailable as error:
                logger.warning("cannot renew the token of user '%s': %s", session.name, error)
                self._sessions.postpone(session, _RETRY_RENEWAL)
            except (RefreshRefused, BrokerRefused) as error:
                logger.info("the session of user '%s' ends with its token: %s", session.name, error)
                session.refresh_token, session.renew_at = "", inf
            else:
                if user["name"] != session.name:
                    logger.warning("the renewed token of user '%s' is for another user", session.name)
                    session.refresh_token, session.renew_at = "", inf
                    return
                lifetime = user["expires_at"] - time.time()
                refresh_token = tokens.refresh_token or session.refresh_token
                self._sessions.renewed(session, tokens.access_token, lifetime, refresh_token)

    def _refresher(self, issuer: str) -> Refresher:
        if issuer not in self._refreshers:
            from leveret.security.oauth.refreshing import Refresher  # of the extra leveret[oauth]

            client = self._clients[issuer]
            self._refreshers[issuer] = Refresher(issuer, client.client_id, client.ca)
        return self._refreshers[issuer]

    def _revoke_later(self, session: Session | None) -> None:
        """Revoke the refresh token of a session that has ended. The answer to its end does not wait for the provider."""
        if session is None or not session.refresh_token or len(self._revocations) >= _MAX_REVOCATIONS:
            return
        task = asyncio.get_running_loop().create_task(self._revoke(session))
        self._revocations.add(task)
        task.add_done_callback(self._revocations.discard)

    async def _revoke(self, session: Session) -> None:
        from leveret.security.oauth.refreshing import ProviderUnavailable

        renewal = self._renewals.get(session.id)
        if renewal is not None:
            await asyncio.wait([renewal])  # which replaces the refresh token
        if not session.refresh_token:
            return
        async with self._revoking:
            try:
                if await self._refresher(session.issuer).revoke(session.refresh_token):
                    logger.info("revoked the refresh token of user '%s'", session.name)
            except ProviderUnavailable as error:
                logger.warning("cannot revoke the refresh token of user '%s': %s", session.name, error)

    async def _authenticate(self, name: str, password: str, address: str) -> Row:
        """Check a password or token. Raises `HttpError`."""
        login = {"name": name, "password": password, "address": address}
        key = hmac.digest(self._key, f"{len(name)}:{name}{password}".encode("utf-8", "surrogateescape"), hashlib.sha256)
        until = self._accepted.pop(key, 0.0)
        try:
            if until > time.monotonic():
                found: Row = await self._control.call("users.authenticate", login)
            else:
                found = await self._share_check(key, login)
        except BrokerRefused:
            raise _refused("Login failed") from None
        self._accepted[key] = time.monotonic() + _ACCEPTED_SECONDS
        if len(self._accepted) > _MAX_ACCEPTED:
            self._accepted.popitem(last=False)
        return found

    async def _share_check(self, key: bytes, login: Row) -> Row:
        """Check credentials. Requests with the same ones from the same address share one check."""
        shared = (key, login["address"])
        check = self._checks.get(shared)
        if check is None:
            check = self._checks[shared] = asyncio.get_running_loop().create_task(self._check(login))
            check.add_done_callback(lambda _: self._checks.pop(shared))
        return await asyncio.shield(check)

    async def _check(self, login: Row) -> Row:
        with self._attempts.attempt(login["address"]):
            try:
                found: Row = await self._logins.call("users.authenticate", login)
            except BrokerRefused:
                self._attempts.refused(login["address"])
                raise
        return found

    def _credentials(self, authorization: str) -> tuple[str, str]:
        """Return the name and the password of Basic authentication, or no name and a bearer token. Raises `HttpError`."""
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return "", encoded.strip()
        if scheme.lower() != "basic":
            raise HttpError(401)
        if not self._settings.basic_auth:
            raise _refused("Basic authentication is off; the setting is management.basic_auth")
        return read_basic(encoded.strip())

    # Sessions

    def _cookie_of(self, headers: Mapping[str, str]) -> str:
        """Return the value of the session's cookie, or ""."""
        return read_cookie(headers.get("cookie", ""), self._cookie)

    async def open(
        self, name: str, password: str, address: str, *, refresh_token: str = "", agent: str = ""
    ) -> tuple[Identity, tuple[str, str]]:
        """Open a session for a user, and return the header that sets its cookie.

        Args:
            name: The name of the user; "" for a token.
            password: The password or token.
            address: The IP address of the client.
            refresh_token: What renews the token.
            agent: The name of the client.

        Raises:
            HttpError: As `identify`.
        """
        if name and not self._settings.basic_auth:
            raise _refused("sign-in by password is off; the setting is management.basic_auth")
        user = await self._authenticate(name, password, address)
        identity = identity_of(user, password)
        issuer = _issuer_of(password) if refresh_token else ""
        if refresh_token and issuer not in self._clients:
            raise bad_request(
                f"'refresh_token' of {issuer}, which is not on the sign-in page; the setting is management.oauth_providers"
            )
        value = self._sessions.open(
            identity.name,
            credential=user["credential"],
            token=identity.token,
            lifetime=user["expires_at"] - time.time() if user["expires_at"] else inf,
            refresh_token=refresh_token,
            issuer=issuer,
            address=address,
            agent=agent,
        )
        return identity, ("set-cookie", f"{self._cookie}={value}{self._attributes}")

    def close(self, headers: Mapping[str, str]) -> tuple[str, str]:
        """End the session of a request, if there is one, and return the header that removes its cookie."""
        self._revoke_later(self._sessions.close(self._cookie_of(headers)))
        return "set-cookie", f"{self._cookie}=; Max-Age=0{self._attributes}"

    def list_own(self, headers: Mapping[str, str], name: str) -> list[Row]:
        """Return the sessions of a user, the ones used last first."""
        return [{key: value for key, value in row.items() if key != "user"} for row in self._list(headers, name)]

    def list_all(self, headers: Mapping[str, str]) -> list[Row]:
        """Return the sessions of all users with the names of these, the ones used last first."""
        return self._list(headers, None)

    def _list(self, headers: Mapping[str, str], name: str | None) -> list[Row]:
        current = self._sessions.find(self._cookie_of(headers))
        now = time.time()
        found = [
            {
                "id": session.id,
                "user": session.name,
                "current": session is current,
                "address": session.address,
                "user_agent": session.agent,
                "opened_at": round(1000 * (now - opened)),
                "used_at": round(1000 * (now - used)),
                "expires_at": round(1000 * (now + left)),
            }
            for session, opened, used, left in self._sessions.of_user(name)
        ]
        return found[::-1]

    def end(self, id: str) -> str:
        """End a session of any user, and return the name of the user; "" if there is no such session."""
        for session, *_ in self._sessions.of_user(None):
            if session.id == id:
                self._end(session.name, {id})
                return session.name
        return ""

    def end_own(self, headers: Mapping[str, str], name: str, id: str = "") -> int:
        """End a session of a user, or all others than that of the request, and return their number."""
        if id:
            return self._end(name, {id})
        others = {row["id"] for row in self.list_own(headers, name) if not row["current"]}
        return self._end(name, others)

    def _end(self, name: str, ids: set[str]) -> int:
        """End sessions of a user, and return their number."""
        ended = self._sessions.end(name, ids)
        for session in ended:
            self._revoke_later(session)
        return len(ended)


def read_basic(encoded: str) -> tuple[str, str]:
    """Return the name and the password of Basic authentication. Raises `HttpError` (401)."""
    try:
        name, separator, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError):
        raise HttpError(401) from None
    if not separator:
        raise HttpError(401)
    return name, password


def read_cookie(header: str, name: str) -> str:
    """Return the value of a cookie in the first `MAX_COOKIES` bytes of a header, or "" if there is none."""
    # Not by http.cookies, whose time is quadratic before Python 3.11.10 and 3.12.6 (CVE-2024-7592).
    for cookie in header[:MAX_COOKIES].split(";"):
        found, _, value = cookie.strip().partition("=")
        if found == name:
            return value
    return ""


def identity_of(user: Row, password: str) -> Identity:
    """Return the identity of a user who has logged in. Raises `HttpError` (401) without a tag or role for management."""
    tags = frozenset(user["tags"])
    grants = Grants(msgspec.convert(user["grants"], list[Grant]))
    if tags.isdisjoint(MANAGEMENT_TAGS) and not grants:
        raise not_authorised("Not management user")
    return Identity(user["name"], tags, frozenset(user["vhosts"]), password if user["is_token"] else "", grants)


def _issuer_of(token: str) -> str:
    """Return the provider that a token names, which the broker has verified."""
    payload = token.split(".")[1]
    claims: Row = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims.get("iss", ""))


def _refused(reason: str) -> HttpError:
    return HttpError(401, "not_authorized", reason)
