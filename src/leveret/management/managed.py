"""The broker that operations act on, with its users, connections and configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import Final, TypeVar

from leveret.broker.broker import Broker
from leveret.broker.errors import AccessRefused, NotFound
from leveret.broker.vhost import Vhost
from leveret.config import Config, VhostConfig
from leveret.management.audit.auditor import LoggingAuditor
from leveret.management.audit.log import AuditLog
from leveret.management.backups import Backups
from leveret.management.descriptions import (
    ConnectedSession,
    LinkRegistry,
    MessageCodec,
    Performance,
    ProcessInfo,
    ShovelRegistry,
)
from leveret.management.feed import Feeds
from leveret.management.operations.operation import Auditor
from leveret.management.operations.tails import Tails
from leveret.management.ready_ages import ReadyAges
from leveret.management.recent_log import LogRecords
from leveret.management.roles import Roles
from leveret.management.unacked_ages import UnackedAges
from leveret.security.accounts import Account, UserAccount
from leveret.security.users import UserStore

T = TypeVar("T")

# Searches that use a thread at a time.
MAX_SEARCHES: Final = 2


class ManagedBroker:
    """Broker that operations act on.

    Attributes:
        log: The latest log records of the process; none unless its handler's are set.
        vhost_names: Returns the names of the vhosts, in this process or in another one of the broker.

    Args:
        broker: The broker.
        users: The users.
        sessions: Returns the current connections.
        config: The configuration of the broker.
        config_name: The name of the configuration in errors.
        apply_vhost: Creates a vhost, or changes the settings of an existing one.
        facts: Returns the state of the process.
        performance: Returns measurements of the process.
        alarm: Returns the reason why publishers are blocked, or "".
        executor: The executor for slow work, such as password hashing.
        vhost_settings: The vhost settings that operators set.
        links: The AMQP 1.0 links.
        shovels: The shovels.
        codec: The encoder and decoder of messages.
        authenticate: Checks the password or token of a user who logs in from an address; by default passwords only, in the
            executor and without limits.
        audit: The audit log; by default one in memory.
    """

    def __init__(
        self,
        broker: Broker,
        users: UserStore,
        *,
        sessions: Callable[[], Iterable[ConnectedSession]],
        config: Config,
        config_name: str,
        apply_vhost: Callable[[str, VhostConfig], Vhost],
        facts: Callable[[], ProcessInfo],
        performance: Callable[[], Performance],
        alarm: Callable[[], str],
        executor: Executor | None = None,
        vhost_settings: dict[str, VhostConfig] | None = None,
        links: LinkRegistry,
        shovels: ShovelRegistry,
        codec: MessageCodec,
        authenticate: Callable[[str, bytes, str], Awaitable[Account | None]] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self.broker = broker
        self.users = users
        self.roles = Roles(broker)
        self.sessions = sessions
        self.config = config
        self.config_name = config_name
        self.apply_vhost = apply_vhost
        self.facts = facts
        self.performance = performance
        self.alarm = alarm
        self.vhost_settings = vhost_settings if vhost_settings is not None else {}
        self.links = links
        self.shovels = shovels
        self.codec = codec
        self.feeds = Feeds()
        self.unacked_ages = UnackedAges()
        self.ready_ages = ReadyAges(codec)
        self.tails = Tails()
        self.log = LogRecords()
        self.audit = audit if audit is not None else AuditLog()
        self.auditor: Auditor = LoggingAuditor(self.audit)
        self.backups = Backups(broker, config)
        self.vhost_names: Callable[[], Iterable[str]] = lambda: broker.vhosts
        self._executor = executor
        # Logins use the same threads.
        self._searches = asyncio.Semaphore(MAX_SEARCHES)
        self._authenticate = authenticate

    async def authenticate(self, name: str, password: bytes, address: str) -> Account | None:
        """Return the account of a user who logs in with this password or token from this address; None if refused."""
        if self._authenticate is not None:
            return await self._authenticate(name, password, address)
        is_right = await self.in_thread(lambda: self.users.verify(name, password))
        return UserAccount(name, self.users) if is_right and self.users.get(name) is not None else None

    async def account(self, user: str, token: str | None) -> Account:
        """Return the account of a user, or of a token of the user. Raises `AccessRefused` if the token is not accepted."""
        if token is None:
            return UserAccount(user, self.users)
        account = await self.authenticate("", token.encode(), "")
        if account is None or account.name != user or not account.is_token:
            raise AccessRefused(f"the token of user '{user}' is not accepted any more")
        return account

    async def search_in_thread(self, function: Callable[[], T]) -> T:
        """Run a long search in a thread and return its result. Few searches run at a time."""
        async with self._searches:
            return await self.in_thread(function)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run a function in a thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def vhost(self, name: str) -> Vhost:
        """Return the vhost with this name. Raises `NotFound`."""
        return self.broker.vhost(name)

    def check_vhost(self, name: str) -> None:
        """Raise `NotFound` unless there is a vhost with this name, in this process or in another one of the broker."""
        if name not in self.vhost_names():
            raise NotFound(f"vhost '{name}' does not exist")

    def vhost_config(self, name: str) -> VhostConfig:
        """Return the settings of a vhost: those of the configuration, of operators, or the defaults."""
        return self.config.vhosts.get(name) or self.vhost_settings.get(name) or VhostConfig()

    def vhosts(self, name: str | None) -> list[Vhost]:
        """Return the vhost with this name, or all vhosts sorted by name."""
        if name is not None:
            return [self.vhost(name)]
        return [self.broker.vhosts[known] for known in sorted(self.broker.vhosts)]

    def session(self, number: int) -> ConnectedSession:
        """Return the connection with this number. Raises `NotFound`."""
        for session in self.sessions():
            if session.number == number:
                return session
        raise NotFound(f"no connection {number}")
