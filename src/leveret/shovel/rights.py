"""The rights of shovels: the permissions and the destinations of the users who set them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from leveret.broker.errors import AccessRefused
from leveret.broker.parameters import Setter
from leveret.client.errors import ConnectionFailed, Error
from leveret.client.parameters import Parameters
from leveret.security.destinations import Destinations, resolve
from leveret.security.tags import ADMINISTRATOR
from leveret.security.tickets import OPERATOR, issue
from leveret.security.users import User, UserStore
from leveret.shovel.definition import Definition, End
from leveret.shovel.uris import AMQP091, AMQP10, at_address, has_credentials, is_local, read_uri, with_ticket

_FILES = ("cafile", "certfile", "keyfile")
_SETTING = "management.shovel_networks"


class Rights:
    """The rights of one shovel.

    At a URI without a host and without credentials, it acts with the permissions of a user of the broker. Unless that user
    is an administrator, the shovel connects to allowed destinations only and names no files.

    Args:
        users: The users.
        setter: The user for whom it acts.
        is_static: Whether the configuration has the shovel, and so decides about destinations and files.
        address: Returns the address of the broker. Raises `Error`.
        destinations: The addresses to which shovels of other users than administrators may connect.
    """

    def __init__(
        self,
        users: UserStore,
        setter: Setter,
        is_static: bool,
        address: Callable[[], tuple[str, int]],
        destinations: Destinations,
    ) -> None:
        self._users = users
        self._setter = setter
        self._is_static = is_static
        self._address = address
        self._destinations = destinations

    @property
    def user(self) -> str:
        """The user for whom the shovel acts."""
        return self._setter.user

    def is_trusted(self) -> bool:
        """Return whether the shovel may connect to every destination and name files."""
        user = self._user()
        return self._is_static or self._setter.is_operator or (user is not None and ADMINISTRATOR in user.tags)

    def basis(self, acts: bool) -> object:
        """Return a value that differs when the rights have changed.

        Args:
            acts: Whether the shovel acts with the permissions of its user.
        """
        user = self._user()
        permissions = (user.permissions, user.topic_permissions) if acts and user is not None else None
        return user is None, self.is_trusted(), permissions

    def check(self, definition: Definition) -> bool:
        """Return whether the shovel acts with the permissions of its user.

        Raises:
            AccessRefused: The shovel may not run. Addresses of names are checked when it connects.
        """
        name = self._setter.user
        if name and self._user() is None:
            state = "was deleted" if self._setter.is_deleted else "does not exist"
            raise AccessRefused(f"user '{name}', for whom the shovel acts, {state}; set it again as another user")
        acts = False
        for side, end in (("src", definition.source), ("dest", definition.destination)):
            for uri in end.uris:
                parameters = read_uri(uri, end.protocol, "")
                self._check_destination(side, uri, parameters)
                if is_local(uri) and not has_credentials(uri, parameters):
                    acts = True
                    self._check_user(side, parameters.vhost)
                    self._check_permission(side, end, parameters.vhost)
        return acts

    async def hosts(self, side: str, end: End, name: str) -> list[tuple[Parameters, str]]:
        """Return the brokers of an end, each with its URI, to try in order. `check` must have passed.

        A URI that cannot be used is skipped if there is another one.

        Args:
            side: "src" or "dest".
            end: The end.
            name: The name of the connection.

        Raises:
            Error: The broker has no address for URIs without a host, or a name has no address.
            AccessRefused: The shovel may not connect to any address of a host, or a URI with a host has no user.
        """
        found: list[tuple[Parameters, str]] = []
        failures: list[Error | AccessRefused] = []
        for uri in end.uris:
            parameters = read_uri(uri, end.protocol, name)
            try:
                places = [self._at_home(uri, parameters)] if is_local(uri) else await self._away(side, uri, end, parameters)
            except (Error, AccessRefused) as error:
                failures.append(error)
            else:
                found += [(place, uri) for place in places]
        if not found:
            raise failures[0]
        return found

    def _user(self) -> User | None:
        """Return the user for whom the shovel acts; None if it is an operator, unknown or deleted."""
        return None if self._setter.is_deleted else self._users.get(self._setter.user)

    def _at_home(self, uri: str, parameters: Parameters) -> Parameters:
        """Return the parameters of a URI without a host."""
        parameters = at_address(parameters, self._address)
        if has_credentials(uri, parameters):
            return parameters
        user = None if self._setter.is_operator else self._setter.user
        return with_ticket(parameters, OPERATOR.name if user is None else user, issue(self._users.keyring.secret, user))

    async def _away(self, side: str, uri: str, end: End, parameters: Parameters) -> list[Parameters]:
        """Return the parameters of a URI with a host, for each address that the shovel may connect to."""
        if not has_credentials(uri, parameters):
            raise AccessRefused(
                f"'{side}-uri' has no user for '{parameters.host}'; expected amqp://USER:PASSWORD@{parameters.host}"
            )
        return [parameters] if self.is_trusted() else await self._resolved(side, end, parameters)

    async def _resolved(self, side: str, end: End, parameters: Parameters) -> list[Parameters]:
        """Return the allowed addresses of a host. Later names of the host have no effect on the connection."""
        host = parameters.host
        try:
            async with asyncio.timeout(parameters.connect_timeout):
                addresses = await resolve(host, parameters.port)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            raise ConnectionFailed(f"cannot resolve '{host}'", host=host, port=parameters.port) from None
        allowed = [address for address in addresses if self._destinations.allows(address)]
        if not allowed:
            raise self._refused_host(side, host)
        if parameters.uses_tls and not parameters.server_name:
            parameters = replace(parameters, server_name=parameters.tls_name)
        if end.protocol == AMQP10 and not parameters.hostname and parameters.vhost == "/":
            parameters = replace(parameters, hostname=host)
        return [replace(parameters, host=address) for address in allowed]

    def _check_destination(self, side: str, uri: str, parameters: Parameters) -> None:
        if self.is_trusted():
            return
        named = [option for option in _FILES if getattr(parameters, option)]
        if named:
            raise AccessRefused(
                f"'{side}-uri' has the option '{named[0]}'; only shovels of users with the tag '{ADMINISTRATOR}' may name"
                " files of the broker's machine"
            )
        if is_local(uri):
            if has_credentials(uri, parameters) and parameters.user in self._users.loopback_users:
                raise AccessRefused(
                    f"'{side}-uri' logs in as '{parameters.user}', who may log in from the local machine only"
                    " (auth.loopback_users); expected a URI without a user, or another user"
                )
        elif not self._destinations.allows_name(parameters.host):
            raise self._refused_host(side, parameters.host)

    def _check_user(self, side: str, vhost: str) -> None:
        name = self._setter.user
        if self._setter.is_operator:
            return
        if not name:
            raise AccessRefused(
                f"'{side}-uri' has no user, and the shovel was set by an earlier version or by a user who logs in by token;"
                " set it again as a user of the broker, or give the URI a user and a password"
            )
        if not self._users.may_open(name, vhost):
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{name}', for whom the shovel acts")

    def _check_permission(self, side: str, end: End, vhost: str) -> None:
        if self._setter.is_operator or end.protocol != AMQP091:
            return
        operation = "read" if side == "src" else "write"
        resource = end.exchange if end.exchange is not None else end.queue if side == "src" else ""
        if end.exchange is None and side == "dest" and not end.queue:
            return  # the exchange of each message
        if not self._users.may(self._setter.user, vhost, operation, resource):
            raise AccessRefused(
                f"{operation} access to '{resource or 'amq.default'}' in vhost '{vhost}' refused for user"
                f" '{self._setter.user}', for whom the shovel acts"
            )

    def _refused_host(self, side: str, host: str) -> AccessRefused:
        return AccessRefused(
            f"'{side}-uri' has the host '{host}', to which only shovels of users with the tag '{ADMINISTRATOR}' may"
            f" connect; the setting is {_SETTING}"
        )
