"""Users: list, add, change, delete. Users from the configuration can only be changed there."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from functools import partial

from leveret.broker.errors import AccessRefused, PreconditionFailed
from leveret.management.operations.connections import Closed, close_all
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Named, Reply, Request
from leveret.security.accounts import Account, UserAccount
from leveret.security.passwords import ARGON2ID, RABBITMQ_ALGORITHMS, RABBITMQ_SHA256, rabbitmq_hash
from leveret.security.roles import Grant
from leveret.security.scram import format_keys
from leveret.security.tags import parse_tags, roles_of
from leveret.security.users import (
    NO_PASSWORD,
    Secret,
    User,
    UserLimits,
    imported_secret,
)


class Password(Named, kw_only=True):
    """Request with a password: as text, or as a hash. An empty hash stands for no password.

    The hash is of argon2id, or in RabbitMQ's format. `hashing_algorithm` is the name of the algorithm, by default that of
    argon2id or SHA-256, whichever the hash has the form of. `scram_keys` are the SCRAM keys that belong to a hash. The hash
    that a user has leaves the keys as they are.
    """

    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None
    scram_keys: list[str] | None = None


class Add(Password, kw_only=True):
    """Request to add a user. A user without a password can log in only with EXTERNAL or ANONYMOUS."""

    tags: list[str] = []
    max_connections: int = 0
    max_channels: int = 0


class Change(Password, kw_only=True):
    """Request to change a user. Omitted fields stay unchanged."""

    tags: list[str] | None = None
    max_connections: int | None = None
    max_channels: int | None = None


class Set(Password, kw_only=True):
    """Request to add a user, or to replace its password and tags. A user without either form of a password has none.

    Several tags may be in one text, with commas.
    """

    tags: list[str] | str


class AddReply(Reply, kw_only=True):
    """`default_removed` is whether the default user existed until then."""

    default_removed: bool


class SetReply(Reply, kw_only=True):
    """Whether the user was added."""

    created: bool


class List(Request, kw_only=True):
    """Request for the list of users. `hashes` includes the password hashes and the SCRAM keys."""

    hashes: bool = False


class HashPassword(Request, kw_only=True):
    """Request for a hash in RabbitMQ's format."""

    password: str
    hashing_algorithm: str = RABBITMQ_SHA256


class HashedPassword(Reply, kw_only=True):
    """A password hash in RabbitMQ's format."""

    password_hash: str
    hashing_algorithm: str


class Authenticate(Named, kw_only=True):
    """Request to check a login by password or token. `address` is the client's; an empty one is this machine.

    The name is not used with a token.
    """

    password: str
    address: str = ""


class Resume(Named, kw_only=True):
    """Request to resume a session of a user who has logged in by password before.

    `credential` is the one that the login returned. `address` is the client's; an empty one is this machine.
    """

    credential: str
    address: str = ""


class Authenticated(Reply, kw_only=True):
    """A user who has logged in: tags, the roles that they grant, and the vhosts that the user may access.

    `is_token` tells whether the user has logged in by token, and `expires_at` when it expires, in seconds of Unix time.
    `credential` identifies the password while the broker runs; it changes with the password. `grants` are the user's roles.
    """

    name: str
    tags: list[str]
    roles: list[str]
    vhosts: list[str]
    is_token: bool = False
    expires_at: float = 0.0
    credential: str = ""
    grants: list[Grant] = []


class UserInfo(Reply, kw_only=True):
    """A user. Its hash, the algorithm and the SCRAM keys are empty unless the request asks for them.

    A password in clear text has a hash, too. `scram_keys` is null if the user has no keys yet, and empty if SCRAM does not
    support the password. `has_password` tells whether the user has a password in any form.
    """

    name: str
    tags: list[str]
    source: str
    vhosts: list[str]
    max_connections: int
    max_channels: int
    scram: bool
    loopback_only: bool
    has_password: bool
    password_hash: str = ""
    hashing_algorithm: str = ""
    scram_keys: list[str] | None = None


async def _secret(context: Context, request: Password) -> Secret | None:
    """Return the stored form of the password. Hashes in a thread, because hashing is slow."""
    if request.password_hash is not None:
        if request.password is not None:
            raise PreconditionFailed("expected either 'password' or 'password_hash', received both")
        known = context.users.get(request.name)
        if known is not None and not known.password_hash:
            await context.managed.in_thread(context.users.hash_clear)  # the store compares hashes
        return imported_secret(request.password_hash, request.hashing_algorithm, request.scram_keys)
    for name in ("hashing_algorithm", "scram_keys"):
        if getattr(request, name) is not None:
            raise PreconditionFailed(f"'{name}' without 'password_hash'; a password is hashed with argon2id")
    if request.password is None:
        return None
    return await context.managed.in_thread(partial(context.users.secret, request.name, request.password.encode()))


def _describe(context: Context, user: User, hashes: bool) -> UserInfo:
    info = UserInfo(
        name=user.name,
        tags=list(user.tags),
        source=context.users.source(user.name),
        vhosts=sorted(user.permissions),
        max_connections=user.limits.max_connections,
        max_channels=user.limits.max_channels,
        scram=context.users.has_scram(user),
        loopback_only=user.name in context.users.loopback_users,
        has_password=context.users.has_password(user),
    )
    if hashes:
        secret = context.users.export(user)
        info.password_hash = secret.password_hash
        info.hashing_algorithm = secret.hashing_algorithm or (ARGON2ID if secret.password_hash else "")
        info.scram_keys = None if secret.scram is None else format_keys(secret.scram)
    return info


