"""SASL mechanisms without I/O (RFC 4422): responses of the client in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client for more: 0-9-1 `connection.secure`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Success:
    """The client is this user; nothing more to check."""

    username: str


@dataclass(frozen=True, slots=True)
class NeedsPassword:
    """The client says that it is this user. Check the password off the event loop (`UserStore.verify`)."""

    username: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The client is not let in. `reason` is for the log, not for the client."""

    reason: str


Outcome = Challenge | Success | NeedsPassword | Failure


@dataclass(frozen=True, slots=True)
class Context:
    """What mechanisms know of a connection.

    certificate     the peer's verified certificate as `ssl.SSLObject.getpeercert()` returns it, None without one
    external_name   the part of it that is the user's name: "common-name" or "subject"
    anonymous_user  who clients without credentials are
    decode_table    reads the pairs of a field table that has no length in front; ValueError where they cannot be read
    """

    certificate: dict[str, Any] | None = None
    external_name: str = "common-name"
    anonymous_user: str | None = None
    decode_table: Callable[[bytes], dict[str, Any]] | None = None


class Mechanism:
    """One exchange with one client. A mechanism is one file that subclasses this and one line in the registry."""

    name: ClassVar[str]

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def available(cls, context: Context) -> bool:
        """Whether it makes sense to offer this mechanism on such a connection."""
        return True

    def step(self, response: bytes) -> Outcome:
        """Take the client's next response, the first being that of `start-ok`. Never raises on its content."""
        raise NotImplementedError


def text(octets: bytes) -> str | None:
    """A user name as text; None where it cannot be one."""
    try:
        name = octets.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name or None
