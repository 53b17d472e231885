"""Logins by token: verification in the queue of password checks, a cache of verified tokens, and the provider's keys."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import threading
import time
from base64 import urlsafe_b64decode
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from leveret.config import ConfigError, OAuthConfig, OAuthProviderConfig
from leveret.node.executing import answer, run_in
from leveret.protocols.login_queue import LoginQueue, Waiter
from leveret.protocols.peer import Result
from leveret.security.accounts import Account, TokenRefused
from leveret.security.addresses import network_of
from leveret.security.oauth.account import TokenAccount
from leveret.security.oauth.keys import InvalidKeys, Keys, read_keys
from leveret.security.oauth.provider import Provider, is_protected
from leveret.security.oauth.tokens import (
    MAX_HEADER_SIZE,
    MAX_TOKEN_SIZE,
    TokenSettings,
    TokenVerifier,
    UnknownKey,
)
from leveret.security.users import UserStore

logger = logging.getLogger("leveret.oauth")

T = TypeVar("T")

# Maximum number of verified tokens that are remembered.
MAX_CACHED: Final = 1024
# Seconds between two attempts to fetch the keys, and the maximum numbers of logins that wait for one.
MIN_FETCH_INTERVAL: Final = 10.0
MAX_WAITING: Final = 32
MAX_WAITING_OF_ADDRESS: Final = MAX_WAITING // 2

_FORM: Final = re.compile(rb"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\Z")


class TokenProvider:
    """A provider: the checks of its tokens, and its keys. Methods are called on the event loop.

    Args:
        verifier: The checks of one token.
        keys: The keys of the configuration.
        published: What fetches the keys that the provider publishes; None if the configuration has them.
        lifetime: Seconds after which these are fetched again.

    Attributes:
        keys: The current keys.
        changed: Called when the keys have changed.
    """

    def __init__(self, verifier: TokenVerifier, keys: Keys, published: Provider | None, lifetime: float) -> None:
        self.keys = keys
        self.changed: Callable[[], None] = lambda: None
        self._verifier = verifier
        self._published = published
        self._lifetime = lifetime
        self._content = b""
        self._attempted = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        # Waiting logins by their networks.
        self._waiting: Counter[str] = Counter()

    def verify(self, token: bytes, keys: Keys) -> TokenAccount | TokenRefused:
        """Return the account of a token, or why it is refused. Runs in any thread."""
        try:
            return self._verifier.verify(token, keys)
        except TokenRefused as refused:
            return refused

    def _is_due(self, age: float) -> bool:
        return self._published is not None and time.monotonic() - self._attempted >= max(age, MIN_FETCH_INTERVAL)

    def refresh_if_due(self) -> None:
        """Fetch the keys if they are old, without waiting for them."""
        if self._is_due(self._lifetime):
            self.refresh()

    async def wait_for_keys(self, unknown: UnknownKey, host: str) -> None:
        """Wait for the provider's current keys. Raises `TokenRefused` if they were fetched recently, or too many wait."""
        if self._fetching is None and not self._is_due(0):
            raise unknown
        if self._waiting.total() >= MAX_WAITING:
            raise TokenRefused(f"{unknown}; {MAX_WAITING} logins already wait for the provider's keys, the maximum")
        network = network_of(host)
        if self._waiting[network] >= MAX_WAITING_OF_ADDRESS:
            raise TokenRefused(
                f"{unknown}; {MAX_WAITING_OF_ADDRESS} logins from address '{network}' already wait for the provider's keys,"
                " the maximum of an address"
            )
        self._waiting[network] += 1
        try:
            await asyncio.shield(self.refresh())
        finally:
            self._waiting[network] -= 1
            if not self._waiting[network]:
                del self._waiting[network]

    def refresh(self) -> asyncio.Task[None]:
        """Return the task that fetches the keys, which may run already."""
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        published = self._published
        try:
            if published is not None:
                content, keys = await _in_daemon(published.fetch)
                if content != self._content:
                    self._content, self.keys = content, keys
                    self.changed()
                    logger.info("fetched %d keys of the OAuth provider", len(keys))
        except InvalidKeys as error:
            logger.warning("cannot fetch the keys of the OAuth provider, %d known keys stay: %s", len(self.keys), error)
        except Exception:
            logger.exception("error while fetching the keys of the OAuth provider")
        self._attempted = time.monotonic()
        self._fetching = None


