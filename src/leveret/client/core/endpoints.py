"""Where a connection is opened: at a server, or at those that it sends us to (AMQP 0-9 `connection.redirect`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.client.errors import ConnectionFailed, Redirected

if TYPE_CHECKING:
    from leveret.client.parameters import Parameters

# Servers in a row that may send us on.
MAX_REDIRECTS: Final = 5


class Endpoints:
    """The servers to try, one after the other. `current` is the next."""

    def __init__(self, parameters: Parameters) -> None:
        self.current = parameters
        self._known: list[tuple[str, int]] = []
        self._redirects = 0

    def advance(self, error: ConnectionFailed) -> None:
        """Go on after a server that sends us elsewhere, or to one of the hosts that it knows where there is none. Raises
        the error where nothing is left to try, and ConnectionFailed where servers send us to one another."""
        current = self.current
        if isinstance(error, Redirected):
            self._redirects += 1
            if self._redirects == MAX_REDIRECTS:
                raise ConnectionFailed(
                    f"{error.host}:{error.port} would be the {MAX_REDIRECTS + 1}th server in a row: they send us to one"
                    " another; expected one that takes us", host=error.host, port=error.port)
            self._known = [endpoint for endpoint in error.known_hosts if endpoint != (error.host, error.port)]
            self.current = replace(current, host=error.host, port=error.port)
        elif self._known and type(error) is ConnectionFailed and not error.reply_code:
            host, port = self._known.pop(0)
            self.current = replace(current, host=host, port=port)
        else:
            raise error
