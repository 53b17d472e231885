"""One SASL exchange with one client, whatever protocol carries it (RFC 4422)."""

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

# A refused login waits this long before the socket is closed, so that guessing is slow.
REFUSAL_DELAY = 1.0


class Authentication:
    """The server's side of an exchange. Each protocol subclasses it, and drops it when it is over or the connection lost.

    offered  the mechanisms that the client may choose of, best first
    busy     a thread is checking a password: the client must wait
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

    # What the protocol does

    def is_lost(self) -> bool:
        """Whether the client has gone."""
        raise NotImplementedError

    def wait(self, waiting: bool) -> None:
        """Note the start of slow work in a thread; with False, its end, after its result was processed."""
        raise NotImplementedError

    def challenge(self, data: bytes) -> None:
        raise NotImplementedError

    def accept(self, name: str, data: bytes) -> None:
        """The client is that user. `data` is the mechanism's last word to it, empty for none."""
        raise NotImplementedError

    def refuse(self) -> None:
        """The client is not let in; the log has said why."""
        raise NotImplementedError

    # The exchange

    @property
    def _host(self) -> str:
        """The client's address, as the login queue knows it."""
        return "" if self._peer.local else self._peer.host

    @property
    def mechanism(self) -> str:
        """The name of the mechanism that the client chose, empty before."""
        return "" if self._mechanism is None else self._mechanism.name

    def start(self, mechanism: str, response: bytes | None) -> bool:
        """The client's choice, and its first response, None where it came without one. False where this was not offered."""
        self._mechanism = create(mechanism, self.offered, self._context)
        if self._mechanism is None:
            return False
        if response is None and self._mechanism.speaks_first:
            self.challenge(b"")
        else:
            self.respond(response or b"")
        return True

    def respond(self, response: bytes) -> None:
        """A response of the client."""
        assert self._mechanism is not None
        self._take(self._mechanism.step(response))

    def _take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Challenge):
            self.challenge(outcome.data)
        elif isinstance(outcome, NeedsPassword):
            self._check(outcome.username, outcome.password)
        elif isinstance(outcome, Blocking):
            # On its own: who the client says that it is may be in there.
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
        """Refuse a wrong password that the mechanism itself has found: as late as one that was checked in a thread."""
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
        """Run something slow in a thread, when its turn comes.

        Args:
            name: As for `LoginQueue.submit`, like `key` and `preferred`.
            key: See `name`.
            function: What is slow.
            done: Gets its result.
            preferred: See `name`.
            backs_off: Whether False is a wrong password, the answer to which waits after several of them.
        """
        self.busy = True
        self._peer.checking = True
        self.wait(True)

        def ran(result: Result) -> None:
            self._peer.checking = False
            backoff = self._queue.backoff(self._host, name) if backs_off and result is False else 0.0
            if backoff and not self.is_lost():
                # The socket forgets the call when it closes: those that wait cost no more than their sockets.
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
            log.warning("%s: user '%s' may log in from this machine only (auth.loopback_users)", peer.name, name)
            verdict = False
        if not verdict or users.get(name) is None:
            self.refuse_for(f"login of '{name}' by {self.mechanism}")
            return
        users.keep_keys(name)
        self.accept(name, data)

    def refuse_for(self, reason: str) -> None:
        """Refuse, and say why in the log only."""
        log.warning("%s: login refused: %s", self._peer.name, reason)
        self.refuse()


def may_connect(users: UserStore, peer: Peer, name: str) -> bool:
    """Whether the user may come from where the client is."""
    return users.may_connect_from(name, "127.0.0.1" if peer.local else peer.host)
