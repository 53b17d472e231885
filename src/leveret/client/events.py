"""Events of a connection, for `on_event` callbacks and `connection.events()`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from leveret.client.errors import Error


class Event:
    """Base class of all events."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """The connection is open.

    Attributes:
        host: Host of the connection.
        port: Port of the connection.
        attempt: Number of the attempt that succeeded, from 1.
        first: Whether this is the first connection, not a reconnect.
    """

    host: str
    port: int
    attempt: int
    first: bool


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The connection was lost; `error` is the cause."""

    error: Error


@dataclass(frozen=True, slots=True)
class Reconnecting(Event):
    """The next attempt to connect starts after `delay` seconds.

    Attributes:
        host: Host to connect to.
        port: Port to connect to.
        attempt: Number of the attempt since the connection was lost, from 1.
        delay: Seconds until the attempt starts.
    """

    host: str
    port: int
    attempt: int
    delay: float


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """The state of the last connection is restored.

    Attributes:
        channels: Number of channels reopened.
        consumers: Number of consumers restarted.
        republished: Number of messages published again because they had not been confirmed.
    """

    channels: int
    consumers: int
    republished: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed(Event):
    """A part of the last connection could not be restored. All other parts were.

    Attributes:
        what: The part, such as "queue 'orders'".
        error: The server's refusal.
    """

    what: str
    error: Error


@dataclass(frozen=True, slots=True)
class Blocked(Event):
    """The server blocks publishers; publishes wait."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unblocked(Event):
    """The server accepts publishes again."""


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """The connection is closed for good. `error` is None if the application closed it."""

    error: Error | None


EventCallback = Callable[[Event], object]


def supersedes(event: Event, last: Event) -> bool:
    """Return whether a slow application needs only an event, and not the one before: both are `Blocked` or `Unblocked`."""
    states = (Blocked, Unblocked)
    return isinstance(event, states) and isinstance(last, states)


def add_event(events: deque[Event], event: Event) -> None:
    """Append an event for a slow application, in place of one that it supersedes."""
    if events and supersedes(event, events[-1]):
        events[-1] = event
    else:
        events.append(event)
