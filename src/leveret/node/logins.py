"""Password logins outside AMQP, such as those of the HTTP API, with the protection of AMQP logins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from leveret.protocols.login_queue import LoginQueue, TooManyLogins, Waiter
from leveret.protocols.peer import Result
from leveret.security.users import UserStore

logger = logging.getLogger("leveret.security")


class Logins:
    """Checks passwords in the threads, the queue and the verdict cache of AMQP logins.

    Args:
        users: The users.
        queue: The queue of password checks.
        executor: The threads.
        end_turn: Writes the changes of users to the log.
    """

    def __init__(self, users: UserStore, queue: LoginQueue, executor: Executor, end_turn: Callable[[], None]) -> None:
        self._users = users
        self._queue = queue
        self._executor = executor
        self._end_turn = end_turn

    async def authenticate(self, name: str, password: bytes, host: str) -> bool:
        """Return whether a user may log in with this password from this address. An empty address is this machine.

        A wrong password is answered late after repeated failures, as in AMQP.
        """
        users = self._users
        verdict = users.cached_verdict(name, password)
        if verdict is None:
            verdict = await self._check(name, password, host)
            if verdict:
                users.keep_keys(name)
                self._end_turn()
        if verdict and not users.may_connect_from(name, host):
            logger.warning("user '%s' may log in from the local machine only (auth.loopback_users)", name)
            verdict = False
        return verdict and users.get(name) is not None

    async def _check(self, name: str, password: bytes, host: str) -> bool:
        users = self._users
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        key = users.digest(name, password)
        self._queue.submit(
            host,
            name,
            key,
            partial(users.verify, name, password),
            Waiter(self._run, partial(_answer, answered), answered.cancelled),
            preferred=users.was_correct(key),
        )
        result = await answered
        if isinstance(result, TooManyLogins):
            logger.warning("login of user '%s' from '%s' refused: %s", name, host, result)
            return False
        if isinstance(result, BaseException):
            logger.error("error while checking a login of user '%s': %r", name, result)
            return False
        backoff = self._queue.backoff(host, name) if result is False else 0.0
        if backoff:
            await asyncio.sleep(backoff)
        return bool(result)

    def _run(self, function: Callable[[], Result], done: Callable[[Result], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._executor, function)
        future.add_done_callback(partial(_report, done))


def _answer(answered: asyncio.Future[Result], result: Result) -> None:
    if not answered.done():
        answered.set_result(result)


def _report(done: Callable[[Result], None], future: asyncio.Future[Result]) -> None:
    if not future.cancelled():
        error = future.exception()
        done(error if error is not None else future.result())
