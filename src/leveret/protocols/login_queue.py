"""Queue of password checks that protects correct logins from a flood of wrong ones.

A check takes about 16 ms of CPU time. Only one or two run at a time; the others are queued by address and user, so that an
address with thousands of logins delays only itself. Passwords that were correct before go first; then the addresses take
turns. Within an address, the newest login of the latest user goes first, because clients that have waited long give up.
Logins with the same user and password share one check. Beyond a limit, the queue refuses the oldest login.

Consecutive wrong passwords, including those of SCRAM, never delay a check: correct passwords would wait behind wrong ones
from the same address, and an attacker could lock a user out. Instead, they delay the reply to the failed client.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from leveret.protocols.peer import Result
from leveret.security.addresses import network_of

# Maximum number of waiting checks: per user and address, per address, and in total.
MAX_WAITING_PER_USER: Final = 16
MAX_WAITING_PER_ADDRESS: Final = 1_024
MAX_WAITING: Final = 4_096
# After this many consecutive wrong passwords of a user from one address, replies are delayed: first by the minimum, then
# twice as long after each failure.
FREE_FAILURES: Final = 5
MIN_BACKOFF: Final = 0.1
MAX_BACKOFF: Final = 2.0
# Seconds after the last wrong password until the failures of a user are forgotten, and the maximum number of users tracked.
FAILURE_LIFETIME: Final = 60.0
MAX_FAILING: Final = 4_096

# Leave one CPU to the event loop.
MAX_RUNNING: Final = 2 if (os.cpu_count() or 1) > 2 else 1


class TooManyLogins(Exception):
    """A login that is refused without a check."""


class Waiter:
    """A login waiting for a check. `run` runs the check in a thread; `done` is called with its result or exception."""

    def __init__(
        self,
        run: Callable[[Callable[[], Result], Callable[[Result], None]], None],
        done: Callable[[Result], None],
        is_lost: Callable[[], bool],
    ) -> None:
        self.run = run
        self.done = done
        self.is_lost = is_lost


class _Check:
    """One check and the logins waiting for it."""

    def __init__(self, address: str, name: str, key: bytes, function: Callable[[], Result], waiter: Waiter) -> None:
        self.address = address
        self.name = name
        self.key = key
        self.function = function
        self.waiters = [waiter]


# Waiting checks of one user from one address, newest last.
_Waiting = deque[_Check]


class _Failures:
    """Count of consecutive wrong passwords, and the time of the last one."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0


class LoginQueue:
    """The queue of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, running: int = MAX_RUNNING) -> None:
        self.waiting = 0
        self.running = 0
        self._clock = clock
        self._max_running = running
        # Waiting and running checks by key.
        self._checks: dict[bytes, _Check] = {}
        self._preferred: deque[_Check] = deque()
        # Waiting checks by address and user. The next check is that of the first address and its last user.
        self._addresses: OrderedDict[str, OrderedDict[str, _Waiting]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def submit(
        self, host: str, name: str, key: bytes, function: Callable[[], Result], waiter: Waiter, *, preferred: bool = False
    ) -> None:
        """Run a check in a thread when its turn comes.

        Args:
            host: the client's address. IPv6 addresses of the same /64 network count as one.
            name: the user, or a unique key.
            key: identifies the user and password.
            function: the check, which returns False for a wrong password.
            waiter: the login.
            preferred: whether the password was correct before.
        """
        check = self._checks.get(key)
        if check is not None:
            check.waiters.append(waiter)
            return
        check = self._checks[key] = _Check(network_of(host), name, key, function, waiter)
        if preferred:
            self._preferred.append(check)
            self.waiting += 1
        else:
            self._enqueue(check)
        self._start()

    def _enqueue(self, check: _Check) -> None:
        address = check.address
        users = self._addresses.setdefault(address, OrderedDict())
        waiting = users.setdefault(check.name, deque())
        waiting.append(check)
        users.move_to_end(check.name)
        self.waiting += 1
        size = self._sizes[address] = self._sizes.get(address, 0) + 1
        if len(waiting) > MAX_WAITING_PER_USER:
            self._refuse(address, check.name, f"this user has {MAX_WAITING_PER_USER} pending password checks")
        elif size > MAX_WAITING_PER_ADDRESS:
            self._refuse(address, next(iter(users)), f"this address has {MAX_WAITING_PER_ADDRESS} pending password checks")
        elif self.waiting > MAX_WAITING:
            busiest = max(self._sizes, key=self._sizes.__getitem__)
            self._refuse(
                busiest, next(iter(self._addresses[busiest])), f"the broker has {MAX_WAITING} pending password checks"
            )

    def _refuse(self, address: str, name: str, reason: str) -> None:
        """Refuse the oldest check of a user."""
        check = self._pop(address, name, oldest=True)
        del self._checks[check.key]
        for waiter in check.waiters:
            waiter.done(TooManyLogins(f"{reason}, the maximum"))

    def _pop(self, address: str, name: str, oldest: bool = False) -> _Check:
        """Remove and return the oldest or newest check of a user."""
        users = self._addresses[address]
        waiting = users[name]
        check = waiting.popleft() if oldest else waiting.pop()
        self.waiting -= 1
        self._sizes[address] -= 1
        if not waiting:
            del users[name]
        if not users:
            del self._addresses[address]
            del self._sizes[address]
        return check

    # Running

    def _start(self) -> None:
        while self.running < self._max_running:
            check = self._next()
            if check is None:
                return
            connected = [waiter for waiter in check.waiters if not waiter.is_lost()]
            if not connected:
                del self._checks[check.key]
                continue
            self.running += 1
            connected[0].run(check.function, partial(self._done, check))

    def _next(self) -> _Check | None:
        if self._preferred:
            self.waiting -= 1
            return self._preferred.popleft()
        if not self._addresses:
            return None
        address = next(iter(self._addresses))
        self._addresses.move_to_end(address)
        return self._pop(address, next(reversed(self._addresses[address])))

    def _done(self, check: _Check, result: Result) -> None:
        self.running -= 1
        del self._checks[check.key]
        if result is False:
            self.failed(check.address, check.name)
        elif result is True:
            self.succeeded(check.address, check.name)
        for waiter in check.waiters:
            waiter.done(result)
        self._start()

    def succeeded(self, host: str, name: str) -> None:
        """Reset the failures of a user after a correct password."""
        self._failures.pop((network_of(host), name), None)

    def failed(self, host: str, name: str) -> None:
        """Count a wrong password of a user."""
        key = network_of(host), name
        now = self._clock()
        failures = self._failures.get(key)
        if failures is None or now - failures.last > FAILURE_LIFETIME:
            failures = self._failures[key] = _Failures()
        self._failures.move_to_end(key)
        failures.count += 1
        failures.last = now
        if len(self._failures) > MAX_FAILING:
            self._failures.popitem(last=False)

    def backoff(self, host: str, name: str) -> float:
        """Return the delay in seconds of the reply to a user's wrong password."""
        failures = self._failures.get((network_of(host), name))
        excess = failures.count - FREE_FAILURES if failures is not None else 0
        return min(MIN_BACKOFF * 2.0 ** min(excess - 1, 10), MAX_BACKOFF) if excess > 0 else 0.0
