"""Operations: request and reply structs, the required right, and a function.

The function runs on the event loop with the context and the request, and raises `BrokerError`. Operations are independent
of their transport, such as the control socket or the exchange `leveret.control`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, Union

import msgspec

from leveret._text import field_error
from leveret.broker.errors import AccessRefused, BrokerError
from leveret.broker.parameters import OPERATOR as SET_BY_OPERATOR
from leveret.broker.parameters import UNKNOWN, Setter
from leveret.management.structs import Request

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import Vhost
    from leveret.management.managed import ManagedBroker
    from leveret.management.ready_ages import ReadyAges
    from leveret.security.accounts import Account
    from leveret.security.users import UserStore

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")

PERMISSIONS: Final = ("configure", "write", "read")
UNKNOWN_FIELD: Final = "Object contains unknown field"


class Principal(Protocol):
    """The caller of an operation.

    Attributes:
        user: The name of the user.
        actor: The user to name in the audit log.
        source: Where the request came from.
        required_role: The role that the caller needs, if roles decide what it may do; otherwise "".
        setter: The user whom a parameter that the caller sets is stored with.
    """

    @property
    def user(self) -> str: ...

    @property
    def actor(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def required_role(self) -> str: ...

    @property
    def setter(self) -> Setter: ...

    def is_operator(self) -> bool:
        """Return whether the caller may execute every operation."""

    def may(self, vhost: str, permission: str, resource: str) -> bool:
        """Return whether the caller may configure, write or read an exchange or queue."""

    def may_topic(self, vhost: str, permission: str, exchange: str, routing_key: str) -> bool:
        """Return whether the caller may write or read this routing key of a topic exchange."""


class Operator:
    """Principal of the control socket: a process of the user that runs the broker. It may act for a user, `actor`."""

    user = ""
    required_role = ""

    def __init__(self, actor: str = "", source: str = "control socket", setter: Setter = SET_BY_OPERATOR) -> None:
        self.actor = actor
        self.source = source
        self.setter = setter

    def is_operator(self) -> bool:
        return True

    def may(self, vhost: str, permission: str, resource: str) -> bool:
        return True

    def may_topic(self, vhost: str, permission: str, exchange: str, routing_key: str) -> bool:
        return True


class User:
    """Principal with the permissions of an account. `client_id` is the value of that variable in topic permissions."""

    required_role = ""
    setter = UNKNOWN

    def __init__(self, account: Account, client_id: str = "", source: str = "") -> None:
        self.user = self.actor = account.name
        self.source = source
        self._account = account
        self._client_id = client_id

    def is_operator(self) -> bool:
        return False

    def may(self, vhost: str, permission: str, resource: str) -> bool:
        return self._account.may(vhost, permission, resource)

    def may_topic(self, vhost: str, permission: str, exchange: str, routing_key: str) -> bool:
        return self._account.may_topic(vhost, permission, exchange, routing_key, self._client_id)


class Change:
    """A change that is being made. `done` is called when it has succeeded."""

    def done(self, result: object = None) -> None:
        """Record the change."""


class RoleRequired(AccessRefused):
    """The roles of the user do not allow the operation."""

    condition = "role-required"


class Auditor:
    """Records changes in the audit log. This one records nothing."""

    def begin(self, operation: object, context: Context | VhostContext, request: Request) -> Change | None:
        """Note the state before an operation; None if the operation is not recorded."""
        return None


NO_AUDITOR: Final = Auditor()


class Context:
    """Context of an operation on the broker as a whole.

    Attributes:
        managed: The broker, its users, its connections and its configuration.
        principal: The caller.
    """

    def __init__(self, managed: ManagedBroker, principal: Principal) -> None:
        self.managed = managed
        self.principal = principal
        self.auditor: Auditor = managed.auditor

    @property
    def broker(self) -> Broker:
        return self.managed.broker

    @property
    def users(self) -> UserStore:
        return self.managed.users

    def vhost(self, name: str) -> Vhost:
        """Return the vhost with this name. Raises `NotFound`."""
        return self.managed.vhost(name)

    def vhosts(self, name: str | None) -> list[Vhost]:
        """Return the vhost with this name, or all vhosts sorted by name."""
        return self.managed.vhosts(name)


def check(context: Context, vhost: str, permission: str, resource: str) -> None:
    """Raise `AccessRefused` unless the principal may configure, write or read an exchange or queue."""
    _check(context.principal, vhost, permission, resource)


def check_topics(context: Context, vhost: str, exchange: str, routing_keys: list[str]) -> None:
    """Raise `AccessRefused` unless the principal may publish with these routing keys to a topic exchange."""
    for routing_key in routing_keys:
        _check_topic(context.principal, vhost, "write", exchange, routing_key)


def _check(principal: Principal, vhost: str, permission: str, resource: str) -> None:
    if not principal.may(vhost, permission, resource):
        if principal.required_role:
            raise RoleRequired(
                f"user '{principal.user}' does not have the role '{principal.required_role}' for"
                f" '{resource or 'amq.default'}' in vhost '{vhost}'; administrators grant it with 'leveret roles grant'"
            )
        raise AccessRefused(
            f"{permission} access to '{resource or 'amq.default'}' in vhost '{vhost}' refused for user '{principal.user}'"
        )


def _check_topic(principal: Principal, vhost: str, permission: str, exchange: str, routing_key: str) -> None:
    if not principal.may_topic(vhost, permission, exchange, routing_key):
        raise AccessRefused(
            f"{permission} access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}' refused"
            f" for user '{principal.user}'"
        )


class VhostContext:
    """Context of an operation inside a vhost.

    Attributes:
        vhost: The vhost of the principal.
        principal: The caller.
        session: The connection of the principal, which may own exclusive queues.
        auditor: Records changes.
        ready_ages: Ages of ready messages, None if they are unknown.
    """

    def __init__(
        self,
        vhost: Vhost,
        principal: Principal,
        session: object,
        auditor: Auditor = NO_AUDITOR,
        ready_ages: ReadyAges | None = None,
    ) -> None:
        self.vhost = vhost
        self.principal = principal
        self.session = session
        self.auditor = auditor
        self.ready_ages = ready_ages

    @property
    def user(self) -> str:
        return self.principal.user

    def may(self, permission: str, resource: str) -> bool:
        """Return whether the principal may configure, write or read an exchange or queue."""
        return self.principal.may(self.vhost.name, permission, resource)

    def check(self, permission: str, resource: str) -> None:
        """Raise `AccessRefused` unless the principal may configure, write or read an exchange or queue."""
        _check(self.principal, self.vhost.name, permission, resource)

    def check_topic(self, permission: str, exchange: str, routing_key: str) -> None:
        """Raise `AccessRefused` unless the principal may write or read this routing key of a topic exchange."""
        _check_topic(self.principal, self.vhost.name, permission, exchange, routing_key)

    def check_any(self, resource: str) -> None:
        """Raise `AccessRefused` unless the principal has any permission for an exchange or queue."""
        if not any(self.may(permission, resource) for permission in PERMISSIONS):
            raise AccessRefused(
                f"access to '{resource or 'amq.default'}' in vhost '{self.vhost.name}' refused for user '{self.user}'"
            )


class Later(Generic[R]):
    """Deferred reply. Exactly one of `answer` and `fail` is called, once."""

    def __init__(self) -> None:
        self._outcome: R | BrokerError | None = None
        self._callback: Callable[[R | BrokerError], None] | None = None

    def answer(self, reply: R) -> None:
        self._resolve(reply)

    def fail(self, error: BrokerError) -> None:
        self._resolve(error)

    def when_resolved(self, callback: Callable[[R | BrokerError], None]) -> None:
        """Call `callback` with the outcome as soon as it is known, possibly at once."""
        self._callback = callback
        if self._outcome is not None:
            callback(self._outcome)

    def _resolve(self, outcome: R | BrokerError) -> None:
        self._outcome = outcome
        if self._callback is not None:
            self._callback(outcome)


# The result of an operation's function: a reply, a deferred reply, or the items of a list, with None for each object that
# the request excludes. Lists are produced in parts.
Result = Union[R, Later[R], Awaitable[R], Iterator[R], Iterator[R | None], Awaitable[Iterator[R]]]
VhostResult = Union[R, Later[R]]


@dataclass(frozen=True, slots=True)
class Right:
    """The right that an operation requires.

    Attributes:
        permission: `configure`, `write`, `read` or the name of another rule.
        field: The field of the request that names the exchange or queue.
    """

    permission: str
    field: str


# The operation is reserved to operators.
OPERATOR: Final = Right("operator", "")
# The operation checks the permissions for each object that it finds.
EACH: Final = Right("each", "")
# The operation accesses only the user's own objects.
OWN: Final = Right("own", "")


@dataclass(frozen=True, slots=True)
class Operation(Generic[Q, R]):
    """Operation on the broker as a whole. Requests name the vhost.

    Attributes:
        function: Called with the context and the request.
        request: The struct of the request.
        reply: The struct of the reply, or of each item of a list; None for an empty reply.
        right: The required right.
        changes: Whether it writes to the log. The reply is sent when the changes are on disk.
        removes: Whether it removes objects, which may take several turns. The reply is sent when they are removed.
        early: Whether it is executed while messages are still being indexed after a start. Others wait for that.
    """

    function: Callable[[Context, Q], Result[R]]
    request: type[Q]
    reply: type[R] | None = None
    right: Right = OPERATOR
    changes: bool = False
    removes: bool = False
    early: bool = False


@dataclass(frozen=True, slots=True)
class VhostOperation(Generic[Q, R]):
    """Operation inside the principal's vhost. The reply is sent when all earlier writes are on disk.

    Attributes:
        function: Called with the context and the request.
        request: The struct of the request.
        reply: The struct of the reply.
        right: The required right.
    """

    function: Callable[[VhostContext, Q], VhostResult[R]]
    request: type[Q]
    reply: type[R]
    right: Right


Operations = dict[str, Operation[Any, Any]]
VhostOperations = dict[str, VhostOperation[Any, Any]]


class Applied:
    """Waits until a change is applied to all objects."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def read(name: str, request: type[Q], fields: object) -> Q:
    """Return the request with these fields.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type. The message names the field and what was expected.
    """
    try:
        return msgspec.convert(fields, request)
    except msgspec.ValidationError as error:
        text = f"{name}: {field_error(error)}"
        if str(error).startswith(UNKNOWN_FIELD):
            known = ", ".join(request.__struct_encode_fields__)
            text += f"; expected {known}" if known else "; expected no fields"
        raise ValueError(text) from None


