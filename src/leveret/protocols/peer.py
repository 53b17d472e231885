"""Interface of a session to its socket. The server subclasses it in plain Python, so it is not compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from leveret.security.mechanisms.base import Certificate

# Result of a function that runs in a thread; its `done` may get an exception instead.
Result: TypeAlias = Any


class Peer:
    """The socket under a session."""

    # address:port of both ends, the client's address, and whether it is the local machine
    name: str
    host: str
    local: bool
    # the client certificate as returned by `ssl`; None without TLS or certificate
    certificate: Certificate | None
    tls: bool
    # whether a login waits for the check of its password
    checking: bool

    def __init__(self) -> None:
        self.name = ""
        self.host = ""
        self.local = False
        self.certificate = None
        self.tls = False
        self.checking = False

    def opened(self) -> None:
        """Lift the limits for clients that have not opened their connection."""

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close after all output has been sent."""
        raise NotImplementedError

    def finish(self) -> None:
        """Shut down the output, and discard input until the client closes.

        Unread bytes would cause a reset, which could overtake a refusal (1.0 security section 5.1). The time limit for
        opening a connection applies.
        """
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
        """Run a slow function in a thread; `done` gets its result or exception on the event loop."""
        raise NotImplementedError
