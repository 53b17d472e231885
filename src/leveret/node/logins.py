"""Password logins outside AMQP, such as those of the HTTP API, with the protection of AMQP logins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from leveret.node.executing import answer, run_in
from leveret.protocols.login_queue import LoginQueue, TooManyLogins, Waiter
from leveret.protocols.peer import Result
from leveret.security.accounts import Account, TokenRefused, UserAccount
from leveret.security.users import UserStore

if TYPE_CHECKING:
    from leveret.node.tokens import TokenLogins

logger = logging.getLogger("leveret.security")


class Logins:
    """Checks passwords in the threads, the queue and the verdict cache of AMQP logins.

    Args:
        users: The users.
        queue: The queue of password checks.
        executor: The threads.
        end_turn: Writes the changes of users to the log.
        tokens: The logins by token; None if tokens are not accepted.
    """

    def __init__(
        self,
        users: UserStore,
        queue: LoginQueue,
        executor: Executor,
        end_turn: Callable[[], None],
        tokens: TokenLogins | None = None,
    ) -> None:
        self._users = users
        self._queue = queue
        self._executor = executor
        self._end_turn = end_turn
        self._tokens = tokens

    async def authenticate(self, name: str, password: bytes, host: str) -> Account | None:
        """Return the account of a user who logs in with this password or token from this address; None if refused.

        An empty address is this machine. A wrong password is answered late after repeated failures, as in AMQP.
        """
        if self._tokens is not None and self._tokens.is_token(password):
            try:
                account: Account = await self._tokens.authenticate(password, host)
            except TokenRefused as refused:
                logger.warning("login by token from '%s' refused: %s", host, refused, extra={"peer": host})
                return None
        elif await self._is_right(name, password, host):
            account = UserAccount(name, self._users)
        else:
            return None
        if not self._users.may_connect_from(account.name, host):
            fields = _fields(account.name, host)
            logger.warning(
                "user '%s' may log in from the local machine only (auth.loopback_users)", account.name, extra=fields
            )
            return None
        return account if account.exists() else None

    async def _is_right(self, name: str, password: bytes, host: str) -> bool:
        verdict = self._users.cached_verdict(name, password)
        if verdict is None:
            verdict = await self._check(name, password, host)
            if verdict:
                self._users.keep_keys(name)
                self._end_turn()
        return verdict

    async def _check(self, name: str, password: bytes, host: str) -> bool:
        users = self._users
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        key = users.digest(name, password)
        self._queue.submit(
            host,
            name,
            key,
            partial(users.verify, name, password),
            Waiter(partial(run_in, self._executor), partial(answer, answered), answered.cancelled),
            preferred=users.was_correct(key),
        )
        result = await answered
        if isinstance(result, TooManyLogins):
            logger.warning("login of user '%s' from '%s' refused: %s", name, host, result, extra=_fields(name, host))
            return False
        if isinstance(result, BaseException):
            logger.error("error while checking a login of user '%s': %r", name, result, extra=_fields(name, host))
            return False
        backoff = self._queue.backoff(host, name) if result is False else 0.0
        if backoff:
            await asyncio.sleep(backoff)
        return bool(result)


def _fields(user: str, host: str) -> dict[str, str]:
    """Return the fields of JSON log messages about a login. An empty address is this machine."""
    return {"user": user, "peer": host} if host else {"user": user}