def perform(operation: VhostOperation[Q, R], context: VhostContext, request: Q) -> VhostResult[R]:
    """Check the principal's right and execute the operation. Raises `BrokerError`."""
    right = operation.right
    if right.field:
        resource = getattr(request, right.field)
        if resource is not None:
            context.check(right.permission, resource)
    change = context.auditor.begin(operation, context, request)
    result = operation.function(context, request)
    if change is not None:
        change.done()
    return result


async def execute(operation: Operation[Q, R], context: Context, request: Q) -> R | Later[R] | Iterator[R | None]:
    """Execute an operation on the broker as a whole, and record it in the audit log. Raises `BrokerError`."""
    change = context.auditor.begin(operation, context, request)
    result = operation.function(context, request)
    if isinstance(result, Awaitable):
        result = await result
    if change is not None:
        change.done(result)
    return result


def perform_now(operation: VhostOperation[Q, R], context: VhostContext, request: Q) -> R:
    """Check the principal's right and execute an operation that replies immediately. Raises `BrokerError`."""
    result = perform(operation, context, request)
    assert not isinstance(result, Later)
    return result


def admit(name: str, operation: Operation[Q, R], context: Context) -> None:
    """Raise `AccessRefused` unless the principal may execute the operation."""
    if operation.right is OPERATOR and not context.principal.is_operator():
        raise AccessRefused(f"operation '{name}' refused for user '{context.principal.user}': expected an operator")
