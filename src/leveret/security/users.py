"""Users from the configuration and from the broker's metadata.

Users of the configuration can be changed only there. The others are stored in the metadata. While no user exists, `guest`
with the password `guest` has all permissions in the vhost `/`, from the same machine (see `auth.loopback_users`).
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from leveret.broker.errors import NotAllowed, NotFound, PreconditionFailed, StorageFailed
from leveret.security.passwords import (
    ARGON2ID,
    DUMMY_HASH,
    RABBITMQ_SHA256,
    Digester,
    Hasher,
    Verdicts,
    check_hash,
    verify_rabbitmq_hash,
)
from leveret.security.permissions import (
    ALL,
    Permission,
    TopicPermission,
    allows,
    allows_topic,
    check_permission,
    check_topic_permission,
)
from leveret.security.scram import Keyring, Keys, ScramKeys, parse_keys
from leveret.security.tags import ADMINISTRATOR

logger = logging.getLogger("leveret.security")

KIND = "user"
# Version of the user records: 1 had no SCRAM keys, 2 no topic permissions and no hashes of RabbitMQ.
FORMAT = 3
# Kind and key of the secret that fake keys are derived from.
SECRET = ("secret", "scram")
DEFAULT_USER = "guest"
DEFAULT_PASSWORD = b"guest"

FROM_CONFIG = "config"
FROM_METADATA = "metadata"
FROM_DEFAULT = "default"

# Writes metadata: kind, key, value (None deletes).
Put = Callable[[str, str, "bytes | None"], None]


class UserLimits(msgspec.Struct, frozen=True):
    """Limits of a user. 0 means that the broker-wide limit applies, -1 allows none."""

    max_connections: int = 0
    max_channels: int = 0


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user.

    `password_hash` is empty for a user without one: see `UserStore.verify`. `scram` has the SCRAM keys of the password,
    None if they have not been created. `hashing_algorithm` is RabbitMQ's name of the algorithm of a hash in RabbitMQ's
    format, "" for argon2id. `topic_permissions` has the topic permissions by vhost and exchange.
    """

    name: str
    password_hash: str = ""
    hashing_algorithm: str = ""
    scram: Keys | None = None
    tags: tuple[str, ...] = ()
    permissions: dict[str, Permission] = {}
    topic_permissions: dict[str, dict[str, TopicPermission]] = {}
    limits: UserLimits = UserLimits()


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a password: its hash, and the SCRAM keys. An empty hash allows no login by password."""

    password_hash: str
    hashing_algorithm: str = ""
    scram: Keys | None = None


NO_PASSWORD = Secret(password_hash="")


def imported_secret(hash: str, algorithm: str | None = None, scram_keys: Sequence[str] | None = None) -> Secret:
    """Return the stored form of a password from its hash; an empty hash stands for no password.

    Args:
        hash: The hash: of argon2id, or in RabbitMQ's format.
        algorithm: The algorithm. The default is the one that the hash has the form of: argon2id, or RabbitMQ's SHA-256.
        scram_keys: The SCRAM keys, if they are known.

    Raises:
        PreconditionFailed: The hash or a key is invalid.
    """
    if not hash:
        return NO_PASSWORD
    algorithm = algorithm or (ARGON2ID if hash.startswith("$argon2id$") else RABBITMQ_SHA256)
    try:
        check_hash(hash, algorithm)
        scram = None if scram_keys is None else parse_keys(scram_keys)
    except ValueError as error:
        raise PreconditionFailed(str(error)) from None
    return Secret(password_hash=hash, hashing_algorithm="" if algorithm == ARGON2ID else algorithm, scram=scram)


class _Record(msgspec.Struct):
    """The fields at the start of every user record."""

    format: int = 1


class DeclaredUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the configuration, with the password if the configuration has it in clear text."""

    user: User
    password: bytes | None = None


