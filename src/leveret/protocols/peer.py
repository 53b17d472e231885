"""What a session may ask of the socket under it. The server subclasses it in plain Python, so it is not compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from leveret.security.mechanisms.base import Certificate

# What a function that runs in a thread returns; instead of it, its `done` may get an exception.
Result: TypeAlias = Any


class Peer:
    """The socket under a session."""

    # address:port of both ends, the client's address, and whether that is this machine
    name: str
    host: str
    local: bool
    # the client certificate as `ssl` gives it, None without TLS or certificate
    certificate: Certificate | None
    tls: bool
    # whether a login waits for the check of its password, in a queue or in a thread
    checking: bool

    def __init__(self) -> None:
        self.name = ""
        self.host = ""
        self.local = False
        self.certificate = None
        self.tls = False
        self.checking = False

    def opened(self) -> None:
        """The client has opened its connection: it is no stranger any more, and gets more memory and time."""

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close after everything written was sent."""
        raise NotImplementedError

    def finish(self) -> None:
        """Say that nothing more will come, and read what still comes until the other side closes: a refusal must not be
        overtaken by the reset that unread bytes would cause (1.0, security section 5.1). The time that a client
        has to open its connection ends this, too."""
        self.close()

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        raise NotImplementedError

    def resume_reading(self) -> None:
        raise NotImplementedError

    def hung_up(self) -> bool:
        """Return whether the other side is known to have closed, without reading."""
        raise NotImplementedError

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in a later turn of the event loop."""
        raise NotImplementedError

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    def run_blocking(self, function: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run something slow (a password hash) in a thread; `done` gets its result, or the exception, on the loop."""
        raise NotImplementedError
