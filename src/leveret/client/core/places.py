"""Where a connection is opened: at a server, or at those that it sends us to (AMQP 0-9 `connection.redirect`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.client.errors import ConnectionFailed, Redirected

if TYPE_CHECKING:
    from leveret.client.parameters import Parameters

# Servers in a row that may send us on.
MOST_REDIRECTS: Final = 5


class Places:
    """The servers to try, one after the other. `here` is the next."""

    def __init__(self, parameters: Parameters) -> None:
        self.here = parameters
        self._known: list[tuple[str, int]] = []
        self._redirects = 0

    def move(self, error: ConnectionFailed) -> None:
        """Go on after a server that sends us elsewhere, or to one of the hosts that it knows where there is none. Raises
        the error where nothing is left to try, and ConnectionFailed where servers send us to one another."""
        here = self.here
        if isinstance(error, Redirected):
            self._redirects += 1
            if self._redirects == MOST_REDIRECTS:
                raise ConnectionFailed(
                    f"{error.host}:{error.port} would be the {MOST_REDIRECTS + 1}th server in a row: they send us to one"
                    " another; expected one that takes us", host=error.host, port=error.port)
            self._known = [place for place in error.known_hosts if place != (error.host, error.port)]
            self.here = replace(here, host=error.host, port=error.port)
        elif self._known and type(error) is ConnectionFailed and not error.reply_code:
            host, port = self._known.pop(0)
            self.here = replace(here, host=host, port=port)
        else:
            raise error
