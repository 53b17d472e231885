"""Users: from the configuration, and from the broker's metadata.

A user that the configuration names is as the configuration says, and only that can change it. The others are kept in
the metadata. As long as there is no user at all there is `guest` with the password `guest`, who may do everything in
the vhost `/`, from the same machine (see `auth.loopback_users`).
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from leveret.broker.errors import NotAllowed, NotFound, PreconditionFailed, StorageFailed
from leveret.security.passwords import DUMMY_HASH, Digester, Hasher, Verdicts
from leveret.security.permissions import ALL, Permission, allows, check_permission
from leveret.security.scram import Keyring, Keys, ScramKeys

log = logging.getLogger("leveret.security")

KIND = "user"
# Of the records of users: 1 had no keys of SCRAM.
FORMAT = 2
# Metadata kind of the secret that fake keys are derived from.
SECRET = ("secret", "scram")
ADMINISTRATOR = "administrator"
DEFAULT_USER = "guest"
DEFAULT_PASSWORD = b"guest"

FROM_CONFIG = "config"
FROM_METADATA = "metadata"
FROM_DEFAULT = "default"

# The store's own share of the metadata: kind, key, value (None deletes).
Put = Callable[[str, str, "bytes | None"], None]


class UserLimits(msgspec.Struct, frozen=True):
    """0 means that the broker-wide limit holds."""

    max_connections: int = 0
    max_channels: int = 0


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user. `password_hash` is empty for one without a hash: see `UserStore.verify`. `scram` is what SCRAM keeps of the
    password, None where it has not been made yet."""

    name: str
    password_hash: str = ""
    scram: Keys | None = None
    tags: tuple[str, ...] = ()
    permissions: dict[str, Permission] = {}
    limits: UserLimits = UserLimits()


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a password: its hash, and the keys of SCRAM."""

    password_hash: str
    scram: Keys | None = None


class _Record(msgspec.Struct):
    """What every record of a user begins with."""

    format: int = 1


class DeclaredUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the configuration, and its password where that is there in clear."""

    user: User
    password: bytes | None = None