class TokenLogins:
    """Verifies tokens. All methods are called on the event loop; verification and fetching run in threads.

    Args:
        providers: The providers by issuer; a single one need not have an issuer.
        users: The stored users, whose names tokens may not have.
        queue: The queue of password checks.
        executor: The threads for verification.
    """

    def __init__(
        self, providers: Mapping[str, TokenProvider], users: UserStore, queue: LoginQueue, executor: Executor
    ) -> None:
        self._providers = providers
        self._users = users
        self._queue = queue
        self._executor = executor
        # Verified tokens by their digest.
        self._accounts: OrderedDict[bytes, TokenAccount] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        for provider in providers.values():
            provider.changed = self._accounts.clear

    def start(self) -> None:
        """Fetch the keys, so that the first login need not wait for them."""
        for provider in self._providers.values():
            provider.refresh()

    def is_token(self, password: bytes) -> bool:
        """Return whether a password has the form of a token: three parts, the first of them a header with an algorithm."""
        found = _FORM.match(password)
        if found is None or len(found[1]) > MAX_HEADER_SIZE:
            return False
        header = _part(found[1])
        return isinstance(header, dict) and "alg" in header

    def known(self, token: bytes) -> Account | TokenRefused | None:
        """Return the account of a token that was verified before; None if it must be verified."""
        account = self._cached(_digest(token))
        return None if account is None else self._admitted(account)

    def submit(self, token: bytes, host: str, done: Callable[[Account | TokenRefused], None]) -> None:
        """Verify a token, and call `done` with its account or the reason why it is refused."""
        task = asyncio.get_running_loop().create_task(self._submit(token, host, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, token: bytes, host: str, done: Callable[[Account | TokenRefused], None]) -> None:
        try:
            outcome: Account | TokenRefused = await self.authenticate(token, host)
        except TokenRefused as refused:
            outcome = refused
        done(outcome)

    async def authenticate(self, token: bytes, host: str) -> Account:
        """Return the account of a token. Raises `TokenRefused`."""
        for provider in self._providers.values():
            provider.refresh_if_due()
        digest = _digest(token)
        account = self._cached(digest)
        if account is None:
            provider = self._provider_of(token)
            try:
                account = await self._verify(provider, token, digest, host)
            except UnknownKey as unknown:
                await provider.wait_for_keys(unknown, host)
                account = await self._verify(provider, token, digest, host)
        admitted = self._admitted(account)
        if isinstance(admitted, TokenRefused):
            raise admitted
        return admitted

    def _provider_of(self, token: bytes) -> TokenProvider:
        """Return the provider that a token names, which then verifies it. Raises `TokenRefused`."""
        if len(self._providers) == 1:
            return next(iter(self._providers.values()))
        claims = _part(token.split(b".")[1]) if len(token) <= MAX_TOKEN_SIZE and self.is_token(token) else None
        issuer = claims.get("iss") if isinstance(claims, dict) else None
        found = self._providers.get(issuer) if isinstance(issuer, str) else None
        if found is None:
            shown = f"names the issuer '{issuer[:200]}'" if isinstance(issuer, str) else "names no issuer"
            raise TokenRefused(f"the token {shown}; expected {' or '.join(self._providers)}, as in auth.oauth.providers")
        return found

    def _admitted(self, account: TokenAccount) -> Account | TokenRefused:
        if self._users.get(account.name) is not None:
            return TokenRefused(
                f"the token names user '{account.name}', and the broker has a user with this name; "
                "delete it, or choose other claims in auth.oauth.username_claims"
            )
        return account

    def _cached(self, digest: bytes) -> TokenAccount | None:
        account = self._accounts.get(digest)
        if account is None:
            return None
        if account.expires_at <= time.time():
            del self._accounts[digest]
            return None
        self._accounts.move_to_end(digest)
        return account

    async def _verify(self, provider: TokenProvider, token: bytes, digest: bytes, host: str) -> TokenAccount:
        keys = provider.keys
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.submit(
            host,
            digest.hex(),
            digest,
            partial(provider.verify, token, keys),
            Waiter(partial(run_in, self._executor), partial(answer, answered), answered.cancelled),
        )
        result = await answered
        if isinstance(result, TokenAccount):
            if keys is provider.keys:
                self._accounts[digest] = result
                if len(self._accounts) > MAX_CACHED:
                    self._accounts.popitem(last=False)
            return result
        if isinstance(result, TokenRefused):
            raise result
        # Too many logins, or an internal error.
        raise TokenRefused(str(result))


def make_token_logins(config: OAuthConfig, users: UserStore, queue: LoginQueue, executor: Executor) -> TokenLogins:
    """Return the logins of a configuration. Reads key files. Raises `ConfigError`."""
    providers = {config.issuer: _make_provider(config, config.resource_server_id, "auth.oauth")}
    for name, provider in config.providers.items():
        own = provider.resource_server_id or config.resource_server_id
        providers[provider.issuer] = _make_provider(provider, own, f"auth.oauth.providers.{name}")
    return TokenLogins(providers, users, queue, executor)


def _make_provider(config: OAuthProviderConfig, resource_server_id: str, section: str) -> TokenProvider:
    keys = Keys([])
    path = config.key_file
    if path is not None:
        try:
            keys = read_keys(Path(path).read_bytes(), path)
        except (OSError, InvalidKeys) as error:
            raise ConfigError(f"{section}.key_file: {error}") from None
    for name, url in (("jwks_uri", config.jwks_uri), ("issuer", config.issuer)):
        if url and path is None and not is_protected(url):
            raise ConfigError(
                f"{section}.{name}: got '{url}', expected an https:// address, or one of this machine with http://"
            )
    settings = TokenSettings(
        audience=config.audience or resource_server_id,
        issuer=config.issuer,
        algorithms=tuple(config.algorithms),
        clock_skew=config.clock_skew,
        username_claims=tuple(config.username_claims),
        resource_server_id=resource_server_id,
        scope_prefix=f"{resource_server_id}." if config.scope_prefix is None else config.scope_prefix,
        additional_scopes=tuple(tuple(path.split(".")) for path in config.additional_scopes_key),
        scope_aliases={name: tuple(alias.scopes) for name, alias in config.scope_aliases.items()},
    )
    published = None if path is not None else Provider(config.issuer, config.jwks_uri, config.ca)
    return TokenProvider(TokenVerifier(settings), keys, published, config.jwks_lifetime)


def _part(encoded: bytes) -> object:
    """Return the decoded header or payload of a token; None if it is not JSON in base64url."""
    try:
        return json.loads(urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError):
        return None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _in_daemon(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in a thread that does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            report = partial(future.set_result, function())
        except Exception as error:
            report = partial(future.set_exception, error)
        # The loop is closed if the broker has stopped.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if future.done() else report())

    threading.Thread(target=run, name="leveret-oauth", daemon=True).start()
    return future
