"""What becomes of a connection, for `on_event` callbacks and `connection.events()`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leveret.client.errors import Error


class Event:
    """The base of all events."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """The connection is open.

    attempt  which attempt it was, from 1
    first    whether there was none before it
    """

    host: str
    port: int
    attempt: int
    first: bool


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The connection was lost, and why."""

    error: Error


@dataclass(frozen=True, slots=True)
class Reconnecting(Event):
    """The next attempt to connect begins after `delay` seconds.

    attempt  which one it will be since the connection was lost, from 1
    """

    host: str
    port: int
    attempt: int
    delay: float


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """Everything that the last connection had exists again.

    channels     how many channels are open again
    consumers    how many consumers consume again
    republished  how many messages were published again because they had not been confirmed
    """

    channels: int
    consumers: int
    republished: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed(Event):
    """Something of the last connection could not be made again; everything else goes on.

    what   such as "queue 'orders'"
    error  why the server refused it
    """

    what: str
    error: Error


@dataclass(frozen=True, slots=True)
class Blocked(Event):
    """The server takes no messages for the time being: publishing waits."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unblocked(Event):
    """The server takes messages again."""


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """The connection is closed for good. `error` is None where the application closed it."""

    error: Error | None


EventCallback = Callable[[Event], None]