async def list_users(context: Context, request: List) -> Iterator[UserInfo]:
    """List users."""
    if request.hashes:
        await context.managed.in_thread(context.users.hash_clear)
    return (_describe(context, user, request.hashes) for user in context.users.users())


def _add(context: Context, name: str, secret: Secret | None, tags: Iterable[str], limits: UserLimits) -> None:
    secret = secret or NO_PASSWORD
    context.users.add(
        User(
            name=name,
            password_hash=secret.password_hash,
            hashing_algorithm=secret.hashing_algorithm,
            scram=secret.scram,
            tags=tuple(tags),
            limits=limits,
        )
    )


async def add(context: Context, request: Add) -> AddReply:
    """Add a user."""
    secret = await _secret(context, request)
    default = context.users.has_default()
    _add(context, request.name, secret, request.tags, UserLimits(request.max_connections, request.max_channels))
    return AddReply(default_removed=default and not context.users.has_default())


async def set_user(context: Context, request: Set) -> SetReply:
    """Add a user, or replace the password and the tags of an existing one. Its permissions and limits stay."""
    secret = await _secret(context, request) or NO_PASSWORD
    tags = parse_tags(request.tags)
    created = context.users.is_new(request.name)
    if created:
        _add(context, request.name, secret, tags, UserLimits())
    else:
        context.users.change(request.name, secret=secret, tags=tags)
    return SetReply(created=created)


async def keep_default(context: Context, request: Request) -> None:
    """Store the default user, if it exists, so that it remains when users are added. It becomes a user like any other."""
    users = context.users
    if users.has_default():
        await context.managed.in_thread(users.hash_clear)
        users.keep_default()


def hash_password(context: Context, request: HashPassword) -> HashedPassword:
    """Return a hash in RabbitMQ's format, for definitions and `password_hash`."""
    if request.hashing_algorithm not in RABBITMQ_ALGORITHMS:
        raise PreconditionFailed(
            f"unknown hashing algorithm '{request.hashing_algorithm}'; expected one of {', '.join(RABBITMQ_ALGORITHMS)}"
        )
    if not request.password:
        raise PreconditionFailed("the password is empty; expected at least one character")
    return HashedPassword(
        password_hash=rabbitmq_hash(request.password.encode(), request.hashing_algorithm),
        hashing_algorithm=request.hashing_algorithm,
    )


async def authenticate(context: Context, request: Authenticate) -> Authenticated:
    """Check a login by password or token, with the limits of AMQP logins.

    A wrong password and an unknown user get the same reply, after the same time.
    """
    account = await context.managed.authenticate(request.name, request.password.encode(), request.address)
    if account is None:
        raise AccessRefused(f"login refused for user '{request.name}'")
    return _authenticated(context, account)


def resume(context: Context, request: Resume) -> Authenticated:
    """Check that a user still exists with the same password, and return what a login returns."""
    users = context.users
    current = users.credential(request.name)
    if not current or not hmac.compare_digest(current.encode(), request.credential.encode("utf-8", "replace")):
        raise AccessRefused(f"the session of user '{request.name}' has ended: the password has changed")
    if not users.may_connect_from(request.name, request.address):
        raise AccessRefused(f"user '{request.name}' may log in from the local machine only")
    return _authenticated(context, UserAccount(request.name, users))


def _authenticated(context: Context, account: Account) -> Authenticated:
    grants = context.managed.roles.of(account.name)
    may_open = grants.has_vhost if grants else account.may_open
    return Authenticated(
        name=account.name,
        tags=list(account.tags),
        roles=sorted(roles_of(account.tags)),
        vhosts=[name for name in sorted(context.managed.vhost_names()) if may_open(name)],
        is_token=account.is_token,
        expires_at=account.expires_at,
        credential="" if account.is_token else context.users.credential(account.name),
        grants=grants.listed,
    )


async def change(context: Context, request: Change) -> None:
    """Change a user."""
    secret = await _secret(context, request)
    user = context.users.get(request.name)
    limits = None
    if user is not None and (request.max_connections is not None or request.max_channels is not None):
        limits = UserLimits(
            user.limits.max_connections if request.max_connections is None else request.max_connections,
            user.limits.max_channels if request.max_channels is None else request.max_channels,
        )
    context.users.change(request.name, secret=secret, tags=request.tags, limits=limits)


def delete(context: Context, request: Named) -> Closed:
    """Delete a user with its roles, close its connections and return their number."""
    context.users.delete(request.name)
    context.managed.roles.set(request.name, [])
    return Closed(connections=close_all(context, request.name, f"user '{request.name}' was deleted"))


OPERATIONS: Operations = {
    "users.list": Operation(list_users, List, UserInfo),
    "users.add": Operation(add, Add, changes=True),
    "users.set": Operation(set_user, Set, SetReply, changes=True),
    "users.authenticate": Operation(authenticate, Authenticate, Authenticated),
    "users.resume": Operation(resume, Resume, Authenticated),
    "users.hash_password": Operation(hash_password, HashPassword, HashedPassword),
    "users.keep_default": Operation(keep_default, Request, changes=True),
    "users.change": Operation(change, Change, changes=True),
    "users.delete": Operation(delete, Named, Closed, changes=True),
}
