"""What an operation of `leveret.control` is: a name, the shape of its arguments, a function.

The function is called on the event loop with who asks and the arguments. It returns the fields of the answer, or a `Later`
where that takes longer than the turn; a refusal is a `BrokerError`. The answer is sent once everything that was written
before it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

import msgspec

from leveret.broker.errors import AccessRefused, BrokerError

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.security.users import UserStore

Fields = dict[str, Any]


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of the arguments of operations."""


class AskingSession(Protocol):
    """What requests need of a connection."""

    number: int
    user: str


class Asked:
    """Who asks, and where.

    session  the connection that published the request: exclusive queues are its own or another's
    user     who has logged in on it
    """

    def __init__(self, vhost: Vhost, session: AskingSession, users: UserStore) -> None:
        self.vhost = vhost
        self.session = session
        self.user = session.user
        self._users = users

    def may(self, operation: str, resource: str) -> bool:
        """Whether the user may configure, write or read the exchange or queue."""
        return self._users.may(self.user, self.vhost.name, operation, resource)

    def check(self, operation: str, resource: str) -> None:
        """Raise AccessRefused unless the user may configure, write or read the exchange or queue."""
        if not self.may(operation, resource):
            raise AccessRefused(f"{operation} access to '{resource or 'amq.default'}' in vhost '{self.vhost.name}' refused"
                                f" for user '{self.user}'")


class Later:
    """An answer that is not known yet. Exactly one of `answer` and `fail` is called, at any time."""

    def __init__(self) -> None:
        self._outcome: Fields | BrokerError | None = None
        self._told: Callable[[Fields | BrokerError], None] | None = None

    def answer(self, fields: Fields) -> None:
        self._known(fields)

    def fail(self, error: BrokerError) -> None:
        self._known(error)

    def when_known(self, told: Callable[[Fields | BrokerError], None]) -> None:
        """Have `told` called with the outcome, at once where it is known."""
        self._told = told
        if self._outcome is not None:
            told(self._outcome)

    def _known(self, outcome: Fields | BrokerError) -> None:
        self._outcome = outcome
        if self._told is not None:
            self._told(outcome)


Answer = Union[Fields, Later]


@dataclass(frozen=True, slots=True)
class Operation:
    """function    called with who asks and the arguments; arguments: their struct"""

    function: Callable[[Asked, Any], Answer]
    arguments: type[Arguments] = Arguments


Operations = Mapping[str, Operation]