class UserStore:
    """All users, their passwords and permissions.

    Everything except `verify`, `scram_keys` and `secret` is called on the event loop; these three block and are for a
    small thread pool.

    put          writes the metadata; the caller ends the turn
    declared_in  source of the users of the configuration; named by the error that rejects a change
    owner        a user with all permissions in every vhost; "" for none
    keyring      creates the SCRAM keys for the enabled mechanisms; by default for none
    rehash       whether a login replaces a hash in RabbitMQ's format by one of argon2id
    has_tokens   whether users also log in by token, who are not in the store
    generation   increases with every change: callers that cache results of `may` drop them when it differs
    """

    def __init__(
        self,
        put: Put | None = None,
        *,
        loopback_users: Iterable[str] = (DEFAULT_USER,),
        declared_in: str = "the configuration",
        owner: str = "",
        hasher: Hasher | None = None,
        keyring: Keyring | None = None,
        rehash: bool = True,
        has_tokens: bool = False,
    ) -> None:
        self.generation = 0
        # Called whenever `generation` increases.
        self.watchers: list[Callable[[], None]] = []
        self.declared_in = declared_in
        self.owner = owner
        self.loopback_users = frozenset(loopback_users)
        self._put = put
        self._hasher = hasher or Hasher()
        self.keyring = keyring or Keyring()
        self.rehash = rehash
        self._has_tokens = has_tokens
        self._changed_names: tuple[str, ...] = ()
        self._digester = Digester()
        self._verdicts = Verdicts()
        self._stored: dict[str, User] = {}
        self._declared: dict[str, User] = {}
        self._digests: dict[str, bytes] = {}
        self._versions: dict[str, int] = {}
        # Clear-text passwords; and SCRAM keys created from them and at logins, each with its password or hash.
        self._clear: dict[str, bytes] = {}
        self._made: dict[str, tuple[str | bytes, Keys]] = {}
        # Hashes of clear-text passwords for exports, each with its password.
        self._hashed: dict[str, tuple[str | bytes | None, str]] = {}
        # New secrets from logins by users whose hash is RabbitMQ's, each with that hash.
        self._rehashed: dict[str, tuple[str, Secret]] = {}
        self._making = threading.Lock()
        self._ready: bool | None = None
        self._default = User(name=DEFAULT_USER, tags=(ADMINISTRATOR,), permissions={"/": ALL})

    # Loading

    def load(self, metadata: Mapping[tuple[str, str], bytes], dropped: Sequence[tuple[str, str]] = ()) -> None:
        """Load the users of the metadata at the start.

        `dropped` has kinds and keys of definitions that were damaged. Users among them stay, without password and
        permissions, so that the default user does not reappear. If no user is left, one with the name of the default
        user is stored, because kind or key of a dropped definition may have been damaged.

        Raises:
            StorageFailed: A later version has written a user.
        """
        for (kind, name), value in metadata.items():
            if kind == KIND:
                user = self._stored[name] = _read_user(name, value)
                try:
                    _check_permissions(name, user.permissions)
                    _check_topic_permissions(name, user.topic_permissions)
                except PreconditionFailed as error:
                    logger.warning("%s; it allows nothing until it is set again", error)
        names = [
            name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            for kind, name in dropped
            if kind == KIND and name not in self._stored
        ]
        if dropped and not self._stored and not names:
            logger.warning(
                "no user is left, and a dropped damaged definition may have been one: the default user stays"
                " disabled; add users with `leveret users add`, or enable it with"
                " `leveret users delete %s`",
                DEFAULT_USER,
            )
            names.append(DEFAULT_USER)
        for name in names:
            self._stored[name] = User(name=name)
            self._write(self._stored[name])
        secret = metadata.get(SECRET)
        if secret is not None:
            self.keyring.secret = secret
        elif self._put is not None:
            self._put(*SECRET, self.keyring.secret)
        self._changed(*self._stored)

    def apply(self, records: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Apply records that another process has stored: kind, key and value, None for a deleted one.

        Records of other kinds are ignored.

        Raises:
            StorageFailed: A later version has written a user.
        """
        names = []
        for kind, key, value in records:
            if kind == KIND:
                names.append(key)
                if value is None:
                    self._stored.pop(key, None)
                else:
                    self._stored[key] = _read_user(key, value)
            elif (kind, key) == SECRET and value is not None:
                self.keyring.secret = value
        if names:
            self._changed(*names)

    def declare(self, users: Mapping[str, DeclaredUser]) -> None:
        """Replace the users of the configuration.

        Raises PreconditionFailed for an invalid expression and changes nothing.
        """
        for name, declared in users.items():
            _check_permissions(name, declared.user.permissions)
            _check_topic_permissions(name, declared.user.topic_permissions)
        names = {*self._declared, *users}
        self._declared = {name: declared.user for name, declared in users.items()}
        self._digests = {
            name: self._digester.digest(name, 0, declared.password)
            for name, declared in users.items()
            if declared.password is not None
        }
        self._clear = {name: declared.password for name, declared in users.items() if declared.password}
        self._made = {name: made for name, made in self._made.items() if name in users or name in self._stored}
        self._hashed = {name: hashed for name, hashed in self._hashed.items() if name in users}
        self._changed(*names)

    # Queries

    def get(self, name: str) -> User | None:
        """Return the user with this name, None if it does not exist."""
        user = self._declared.get(name) or self._stored.get(name)
        if user is None and name == DEFAULT_USER and not self._declared and not self._stored:
            return self._default
        return user

    def users(self) -> list[User]:
        """Return all users, by name."""
        found = {**self._stored, **self._declared} or {DEFAULT_USER: self._default}
        return [found[name] for name in sorted(found)]

    def was_removed(self, name: str) -> bool:
        """Return whether a user was deleted. A user who is not in the store may be that of a token."""
        return self.get(name) is None and (not self._has_tokens or name in self._changed_names)

    def removed(self) -> list[str]:
        """Return the names in the last change that have no user now."""
        return [name for name in self._changed_names if self.get(name) is None]

    def is_new(self, name: str) -> bool:
        """Return whether `add` would add a user with this name, which the default user does not prevent."""
        return name not in self._stored and name not in self._declared

    def source(self, name: str) -> str:
        """Return the source of a user: FROM_CONFIG, FROM_METADATA or FROM_DEFAULT. Raises NotFound."""
        if name in self._declared:
            return FROM_CONFIG
        if name in self._stored:
            return FROM_METADATA
        if self.get(name) is not None:
            return FROM_DEFAULT
        raise NotFound(f"user '{name}' does not exist")

    def may(self, name: str, vhost: str, operation: str, resource: str) -> bool:
        """Return whether a user may configure, write or read an exchange or queue; "" is the default exchange."""
        user = self.get(name)
        if user is not None and name == self.owner:
            return True
        permission = user.permissions.get(vhost) if user is not None else None
        return permission is not None and allows(permission, operation, resource)

    def may_topic(
        self, name: str, vhost: str, operation: str, exchange: str, routing_key: str, client_id: str = ""
    ) -> bool:
        """Return whether the topic permissions of a user allow to write or read a routing key of a topic exchange.

        A user without topic permissions for the exchange may use every routing key.
        """
        user = self.get(name)
        if user is None:
            return False
        permission = user.topic_permissions.get(vhost, {}).get(exchange)
        if permission is None or name == self.owner:
            return True
        variables = {"username": name, "vhost": vhost}
        if client_id:
            variables["client_id"] = client_id
        return allows_topic(permission, operation, routing_key, variables)

    def may_every_topic(self, name: str, vhost: str, exchange: str) -> bool:
        """Return whether a user may write and read every routing key of a topic exchange."""
        user = self.get(name)
        return user is not None and (name == self.owner or exchange not in user.topic_permissions.get(vhost, {}))

    def has_any_permission(self, name: str, vhost: str) -> bool:
        """Return whether any expression of the user in the vhost is not empty."""
        user = self.get(name)
        permission = None if user is None else user.permissions.get(vhost)
        return (user is not None and name == self.owner) or permission not in (None, Permission())

    def may_open(self, name: str, vhost: str) -> bool:
        """Return whether the user may use the vhost: it has permissions there, even if they are empty."""
        user = self.get(name)
        return user is not None and (vhost in user.permissions or name == self.owner)

    def may_connect_from(self, name: str, host: str) -> bool:
        """Return whether the user may log in from an address: the users of `loopback_users` only from loopback.

        An empty host is a local socket.
        """
        if name not in self.loopback_users or not host:
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    # Passwords

    def cached_verdict(self, name: str, password: bytes) -> bool | None:
        """Return the result of `verify` if it is known without hashing, otherwise None. Does not block."""
        verdict = self._verdicts.get(self.digest(name, password))
        # A right clear-text password needs no hash. A wrong one is hashed, so that timing does not reveal that no hash
        # is stored.
        return True if verdict is None and self._is_in_clear(name, password) else verdict

    def digest(self, name: str, password: bytes) -> bytes:
        """Return the digest of a password for the current version of a user, valid in this process only."""
        return self._digester.digest(name, self._versions.get(name, 0), password)

    def was_correct(self, digest: bytes) -> bool:
        """Return whether the password of a digest was right before and the user has not changed since."""
        return self._verdicts.was_correct(digest)

    def verify(self, name: str, password: bytes) -> bool:
        """Return whether this is the user's password. Blocks for the time of one hash, whatever the result."""
        digest = self.digest(name, password)
        verdict = self._verdicts.get(digest)
        if verdict is None:
            # The user may change meanwhile; the keys belong to the old password.
            user = self.get(name)
            verdict = self._check(name, password)
            self._verdicts.put(digest, verdict)
            if verdict and self.rehash and user is not None and user.hashing_algorithm:
                self._rehashed[name] = (user.password_hash, self.secret(name, password))
            elif (
                verdict
                and self.keyring.mechanisms
                and user is not None
                and user.password_hash
                and not self.keyring.complete(self._keys_of(user))
            ):
                self._make(user, user.password_hash, password)
        return verdict

    def _check(self, name: str, password: bytes) -> bool:
        user = self.get(name)
        if user is not None and user.password_hash and not user.hashing_algorithm:
            return self._hasher.verify(user.password_hash, password)
        # Hashes of RabbitMQ take microseconds, so that timing would reveal which users have them.
        self._hasher.verify(DUMMY_HASH, password)
        if user is not None and user.password_hash:
            return verify_rabbitmq_hash(user.password_hash, user.hashing_algorithm, password)
        return self._is_in_clear(name, password)

    def _is_in_clear(self, name: str, password: bytes) -> bool:
        """Return whether the password equals the default user's, or one that the configuration has in clear text.

        A hash would not protect these.
        """
        user = self.get(name)
        if user is None or user.password_hash:
            return False
        known = self._digests.get(name)
        if user is self._default:
            known = self._digester.digest(name, 0, DEFAULT_PASSWORD)
        return known is not None and hmac.compare_digest(known, self._digester.digest(name, 0, password))

    def secret(self, name: str, password: bytes) -> Secret:
        """Return the stored form of a password. Blocking."""
        if not password:
            raise PreconditionFailed("the password is empty; a user without one cannot log in by password")
        keys = self.keyring.make(name, password) if self.keyring.mechanisms else None
        return Secret(password_hash=self._hasher.hash(password), scram=keys)

    def has_password(self, user: User) -> bool:
        """Return whether the user has a password: a hash, or one in clear text."""
        return bool(user.password_hash) or user.name in self._digests or user is self._default

    def hash_clear(self) -> None:
        """Hash the clear-text passwords for `export`, with their SCRAM keys. Blocking.

        The salt depends on the name only, so that each export has the same hash.
        """
        if self.keyring.mechanisms:
            self._make_all()
        for name, password in self._clear_passwords().items():
            user = self.get(name)
            known_as = None if user is None else self._password_of(user)
            if self._hashed.get(name, (None, ""))[0] != known_as:
                self._hashed[name] = (known_as, self._hasher.hash(password, self.keyring.salt(ARGON2ID, name)))

    def export(self, user: User) -> Secret:
        """Return a user's password as it is stored. `hash_clear` has been called before for one in clear text."""
        known_as, hash = self._hashed.get(user.name, (None, ""))
        if user.password_hash or known_as != self._password_of(user):
            hash = user.password_hash
        return Secret(
            password_hash=hash, hashing_algorithm=user.hashing_algorithm, scram=self._keys_of(user) if hash else None
        )

    def credential(self, name: str) -> str:
        """Return an identifier of a user's password, valid in this process only; "" for a user without a password.

        It changes with the password, but not with other properties of the user.
        """
        user = self.get(name)
        password = None if user is None else self._password_of(user)
        if not password:
            return ""
        return self._digester.digest(name, 0, password if isinstance(password, bytes) else password.encode()).hex()

    # SCRAM

    def scram_keys(self, name: str, mechanism: str) -> ScramKeys:
        """Return the keys of a user, or fake keys at the same cost if there are none. Blocking."""
        self._make_all()
        user = self.get(name)
        keys = None if user is None else self._keys_of(user)
        found = None if keys is None else keys.get(mechanism)
        return found or self.keyring.fake(mechanism, name)

    def scram_ready(self) -> bool:
        """Return whether every user whose password SCRAM supports can use it."""
        if self._ready is None:
            self._ready = all(not user.password_hash or self.keyring.complete(self._keys_of(user)) for user in self.users())
        return self._ready

    def has_scram(self, user: User) -> bool:
        """Return whether the user has SCRAM keys, or a clear-text password to create them from."""
        return user.name in self._clear or user is self._default or bool(self._keys_of(user))

    def keep_keys(self, name: str) -> None:
        """Store the SCRAM keys or the new hash that `verify` has created for a user. The caller ends the turn.

        Keys of users of the configuration stay in memory until the process ends.
        """
        if not self._ready:
            self._ready = None
        user = self._stored.get(name)
        hash, secret = self._rehashed.pop(name, ("", NO_PASSWORD))
        if hash and user is not None and user.password_hash == hash and name not in self._declared:
            self._made.pop(name, None)
            self._stored[name] = user = self._with_secret(user, secret)
            self._write(user)
        if name in self._made and user is not None and name not in self._declared:
            password, keys = self._made.pop(name)
            if password == user.password_hash:
                user = msgspec.structs.replace(user, scram=keys)
                self._stored[name] = user
                self._write(user)

    def _keys_of(self, user: User) -> Keys | None:
        password, keys = self._made.get(user.name, (None, None))
        return keys if password is not None and password == self._password_of(user) else user.scram

    def _password_of(self, user: User) -> str | bytes | None:
        """Return a value that identifies the user's password: the clear text or the hash."""
        if user is self._default:
            return FROM_DEFAULT
        return user.password_hash or self._digests.get(user.name)

    def _make_all(self) -> None:
        """Create the missing keys of all clear-text passwords. The first login waits for them, whatever its user name."""
        with self._making:
            for name, password in self._clear_passwords().items():
                user = self.get(name)
                if user is not None and self._keys_of(user) is None:
                    self._make(user, self._password_of(user), password)

    def _clear_passwords(self) -> dict[str, bytes]:
        """Return the passwords in clear text by user."""
        return {DEFAULT_USER: DEFAULT_PASSWORD} if self.has_default() else self._clear

    def _make(self, user: User, known_as: str | bytes | None, password: bytes) -> None:
        if known_as is not None:
            self._made[user.name] = (known_as, self.keyring.make(user.name, password))

    # Changes

    def has_default(self) -> bool:
        """Return whether the default user exists, because no other does."""
        return self.get(DEFAULT_USER) is self._default

    def keep_default(self) -> None:
        """Store the default user, if it exists, so that it remains when users are added. `hash_clear` has been called."""
        if self.has_default():
            secret = self.export(self._default)
            self._store(msgspec.structs.replace(self._default, password_hash=secret.password_hash, scram=secret.scram))

    def add(self, user: User) -> None:
        """Add a user. Raises PreconditionFailed if it exists, NotAllowed if it is declared in the configuration."""
        self._refuse_declared(user.name)
        if user.name in self._stored:
            raise PreconditionFailed(f"user '{user.name}' already exists")
        if not 1 <= len(user.name.encode("utf-8", "surrogateescape")) <= 255:
            raise PreconditionFailed("expected a user name of 1 to 255 bytes")
        _check_permissions(user.name, user.permissions)
        _check_topic_permissions(user.name, user.topic_permissions)
        _check_limits(user.limits)
        self._store(user)

    def change(
        self,
        name: str,
        *,
        secret: Secret | None = None,
        tags: Iterable[str] | None = None,
        limits: UserLimits | None = None,
    ) -> None:
        """Change the given properties.

        Raises NotFound, or NotAllowed if that changes a user who is declared in the configuration.
        """
        user = self._known(name)
        changed = user if secret is None else self._with_secret(user, secret)
        if limits is not None:
            _check_limits(limits)
        self._replace(
            user,
            msgspec.structs.replace(
                changed,
                tags=user.tags if tags is None else tuple(tags),
                limits=user.limits if limits is None else limits,
            ),
        )

    def change_limits(self, name: str, limits: Mapping[str, int]) -> None:
        """Change the given limits. Raises the errors of `change`."""
        self.change(name, limits=msgspec.structs.replace(self._known(name).limits, **limits))

    def set_permission(self, name: str, vhost: str, permission: Permission | None) -> None:
        """Set the user's permissions in a vhost, or remove them with None."""
        user = self._changeable(name) if permission is None else self._known(name)
        permissions = {key: value for key, value in user.permissions.items() if key != vhost}
        if permission is not None:
            _check_permissions(name, {vhost: permission})
            permissions[vhost] = permission
        elif vhost not in user.permissions:
            raise NotFound(f"user '{name}' has no permissions in vhost '{vhost}'")
        self._replace(user, msgspec.structs.replace(user, permissions=permissions))

    def set_topic_permission(self, name: str, vhost: str, exchange: str, permission: TopicPermission) -> None:
        """Set the user's topic permissions for an exchange, which may not exist yet."""
        user = self._known(name)
        _check_topic_permissions(name, {vhost: {exchange: permission}})
        changed = {**user.topic_permissions, vhost: {**user.topic_permissions.get(vhost, {}), exchange: permission}}
        self._replace(user, msgspec.structs.replace(user, topic_permissions=changed))

    def clear_topic_permissions(self, name: str, vhost: str, exchange: str | None = None) -> None:
        """Remove the user's topic permissions for an exchange, or for all exchanges of a vhost. Raises NotFound."""
        user = self._changeable(name)
        known = user.topic_permissions.get(vhost, {})
        kept = {} if exchange is None else {key: value for key, value in known.items() if key != exchange}
        if len(kept) == len(known):
            which = "" if exchange is None else f" for exchange '{exchange}'"
            raise NotFound(f"user '{name}' has no topic permissions{which} in vhost '{vhost}'")
        changed = {key: value for key, value in user.topic_permissions.items() if key != vhost}
        if kept:
            changed[vhost] = kept
        self._store(msgspec.structs.replace(user, topic_permissions=changed))

    def delete(self, name: str) -> None:
        """Delete a user. Raises NotFound, or NotAllowed if the user is declared in the configuration."""
        self._changeable(name)
        del self._stored[name]
        self._made.pop(name, None)
        self._rehashed.pop(name, None)
        if self._put is not None:
            self._put(KIND, name, None)
        self._changed(name)

    def forget_vhost(self, vhost: str) -> None:
        """Remove the permissions in a deleted vhost, except those of the configuration."""
        for user in list(self._stored.values()):
            if vhost in user.permissions or vhost in user.topic_permissions:
                kept = {key: value for key, value in user.permissions.items() if key != vhost}
                topics = {key: value for key, value in user.topic_permissions.items() if key != vhost}
                self._store(msgspec.structs.replace(user, permissions=kept, topic_permissions=topics))

    def _refuse_declared(self, name: str) -> None:
        if name in self._declared:
            raise NotAllowed(f"user '{name}' is declared in {self.declared_in}; change it there")

    def _changeable(self, name: str) -> User:
        self._refuse_declared(name)
        user = self._stored.get(name)
        if user is None:
            if self.get(name) is self._default:
                raise NotAllowed(f"user '{name}' is the default user and is removed when the first user is added")
            raise NotFound(f"user '{name}' does not exist")
        return user

    def _known(self, name: str) -> User:
        """Return a user, who may be declared in the configuration. Raises the errors of `_changeable` for others."""
        return self._declared.get(name) or self._changeable(name)

    def _replace(self, user: User, changed: User) -> None:
        """Store a user who has changed. Raises NotAllowed for a user of the configuration who differs from it."""
        if user.name not in self._declared:
            self._store(changed)
        elif changed != user:
            self._refuse_declared(user.name)

    def _with_secret(self, user: User, secret: Secret) -> User:
        """Return a user with another password. The SCRAM keys of the same one stay. Raises NotAllowed as `_replace`."""
        known = self.export(user)
        is_same = secret.password_hash == known.password_hash and (
            bool(secret.password_hash) or not self.has_password(user)
        )
        if is_same and secret.scram in (None, user.scram):
            return user
        self._refuse_declared(user.name)
        return msgspec.structs.replace(
            user,
            password_hash=secret.password_hash,
            hashing_algorithm=secret.hashing_algorithm,
            scram=secret.scram,
        )

    def _store(self, user: User) -> None:
        self._stored[user.name] = user
        self._write(user)
        self._changed(user.name)

    def _write(self, user: User) -> None:
        if self._put is not None:
            self._put(KIND, user.name, msgspec.json.encode({"format": FORMAT, **msgspec.structs.asdict(user)}))

    def _changed(self, *names: str) -> None:
        # The default user depends on the others.
        self.generation += 1
        self._ready = None
        self._changed_names = (*names, DEFAULT_USER)
        for name in self._changed_names:
            self._versions[name] = self.generation
        for changed in self.watchers:
            changed()


def _check_limits(limits: UserLimits) -> None:
    if min(limits.max_connections, limits.max_channels) < -1:
        raise PreconditionFailed("negative limit; expected at least 0, which applies the default, or -1, which allows none")


def _read_user(name: str, value: bytes) -> User:
    found = msgspec.json.decode(value, type=_Record).format
    if found > FORMAT:
        raise StorageFailed(
            f"user '{name}' is stored in format {found}, and this version supports up to {FORMAT}; it was"
            " written by a later version of Leveret"
        )
    return msgspec.json.decode(value, type=User)


def _check_permissions(name: str, permissions: Mapping[str, Permission]) -> None:
    for vhost, permission in permissions.items():
        try:
            check_permission(permission)
        except PreconditionFailed as error:
            raise PreconditionFailed(f"user '{name}', vhost '{vhost}': {error}") from None


def _check_topic_permissions(name: str, permissions: Mapping[str, Mapping[str, TopicPermission]]) -> None:
    for vhost, by_exchange in permissions.items():
        for exchange, permission in by_exchange.items():
            try:
                check_topic_permission(permission)
            except PreconditionFailed as error:
                raise PreconditionFailed(f"user '{name}', vhost '{vhost}', exchange '{exchange}': {error}") from None
