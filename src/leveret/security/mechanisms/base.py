"""Sans-I/O SASL mechanisms (RFC 4422): client responses in, outcomes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from leveret.broker.values import FieldTable
from leveret.security.scram import ScramKeys

# The form that `ssl` returns: names with strings, numbers and nested tuples.
Certificate: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send a challenge to the client: 0-9-1 `connection.secure`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Success:
    """The login succeeded. `data` is sent to the client with the outcome, if not empty."""

    username: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class NeedsPassword:
    """The client sent a user name and a password. The caller checks them off the event loop (`UserStore.verify`)."""

    username: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The login failed.

    reason    for the log, not for the client
    username  the user whose password was wrong; "" if no password was checked
    """

    reason: str
    username: str = ""


@dataclass(frozen=True, slots=True)
class Blocking:
    """A function to call off the event loop. It returns the outcome, which is not `Blocking`."""

    call: Callable[[], Outcome]


Outcome = Challenge | Success | NeedsPassword | Failure | Blocking


@dataclass(frozen=True, slots=True)
class Context:
    """Properties of a connection that mechanisms use.

    certificate     the peer's verified certificate as `ssl.SSLObject.getpeercert()` returns it, None without one
    external_name   the part of the certificate to use as the user name: "common-name" or "subject"
    anonymous_user  the user of clients without credentials
    decode_table    decodes a field table without its length; raises ValueError if it is malformed
    scram_keys      returns the keys of a user for a mechanism, or fake ones; blocking
    scram_ready     whether every user with a password has keys; if not, SCRAM is not offered alongside PLAIN
    """

    certificate: Certificate | None = None
    external_name: str = "common-name"
    anonymous_user: str | None = None
    decode_table: Callable[[bytes], FieldTable] | None = None
    scram_keys: Callable[[str, str], ScramKeys] | None = None
    scram_ready: bool = True


class Mechanism(ABC):
    """A SASL exchange with one client. A mechanism is one file that subclasses this and one line in the registry.

    `speaks_first` is set if the client sends the first message. If the client did not send it with the name of the
    mechanism, an empty challenge requests it (RFC 4422 section 3).
    """

    name: ClassVar[str]
    speaks_first: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def available(cls, context: Context) -> bool:
        """Return whether the server can offer this mechanism on a connection with these properties."""
        return True

    @abstractmethod
    def step(self, response: bytes) -> Outcome:
        """Process the client's next response; the first one comes with `start-ok` or `sasl-init`.

        Never raises, whatever the content.
        """


def text(data: bytes) -> str | None:
    """Decode a user name, None if it is empty or not UTF-8."""
    try:
        name = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name or None
