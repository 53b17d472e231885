"""Queue of password checks, in which a flood of wrong logins does not delay correct ones.

A check takes about 16 ms of processor time. Few run at a time; the others wait in queues by address and user, so that an
address with thousands of logins delays only itself. Passwords that were correct before come first, then one login of each
address in turn; within an address, the newest user and password, because clients that have waited for long give up. Logins
with the same user and password share one check. Beyond a limit, the oldest login is refused.

Consecutive wrong passwords, including those of SCRAM, never delay a check: correct passwords would wait behind wrong ones
of the same address, and an attacker could lock a user out. Instead, they delay the reply to the failed client.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from leveret.protocols.peer import Result

# Maximum number of waiting checks: for one user from one address, for one address, and in total.
MAX_WAITING_PER_USER: Final = 16
MAX_WAITING_PER_ADDRESS: Final = 1_024
MAX_WAITING: Final = 4_096
# After this many consecutive wrong passwords of a user from one address, replies are delayed: first by the minimum, then
# by twice as long each time.
FREE_FAILURES: Final = 5
MIN_BACKOFF: Final = 0.1
MAX_BACKOFF: Final = 2.0
# Seconds without a wrong password after which the failures of a user are forgotten, and the maximum number of such users.
FAILURE_LIFETIME: Final = 60.0
MAX_FAILING: Final = 4_096

# One processor is left to the event loop.
MAX_RUNNING: Final = 2 if (os.cpu_count() or 1) > 2 else 1


class TooManyLogins(Exception):
    """A login that is refused without a check."""


class Waiter:
    """A login that waits for a check. `run` executes it in a thread; `done` gets its result or its exception."""

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
    """One check and the logins that wait for it."""

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
        # By address and user. Checks are taken from the first address and its last user.
        self._addresses: OrderedDict[str, OrderedDict[str, _Waiting]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def submit(
        self, host: str, name: str, key: bytes, function: Callable[[], Result], waiter: Waiter, *, preferred: bool = False
    ) -> None:
        """Call `function` in a thread when its turn comes. Its result False means a wrong password.

        Args:
            host: The client's address. IPv6 addresses with the same first 64 bits count as one.
            name: The user, or a unique key.
            key: Identifies the user and password.
            function: The check.
            waiter: The login.
            preferred: Whether the password was correct before.
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
            self._refuse(address, check.name, f"{MAX_WAITING_PER_USER} passwords of this user wait for their check")
        elif size > MAX_WAITING_PER_ADDRESS:
            self._refuse(
                address, next(iter(users)), f"{MAX_WAITING_PER_ADDRESS} logins from this address wait for their check"
            )
        elif self.waiting > MAX_WAITING:
            busiest = max(self._sizes, key=self._sizes.__getitem__)
            self._refuse(busiest, next(iter(self._addresses[busiest])), f"{MAX_WAITING} logins wait for their check")

    def _refuse(self, address: str, name: str, why: str) -> None:
        """Refuse the oldest check of a user."""
        check = self._take(address, name, oldest=True)
        del self._checks[check.key]
        for waiter in check.waiters:
            waiter.done(TooManyLogins(f"{why}, the maximum"))

    def _take(self, address: str, name: str, oldest: bool = False) -> _Check:
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
            asking = [waiter for waiter in check.waiters if not waiter.is_lost()]
            if not asking:
                del self._checks[check.key]
                continue
            self.running += 1
            asking[0].run(check.function, partial(self._done, check))

    def _next(self) -> _Check | None:
        if self._preferred:
            self.waiting -= 1
            return self._preferred.popleft()
        if not self._addresses:
            return None
        address = next(iter(self._addresses))
        self._addresses.move_to_end(address)
        return self._take(address, next(reversed(self._addresses[address])))

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
        """Forget the wrong passwords of a user after a correct one."""
        self._failures.pop((network_of(host), name), None)

    def failed(self, host: str, name: str) -> None:
        """Count a wrong password of this user."""
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
        """Return the seconds by which the reply to a wrong password of this user is delayed."""
        failures = self._failures.get((network_of(host), name))
        excess = failures.count - FREE_FAILURES if failures is not None else 0
        return min(MIN_BACKOFF * 2.0 ** min(excess - 1, 10), MAX_BACKOFF) if excess > 0 else 0.0


def network_of(host: str) -> str:
    """Return the key of an address. Of IPv6 it is the first 64 bits, as a client may use all addresses with them."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