class UserStore:
    """All users, their passwords and permissions.

    put          writes the metadata; the caller ends the turn
    declared_in  what to name in the refusal to change a user of the configuration
    owner        a user who may do everything in every vhost, whatever its permissions say; "" for none
    keyring      makes the keys of SCRAM, for those of its mechanisms that are in use; by default for none
    generation   grows with every change: callers that cache answers of `may` drop them when it differs

    Everything but `verify`, `scram_keys` and `secret` is called on the event loop; these block and are for a small thread
    pool.
    """

    def __init__(self, put: Put | None = None, *, loopback_users: Iterable[str] = (DEFAULT_USER,),
                 declared_in: str = "the configuration", owner: str = "", hasher: Hasher | None = None,
                 keyring: Keyring | None = None) -> None:
        self.generation = 0
        # Called whenever `generation` grows.
        self.on_change: Callable[[], None] | None = None
        self.declared_in = declared_in
        self.owner = owner
        self.loopback_users = frozenset(loopback_users)
        self._put = put
        self._hasher = hasher or Hasher()
        self.keyring = keyring or Keyring()
        self._digester = Digester()
        self._verdicts = Verdicts()
        self._stored: dict[str, User] = {}
        self._declared: dict[str, User] = {}
        self._digests: dict[str, bytes] = {}
        self._versions: dict[str, int] = {}
        # Passwords in clear; and the keys of SCRAM that were made of them and of those of logins, each with what stands for
        # the password.
        self._clear: dict[str, bytes] = {}
        self._made: dict[str, tuple[str | bytes, Keys]] = {}
        self._making = threading.Lock()
        self._ready: bool | None = None
        self._default = User(name=DEFAULT_USER, tags=(ADMINISTRATOR,), permissions={"/": ALL})

    # Loading

    def load(self, metadata: Mapping[tuple[str, str], bytes], dropped: Sequence[tuple[str, str]] = ()) -> None:
        """Take the users of the metadata, at the start. StorageFailed where a later version has written them.

        `dropped`: kinds and keys of definitions that were damaged. Users among them stay, without password and
        permissions, so that the default user does not come back. If no user is left, one with the name of the default
        user is stored: the kind or the key of a dropped definition may be what was damaged.
        """
        for (kind, name), value in metadata.items():
            if kind == KIND:
                user = self._stored[name] = _read_user(name, value)
                try:
                    _check_permissions(name, user.permissions)
                except PreconditionFailed as error:
                    log.warning("%s; until it is set again it allows nothing", error)
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                 for kind, name in dropped if kind == KIND and name not in self._stored]
        if dropped and not self._stored and not names:
            log.warning("no user is left, and a dropped damaged definition may have been one: the default user stays"
                        " disabled; add users with `leveret users add`, or enable it with"
                        " `leveret users delete %s`", DEFAULT_USER)
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

    def declare(self, users: Mapping[str, DeclaredUser]) -> None:
        """Take the users of the configuration, in place of those that it had before.

        Raises PreconditionFailed for an expression that cannot be used; then nothing has changed.
        """
        for name, declared in users.items():
            _check_permissions(name, declared.user.permissions)
        names = {*self._declared, *users}
        self._declared = {name: declared.user for name, declared in users.items()}
        self._digests = {
            name: self._digester.digest(name, 0, declared.password)
            for name, declared in users.items()
            if declared.password is not None
        }
        self._clear = {name: declared.password for name, declared in users.items() if declared.password}
        self._made = {name: made for name, made in self._made.items() if name in users or name in self._stored}
        self._changed(*names)

    # Queries

    def get(self, name: str) -> User | None:
        """The user of that name."""
        user = self._declared.get(name) or self._stored.get(name)
        if user is None and name == DEFAULT_USER and not self._declared and not self._stored:
            return self._default
        return user

    def users(self) -> list[User]:
        """All users by name."""
        found = {**self._stored, **self._declared} or {DEFAULT_USER: self._default}
        return [found[name] for name in sorted(found)]

    def source(self, name: str) -> str:
        """Where the user comes from: FROM_CONFIG, FROM_METADATA or FROM_DEFAULT. NotFound without such a user."""
        if name in self._declared:
            return FROM_CONFIG
        if name in self._stored:
            return FROM_METADATA
        if self.get(name) is not None:
            return FROM_DEFAULT
        raise NotFound(f"no user '{name}'")

    def may(self, name: str, vhost: str, operation: str, resource: str) -> bool:
        """Whether the user may configure, write or read the exchange or queue; "" is the default exchange."""
        user = self.get(name)
        if user is not None and name == self.owner:
            return True
        permission = user.permissions.get(vhost) if user is not None else None
        return permission is not None and allows(permission, operation, resource)

    def has_any_permission(self, name: str, vhost: str) -> bool:
        """Whether any of the user's expressions in the vhost is not empty."""
        user = self.get(name)
        permission = None if user is None else user.permissions.get(vhost)
        return (user is not None and name == self.owner) or permission not in (None, Permission())

    def may_open(self, name: str, vhost: str) -> bool:
        """Whether the user may use the vhost: it has permissions there, be they empty."""
        user = self.get(name)
        return user is not None and (vhost in user.permissions or name == self.owner)

    def may_connect_from(self, name: str, host: str) -> bool:
        """Whether the user may log in from an address: the users of `loopback_users` from loopback only.

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
        """Return the result of `verify` if it is known without a hash, otherwise None. Does not block."""
        verdict = self._verdicts.get(self.digest(name, password))
        # A right password in clear takes no hash. A wrong one does: it must not show that there is no hash.
        return True if verdict is None and self._is_in_clear(name, password) else verdict

    def digest(self, name: str, password: bytes) -> bytes:
        """Return the digest of a password for the present version of a user, valid in this process only."""
        return self._digester.digest(name, self._versions.get(name, 0), password)

    def was_right(self, digest: bytes) -> bool:
        """Whether the password of a digest was right before, and the user has not changed since."""
        return self._verdicts.was_right(digest)

    def verify(self, name: str, password: bytes) -> bool:
        """Whether this is the user's password. Blocks for the time of one hash, whatever the answer and its reason."""
        digest = self.digest(name, password)
        verdict = self._verdicts.get(digest)
        if verdict is None:
            # The user may change meanwhile: what is made belongs to the password that there was before.
            user = self.get(name)
            verdict = self._check(name, password)
            self._verdicts.put(digest, verdict)
            if (verdict and self.keyring.mechanisms and user is not None and user.password_hash
                    and not self.keyring.complete(self._keys_of(user))):
                self._make(user, user.password_hash, password)
        return verdict

    def _check(self, name: str, password: bytes) -> bool:
        user = self.get(name)
        if user is not None and user.password_hash:
            return self._hasher.verify(user.password_hash, password)
        self._hasher.verify(DUMMY_HASH, password)
        return self._is_in_clear(name, password)

    def _is_in_clear(self, name: str, password: bytes) -> bool:
        """Whether the password is one that the configuration has in clear (no hash would protect it better), or the default
        user's."""
        user = self.get(name)
        if user is None or user.password_hash:
            return False
        known = self._digests.get(name)
        if user is self._default:
            known = self._digester.digest(name, 0, DEFAULT_PASSWORD)
        return known is not None and hmac.compare_digest(known, self._digester.digest(name, 0, password))

    def secret(self, name: str, password: bytes) -> Secret:
        """What to keep of a user's password. Blocking."""
        if not password:
            raise PreconditionFailed("the password is empty; a user without one cannot log in by password")
        keys = self.keyring.make(name, password) if self.keyring.mechanisms else None
        return Secret(password_hash=self._hasher.hash(password), scram=keys)

    # SCRAM

    def scram_keys(self, name: str, mechanism: str) -> ScramKeys:
        """Return the keys of a user, or fake keys at the same cost if there are none. Blocking."""
        self._make_all()
        user = self.get(name)
        keys = None if user is None else self._keys_of(user)
        found = None if keys is None else keys.get(mechanism)
        return found or self.keyring.fake(mechanism, name)

    def scram_ready(self) -> bool:
        """Whether every user with a password can use SCRAM, as far as the password allows it."""
        if self._ready is None:
            self._ready = all(not user.password_hash or self.keyring.complete(self._keys_of(user))
                              for user in self.users())
        return self._ready

    def has_scram(self, user: User) -> bool:
        """Whether the user has keys of SCRAM, or a password in clear that they are made of."""
        return user.name in self._clear or user is self._default or bool(self._keys_of(user))

    def keep_keys(self, name: str) -> None:
        """Keep the keys that `verify` has made of the password of a user who had none. For those of the configuration that
        means until the end of the process. The caller ends the turn."""
        if not self._ready:
            self._ready = None
        user = self._stored.get(name)
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
        """What stands for the user's password, and for no other one."""
        if user is self._default:
            return FROM_DEFAULT
        return user.password_hash or self._digests.get(user.name)

    def _make_all(self) -> None:
        """Make the missing keys of all clear-text passwords. The first login waits for them, whatever its user name."""
        clear = self._clear
        if self.get(DEFAULT_USER) is self._default:
            clear = {DEFAULT_USER: DEFAULT_PASSWORD}
        with self._making:
            for name, password in clear.items():
                user = self.get(name)
                if user is not None and self._keys_of(user) is None:
                    self._make(user, self._password_of(user), password)

    def _make(self, user: User, known_as: str | bytes | None, password: bytes) -> None:
        if known_as is not None:
            self._made[user.name] = (known_as, self.keyring.make(user.name, password))

    # Changes

    def add(self, user: User) -> None:
        """Add a user. PreconditionFailed where it exists, NotAllowed where the configuration names it."""
        self._refuse_declared(user.name)
        if user.name in self._stored:
            raise PreconditionFailed(f"user '{user.name}' exists already")
        if not 1 <= len(user.name.encode("utf-8", "surrogateescape")) <= 255:
            raise PreconditionFailed("expected a user name of 1 to 255 bytes")
        _check_permissions(user.name, user.permissions)
        self._store(user)

    def change(self, name: str, *, secret: Secret | None = None, tags: Iterable[str] | None = None,
               limits: UserLimits | None = None) -> None:
        """Change what is given. NotFound without such a user, NotAllowed where the configuration names it."""
        user = self._changeable(name)
        self._store(msgspec.structs.replace(
            user,
            password_hash=user.password_hash if secret is None else secret.password_hash,
            scram=user.scram if secret is None else secret.scram,
            tags=user.tags if tags is None else tuple(tags),
            limits=user.limits if limits is None else limits,
        ))

    def set_permission(self, name: str, vhost: str, permission: Permission | None) -> None:
        """Set the user's permissions in a vhost, or take them away with None."""
        user = self._changeable(name)
        permissions = {key: value for key, value in user.permissions.items() if key != vhost}
        if permission is not None:
            _check_permissions(name, {vhost: permission})
            permissions[vhost] = permission
        elif vhost not in user.permissions:
            raise NotFound(f"user '{name}' has no permissions in vhost '{vhost}'")
        self._store(msgspec.structs.replace(user, permissions=permissions))

    def delete(self, name: str) -> None:
        """Delete a user. NotFound without such a user, NotAllowed where the configuration names it."""
        self._changeable(name)
        del self._stored[name]
        self._made.pop(name, None)
        if self._put is not None:
            self._put(KIND, name, None)
        self._changed(name)

    def forget_vhost(self, vhost: str) -> None:
        """The vhost was deleted: so are the permissions in it, but for those of the configuration."""
        for user in list(self._stored.values()):
            if vhost in user.permissions:
                kept = {key: value for key, value in user.permissions.items() if key != vhost}
                self._store(msgspec.structs.replace(user, permissions=kept))

    def _refuse_declared(self, name: str) -> None:
        if name in self._declared:
            raise NotAllowed(f"user '{name}' is declared in {self.declared_in}; change it there")

    def _changeable(self, name: str) -> User:
        self._refuse_declared(name)
        user = self._stored.get(name)
        if user is None:
            if self.get(name) is self._default:
                raise NotAllowed(f"user '{name}' is the default one and goes when the first user is added")
            raise NotFound(f"no user '{name}'")
        return user

    def _store(self, user: User) -> None:
        self._stored[user.name] = user
        self._write(user)
        self._changed(user.name)

    def _write(self, user: User) -> None:
        if self._put is not None:
            self._put(KIND, user.name, msgspec.json.encode({"format": FORMAT, **msgspec.structs.asdict(user)}))

    def _changed(self, *names: str) -> None:
        # The default user comes and goes with the others.
        self.generation += 1
        self._ready = None
        for name in (*names, DEFAULT_USER):
            self._versions[name] = self.generation
        if self.on_change is not None:
            self.on_change()


def _read_user(name: str, value: bytes) -> User:
    found = msgspec.json.decode(value, type=_Record).format
    if found > FORMAT:
        raise StorageFailed(f"user '{name}' is stored in format {found}, this version knows up to {FORMAT}; a later version"
                            " of Leveret has written it")
    return msgspec.json.decode(value, type=User)


def _check_permissions(name: str, permissions: Mapping[str, Permission]) -> None:
    for vhost, permission in permissions.items():
        try:
            check_permission(permission)
        except PreconditionFailed as error:
            raise PreconditionFailed(f"user '{name}', vhost '{vhost}': {error}") from None
