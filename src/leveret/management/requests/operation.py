"""Operations of `leveret.control`: a name, the struct of the arguments, and a function.

The function is called on the event loop with the requester and the arguments. It returns the fields of the reply, or a
`Later` if it takes longer than the turn, and raises `BrokerError`. The reply is sent when everything that was written
before is on disk.
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
    """Base class of the arguments of operations."""


class AskingSession(Protocol):
    """The part of a connection that requests use."""

    number: int
    user: str


class Asked:
    """The requester.

    Attributes:
        vhost: The vhost of the request.
        session: The connection that published the request, which may own exclusive queues.
        user: The user of the connection.
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
        """Raise `AccessRefused` unless the user may configure, write or read the exchange or queue."""
        if not self.may(operation, resource):
            raise AccessRefused(f"{operation} access to '{resource or 'amq.default'}' in vhost '{self.vhost.name}' refused"
                                f" for user '{self.user}'")


class Later:
    """A reply that is not known yet. Exactly one of `answer` and `fail` is called once."""

    def __init__(self) -> None:
        self._outcome: Fields | BrokerError | None = None
        self._callback: Callable[[Fields | BrokerError], None] | None = None

    def answer(self, fields: Fields) -> None:
        self._resolve(fields)

    def fail(self, error: BrokerError) -> None:
        self._resolve(error)

    def when_resolved(self, callback: Callable[[Fields | BrokerError], None]) -> None:
        """Call `callback` with the outcome when it is known, which may be at once."""
        self._callback = callback
        if self._outcome is not None:
            callback(self._outcome)

    def _resolve(self, outcome: Fields | BrokerError) -> None:
        self._outcome = outcome
        if self._callback is not None:
            self._callback(outcome)


Answer = Union[Fields, Later]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. `function` is called with the requester and the arguments, whose struct is `arguments`."""

    function: Callable[[Asked, Any], Answer]
    arguments: type[Arguments] = Arguments


Operations = Mapping[str, Operation]
