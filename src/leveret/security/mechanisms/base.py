"""SASL mechanisms without I/O (RFC 4422): responses of the client in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from leveret.security.scram import ScramKeys


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client for more: 0-9-1 `connection.secure`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Success:
    """The client is this user; nothing more to check. `data` is the mechanism's last word to the client, empty for none."""

    username: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class NeedsPassword:
    """The client says that it is this user. Check the password off the event loop (`UserStore.verify`)."""

    username: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The login failed.

    reason    for the log, not for the client
    username  the user whose password was wrong; "" if the failure says nothing of a password
    """

    reason: str
    username: str = ""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Call this off the event loop; it returns the outcome, another one than this."""

    call: Callable[[], Outcome]


Outcome = Challenge | Success | NeedsPassword | Failure | Blocking


@dataclass(frozen=True, slots=True)
class Context:
    """What mechanisms know of a connection.

    certificate     the peer's verified certificate as `ssl.SSLObject.getpeercert()` returns it, None without one
    external_name   the part of it that is the user's name: "common-name" or "subject"
    anonymous_user  who clients without credentials are
    decode_table    reads the pairs of a field table that has no length in front; ValueError where they cannot be read
    scram_keys      the keys of a user for a mechanism, or fake ones; it blocks
    scram_ready     whether every user with a password has keys: otherwise SCRAM is not offered beside passwords in clear
    """

    certificate: dict[str, Any] | None = None
    external_name: str = "common-name"
    anonymous_user: str | None = None
    decode_table: Callable[[bytes], dict[str, Any]] | None = None
    scram_keys: Callable[[str, str], ScramKeys] | None = None
    scram_ready: bool = True


class Mechanism:
    """One exchange with one client. A mechanism is one file that subclasses this and one line in the registry.

    speaks_first  the client has something to say before the first challenge: where it did not come with the mechanism's
                  name, an empty challenge asks for it (RFC 4422 section 3)
    """

    name: ClassVar[str]
    speaks_first: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def available(cls, context: Context) -> bool:
        """Whether it makes sense to offer this mechanism on such a connection."""
        return True

    def step(self, response: bytes) -> Outcome:
        """Take the client's next response, the first being that of `start-ok` or `sasl-init`. Never raises on its
        content."""
        raise NotImplementedError


def text(data: bytes) -> str | None:
    """Decode a user name, None if it is empty or not UTF-8."""
    try:
        name = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name or None
