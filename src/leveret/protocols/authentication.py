"""SASL exchange with one client, for all protocols (RFC 4422)."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable

from leveret.broker.values import FieldTable
from leveret.protocols.login_queue import TooManyLogins, Waiter
from leveret.protocols.peer import Peer, Result
from leveret.protocols.services import Services
from leveret.security import tickets
from leveret.security.accounts import Account, TokenLogins, TokenRefused, UserAccount, import_account
from leveret.security.mechanisms.base import Blocking, Challenge, Context, Mechanism, NeedsPassword, Outcome, Success
from leveret.security.mechanisms.registry import create, offered
from leveret.security.users import UserStore

logger = logging.getLogger("leveret.connection")

# Seconds before the socket of a refused login is closed, to slow down password guessing.
REFUSAL_DELAY = 1.0


class Authentication:
    """The server's side of an exchange. Each protocol subclasses it, and drops the instance when the exchange ends.

    Attributes:
        offered: mechanisms that the client may choose from, best first.
        busy: whether the client must wait, because its password is being checked in a thread.
    """

    def __init__(
        self,
        peer: Peer,
        services: Services,
        enabled: list[str],
        anonymous_user: str | None,
        decode_table: Callable[[bytes], FieldTable] | None = None,
    ) -> None:
        users = services.users
        self._peer = peer
        self._users = users
        self._tokens = services.tokens
        self._queue = services.logins
        self._context = Context(
            certificate=peer.certificate,
            external_name=services.external_name,
            anonymous_user=anonymous_user,
            decode_table=decode_table,
            scram_keys=users.scram_keys,
            # Clients that prefer SCRAM could not log in by token.
            scram_ready=services.tokens is None and users.scram_ready(),
        )
        self.offered = offered(enabled, self._context)
        self.busy = False
        self._mechanism: Mechanism | None = None
        self._name = ""

    # Implemented by the protocol

    @abstractmethod
    def is_lost(self) -> bool:
        """Return whether the connection is lost."""

    @abstractmethod
    def wait(self, waiting: bool) -> None:
        """Handle the start of slow work or, if `waiting` is False, its end. The result has been processed by then."""

    @abstractmethod
    def challenge(self, data: bytes) -> None:
        """Send a challenge of the mechanism."""

    @abstractmethod
    def accept(self, account: Account, data: bytes) -> None:
        """Log the user in. `data` is the mechanism's final message to the client; empty if it has none."""

    @abstractmethod
    def refuse(self) -> None:
        """Refuse the login; the reason has been logged."""

    # The exchange

    @property
    def _host(self) -> str:
        """The client's address for the login queue."""
        return "" if self._peer.local else self._peer.host

    @property
    def mechanism(self) -> str:
        """The mechanism that the client has chosen; "" before."""
        return self._name

    def start(self, mechanism: str, response: bytes | None) -> bool:
        """Start the exchange.

        Args:
            mechanism: the client's choice.
            response: the initial response; None if there is none.

        Returns:
            Whether the mechanism was offered. That of the broker's own tickets is accepted although it is not.
        """
        if mechanism == tickets.MECHANISM:
            self._choose(mechanism)
            self._accept_ticket(response or b"")
            return True
        self._mechanism = create(mechanism, self.offered, self._context)
        if self._mechanism is None:
            return False
        self._choose(mechanism)
        if response is None and self._mechanism.speaks_first:
            self.challenge(b"")
        else:
            self.respond(response or b"")
        return True

    def _choose(self, mechanism: str) -> None:
        self._name = mechanism
        self._peer.choose_mechanism(mechanism)

    def respond(self, response: bytes) -> None:
        """Process a response of the client."""
        assert self._mechanism is not None
        self._process(self._mechanism.step(response))

    def _process(self, outcome: Outcome) -> None:
        if isinstance(outcome, Challenge):
            self.challenge(outcome.data)
        elif isinstance(outcome, NeedsPassword):
            self._check(outcome.username, outcome.password)
        elif isinstance(outcome, Blocking):
            # The user is not known yet, so the key only has to be unique.
            key = f"{id(self)}".encode()
            self._wait_for(key.decode(), key, outcome.call, self._process)
        elif isinstance(outcome, Success):
            self._queue.succeeded(self._host, outcome.username)
            self._verified(outcome.username, True, outcome.data)
        elif outcome.username:
            self._refuse_password(outcome.username, outcome.reason)
        else:
            self.refuse_for(outcome.reason)

    def _refuse_password(self, name: str, reason: str) -> None:
        """Refuse a password that the mechanism rejected, with the same delay as one rejected in a thread."""
        self._queue.failed(self._host, name)
        backoff = self._queue.backoff(self._host, name)
        if not backoff:
            self.refuse_for(reason)
            return
        self.busy = True
        self.wait(True)
        self._peer.call_later(backoff, lambda: self._ran(self.refuse_for, reason))

    def _check(self, name: str, password: bytes) -> None:
        users = self._users
        tokens = self._tokens
        if tokens is not None and tokens.is_token(password):
            self._check_token(tokens, password)
            return
        if not name:
            self.refuse_for(f"{self.mechanism}: the name is empty")
            return
        verdict = users.cached_verdict(name, password)
        if verdict is not None:
            self._verified(name, verdict, b"")
            return
        key = users.digest(name, password)
        self._wait_for(
            name,
            key,
            lambda: users.verify(name, password),
            lambda result: self._verified(name, result, b""),
            preferred=users.was_correct(key),
            backs_off=True,
        )

    def _accept_ticket(self, ticket: bytes) -> None:
        """Log in a shovel of the broker, wherever its user may log in from."""
        found = tickets.open_ticket(self._users.keyring.secret, ticket)
        if found is None:
            self.refuse_for("the ticket is invalid or has expired")
            return
        account = import_account(found, self._users)
        if account.exists():
            self.accept(account, b"")
        else:
            self.refuse_for(f"ticket of user '{account.name}', who does not exist")

    def _check_token(self, tokens: TokenLogins, token: bytes) -> None:
        """Verify a token. The name that the client sends with it is not used."""
        known = tokens.known(token)
        if known is not None:
            self._token_verified(known)
            return
        self._begin_check()

        def verified(result: Account | TokenRefused) -> None:
            self._peer.checking = False
            if not self.is_lost():
                self.busy = False
                self._token_verified(result)
                self.wait(False)

        tokens.submit(token, self._host, verified)

    def _begin_check(self) -> None:
        self.busy = True
        self._peer.checking = True
        self.wait(True)

    def _wait_for(
        self,
        name: str,
        key: bytes,
        function: Callable[[], Result],
        done: Callable[[Result], None],
        preferred: bool = False,
        backs_off: bool = False,
    ) -> None:
        """Submit a slow function to the login queue.

        Args:
            name: see `LoginQueue.submit`.
            key: see `LoginQueue.submit`.
            function: runs in a thread.
            done: called with the result.
            preferred: see `LoginQueue.submit`.
            backs_off: whether the result False means a wrong password, whose reply is delayed after repeated failures.
        """
        self._begin_check()

        def ran(result: Result) -> None:
            self._peer.checking = False
            backoff = self._queue.backoff(self._host, name) if backs_off and result is False else 0.0
            if backoff and not self.is_lost():
                # Closing the socket cancels the call, so a delayed login costs no more than its socket.
                self._peer.call_later(backoff, lambda: self._ran(done, result))
            else:
                self._ran(done, result)

        self._queue.submit(
            self._host, name, key, function, Waiter(self._peer.run_blocking, ran, self.is_lost), preferred=preferred
        )

    def _ran(self, done: Callable[[Result], None], result: Result) -> None:
        if self.is_lost():
            return
        self.busy = False
        if isinstance(result, TooManyLogins):
            self.refuse_for(str(result))
        elif isinstance(result, BaseException):
            logger.error("%s: error while checking a %s login: %r", self._peer.subject, self.mechanism, result)
            self.refuse_for("the check raised an error")
        else:
            done(result)
        self.wait(False)

    def _verified(self, name: str, verdict: bool, data: bytes) -> None:
        users, peer = self._users, self._peer
        if verdict and not may_connect(users, peer, name):
            logger.warning("%s: user '%s' may log in from the local machine only (auth.loopback_users)", peer.subject, name)
            verdict = False
        user = users.get(name)
        if not verdict or user is None:
            self.refuse_for(f"user '{name}', mechanism {self.mechanism}")
            return
        users.keep_keys(name)
        # All connections of a user share the string of the store.
        self.accept(UserAccount(user.name, users), data)

    def _token_verified(self, result: Account | TokenRefused) -> None:
        if isinstance(result, TokenRefused):
            self.refuse_for(f"mechanism {self.mechanism}: {result}")
        elif not may_connect(self._users, self._peer, result.name):
            self.refuse_for(f"user '{result.name}' may log in from the local machine only (auth.loopback_users)")
        else:
            self.accept(result, b"")

    def refuse_for(self, reason: str) -> None:
        """Refuse the login. The reason is logged but not sent to the client."""
        logger.warning("%s: login refused: %s", self._peer.subject, reason)
        self.refuse()


def may_connect(users: UserStore, peer: Peer, name: str) -> bool:
    """Return whether the user may connect from the client's address."""
    return users.may_connect_from(name, "127.0.0.1" if peer.local else peer.host)
