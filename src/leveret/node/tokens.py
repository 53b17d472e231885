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
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from leveret.config import ConfigError, OAuthConfig
from leveret.node.executing import answer, run_in
from leveret.protocols.login_queue import LoginQueue, Waiter
from leveret.protocols.peer import Result
from leveret.security.accounts import Account, TokenRefused
from leveret.security.oauth.keys import InvalidKeys, Keys, read_keys
from leveret.security.oauth.provider import Provider, is_protected
from leveret.security.oauth.tokens import MAX_HEADER_SIZE, TokenAccount, TokenSettings, TokenVerifier, UnknownKey
from leveret.security.users import UserStore

logger = logging.getLogger("leveret.oauth")

T = TypeVar("T")

# Maximum number of verified tokens that are remembered.
MAX_CACHED: Final = 1024
# Seconds between two attempts to fetch the keys, and the maximum number of logins that wait for one.
MIN_FETCH_INTERVAL: Final = 10.0
MAX_WAITING: Final = 32

_FORM: Final = re.compile(rb"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\Z")


class TokenLogins:
    """Verifies tokens. All methods are called on the event loop; verification and fetching run in threads.

    Args:
        verifier: The checks of one token.
        keys: The keys of the configuration.
        provider: The provider that publishes the keys; None if the configuration has them.
        lifetime: Seconds after which the provider's keys are fetched again.
        users: The stored users, whose names tokens may not have.
        queue: The queue of password checks.
        executor: The threads for verification.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        keys: Keys,
        provider: Provider | None,
        lifetime: float,
        users: UserStore,
        queue: LoginQueue,
        executor: Executor,
    ) -> None:
        self._verifier = verifier
        self._keys = keys
        self._provider = provider
        self._lifetime = lifetime
        self._users = users
        self._queue = queue
        self._executor = executor
        # Verified tokens by their digest.
        self._accounts: OrderedDict[bytes, TokenAccount] = OrderedDict()
        self._content = b""
        self._attempted = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Fetch the keys, so that the first login need not wait for them."""
        self._refresh()

    def is_token(self, password: bytes) -> bool:
        """Return whether a password has the form of a token: three parts, the first of them a header with an algorithm."""
        found = _FORM.match(password)
        if found is None or len(found[1]) > MAX_HEADER_SIZE:
            return False
        try:
            header = json.loads(urlsafe_b64decode(found[1] + b"=" * (-len(found[1]) % 4)))
        except (ValueError, RecursionError):
            return False
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
        if self._is_due(self._lifetime):
            self._refresh()
        digest = _digest(token)
        account = self._cached(digest)
        if account is None:
            try:
                account = await self._verify(token, digest, host)
            except UnknownKey as unknown:
                await self._wait_for_keys(unknown)
                account = await self._verify(token, digest, host)
        admitted = self._admitted(account)
        if isinstance(admitted, TokenRefused):
            raise admitted
        return admitted

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

    async def _verify(self, token: bytes, digest: bytes, host: str) -> TokenAccount:
        keys = self._keys
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.submit(
            host,
            digest.hex(),
            digest,
            partial(self._outcome, token, keys),
            Waiter(partial(run_in, self._executor), partial(answer, answered), answered.cancelled),
        )
        result = await answered
        if isinstance(result, TokenAccount):
            if keys is self._keys:
                self._accounts[digest] = result
                if len(self._accounts) > MAX_CACHED:
                    self._accounts.popitem(last=False)
            return result
        if isinstance(result, TokenRefused):
            raise result
        # Too many logins, or an internal error.
        raise TokenRefused(str(result))

    def _outcome(self, token: bytes, keys: Keys) -> TokenAccount | TokenRefused:
        try:
            return self._verifier.verify(token, keys)
        except TokenRefused as refused:
            return refused

    # Keys

    def _is_due(self, age: float) -> bool:
        return self._provider is not None and time.monotonic() - self._attempted >= max(age, MIN_FETCH_INTERVAL)

    async def _wait_for_keys(self, unknown: UnknownKey) -> None:
        """Wait for the provider's current keys. Raises `TokenRefused` if they were fetched recently."""
        if self._fetching is None and not self._is_due(0):
            raise unknown
        if self._waiting >= MAX_WAITING:
            raise TokenRefused(f"{unknown}; {self._waiting} logins already wait for the provider's keys, the maximum")
        self._waiting += 1
        try:
            await asyncio.shield(self._refresh())
        finally:
            self._waiting -= 1

    def _refresh(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        provider = self._provider
        try:
            if provider is not None:
                content, keys = await _in_daemon(provider.fetch)
                if content != self._content:
                    self._content, self._keys = content, keys
                    self._accounts.clear()
                    logger.info("fetched %d keys of the OAuth provider", len(keys))
        except InvalidKeys as error:
            logger.warning("cannot fetch the keys of the OAuth provider, %d known keys stay: %s", len(self._keys), error)
        except Exception:
            logger.exception("error while fetching the keys of the OAuth provider")
        self._attempted = time.monotonic()
        self._fetching = None


def make_token_logins(config: OAuthConfig, users: UserStore, queue: LoginQueue, executor: Executor) -> TokenLogins:
    """Return the logins of a configuration. Reads key files. Raises `ConfigError`."""
    keys = Keys([])
    path = config.key_file
    if path is not None:
        try:
            keys = read_keys(Path(path).read_bytes(), path)
        except (OSError, InvalidKeys) as error:
            raise ConfigError(f"auth.oauth.key_file: {error}") from None
    for name, url in (("jwks_uri", config.jwks_uri), ("issuer", config.issuer)):
        if url and path is None and not is_protected(url):
            raise ConfigError(
                f"auth.oauth.{name}: got '{url}', expected an https:// address, or one of this machine with http://"
            )
    prefix = f"{config.resource_server_id}." if config.scope_prefix is None else config.scope_prefix
    settings = TokenSettings(
        audience=config.audience or config.resource_server_id,
        issuer=config.issuer,
        algorithms=tuple(config.algorithms),
        clock_skew=config.clock_skew,
        username_claims=tuple(config.username_claims),
        resource_server_id=config.resource_server_id,
        scope_prefix=prefix,
        additional_scopes=tuple(tuple(path.split(".")) for path in config.additional_scopes_key),
        scope_aliases={name: tuple(alias.scopes) for name, alias in config.scope_aliases.items()},
    )
    return TokenLogins(
        TokenVerifier(settings),
        keys,
        None if path is not None else Provider(config.issuer, config.jwks_uri, config.ca),
        config.jwks_lifetime,
        users,
        queue,
        executor,
    )


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
