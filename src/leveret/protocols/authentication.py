"""SASL exchange with one client, for all protocols (RFC 4422)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from leveret.broker.values import FieldTable
from leveret.protocols.login_queue import TooManyLogins, Waiter
from leveret.protocols.peer import Peer, Result
from leveret.protocols.services import Services
from leveret.security.mechanisms.base import Blocking, Challenge, Context, Mechanism, NeedsPassword, Outcome, Success
from leveret.security.mechanisms.registry import create, offered
from leveret.security.users import UserStore

log = logging.getLogger("leveret.connection")

# Seconds before the socket of a refused login is closed, to slow down guessing.
REFUSAL_DELAY = 1.0


class Authentication:
    """The server's side of an exchange. Each protocol subclasses it, and drops it at its end.

    Attributes:
        offered: mechanisms that the client may choose from, best first.
        busy: whether a password is being checked in a thread, so that the client must wait.
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
        self._queue = services.logins
        self._context = Context(
            certificate=peer.certificate,
            external_name=services.external_name,
            anonymous_user=anonymous_user,
            decode_table=decode_table,
            scram_keys=users.scram_keys,
            scram_ready=users.scram_ready(),
        )
        self.offered = offered(enabled, self._context)
        self.busy = False
        self._mechanism: Mechanism | None = None

    # Implemented by the protocol

    def is_lost(self) -> bool:
        """Return whether the connection is lost."""
        raise NotImplementedError

    def wait(self, waiting: bool) -> None:
        """Handle the start of slow work in a thread or, with False, its end, after its result was processed."""
        raise NotImplementedError

    def challenge(self, data: bytes) -> None:
        raise NotImplementedError

    def accept(self, name: str, data: bytes) -> None:
        """Log the user in. `data` is the final message of the mechanism to the client; empty for none."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Refuse the login; the reason has been logged."""
        raise NotImplementedError

    # The exchange

    @property
    def _host(self) -> str:
        """The client's address for the login queue."""
        return "" if self._peer.local else self._peer.host

    @property
    def mechanism(self) -> str:
        """The mechanism that the client chose; "" before."""
        return "" if self._mechanism is None else self._mechanism.name

    def start(self, mechanism: str, response: bytes | None) -> bool:
        """Start the exchange.

        Args:
            mechanism: the client's choice.
            response: its initial response; None if there is none.

        Returns:
            False if the mechanism was not offered.
        """
        self._mechanism = create(mechanism, self.offered, self._context)
        if self._mechanism is None:
            return False
        if response is None and self._mechanism.speaks_first:
            self.challenge(b"")
        else:
            self.respond(response or b"")
        return True

    def respond(self, response: bytes) -> None:
        """Process a response of the client."""
        assert self._mechanism is not None
        self._take(self._mechanism.step(response))

    def _take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Challenge):
            self.challenge(outcome.data)
        elif isinstance(outcome, NeedsPassword):
            self._check(outcome.username, outcome.password)
        elif isinstance(outcome, Blocking):
            # A key of its own, since the user is not known yet.
            key = f"{id(self)}".encode()
            self._wait_for(key.decode(), key, outcome.call, self._take)
        elif isinstance(outcome, Success):
            self._queue.succeeded(self._host, outcome.username)
            self._verified(outcome.username, True, outcome.data)
        elif outcome.username:
            self._wrong(outcome.username, outcome.reason)
        else:
            self.refuse_for(outcome.reason)

    def _wrong(self, name: str, reason: str) -> None:
        """Refuse a wrong password found by the mechanism, with the same delay as one that was checked in a thread."""
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
            preferred=users.was_right(key),
            backs_off=True,
        )

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
            name: as for `LoginQueue.submit`.
            key: as for `LoginQueue.submit`.
            function: the function, which runs in a thread.
            done: gets its result.
            preferred: as for `LoginQueue.submit`.
            backs_off: whether the result False is a wrong password, whose reply is delayed after several of them.
        """
        self.busy = True
        self._peer.checking = True
        self.wait(True)

        def ran(result: Result) -> None:
            self._peer.checking = False
            backoff = self._queue.backoff(self._host, name) if backs_off and result is False else 0.0
            if backoff and not self.is_lost():
                # The socket drops the call when it closes, so a waiting login costs no more than its socket.
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
            log.error("%s: a login by %s could not be checked: %r", self._peer.name, self.mechanism, result)
            self.refuse_for("the check failed")
        else:
            done(result)
        self.wait(False)

    def _verified(self, name: str, verdict: bool, data: bytes) -> None:
        users, peer = self._users, self._peer
        if verdict and not may_connect(users, peer, name):
            log.warning("%s: user '%s' may log in from the local machine only (auth.loopback_users)", peer.name, name)
            verdict = False
        if not verdict or users.get(name) is None:
            self.refuse_for(f"login of '{name}' by {self.mechanism}")
            return
        users.keep_keys(name)
        self.accept(name, data)

    def refuse_for(self, reason: str) -> None:
        """Refuse the login. The reason is only logged."""
        log.warning("%s: login refused: %s", self._peer.name, reason)
        self.refuse()


def may_connect(users: UserStore, peer: Peer, name: str) -> bool:
    """Return whether the user may connect from the client's address."""
    return users.may_connect_from(name, "127.0.0.1" if peer.local else peer.host)
