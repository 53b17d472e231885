"""The servers to try in one attempt to connect.

These are the configured server and the servers that it redirects to (AMQP 0-9 `connection.redirect`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.client.errors import ConnectionFailed, Redirected

if TYPE_CHECKING:
    from leveret.client.parameters import Parameters

# Maximum number of consecutive redirects.
MAX_REDIRECTS: Final = 5


class Endpoints:
    """Servers to try, one after the other.

    Attributes:
        current: Parameters of the server to try next.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.current = parameters
        self._known: list[tuple[str, int]] = []
        self._redirects = 0

    def advance(self, error: ConnectionFailed) -> None:
        """Advance to the server that `error` redirects to, or to the next known host of the redirecting server.

        Raises:
            ConnectionFailed: There is no other server (the given error), or there are too many redirects.
        """
        current = self.current
        if isinstance(error, Redirected):
            self._redirects += 1
            if self._redirects == MAX_REDIRECTS:
                raise ConnectionFailed(
                    f"{error.host}:{error.port} is the target of {MAX_REDIRECTS} redirects in a row; expected a server"
                    " that accepts the connection",
                    host=error.host,
                    port=error.port,
                )
            self._known = [endpoint for endpoint in error.known_hosts if endpoint != (error.host, error.port)]
            self.current = replace(current, host=error.host, port=error.port)
        elif self._known and type(error) is ConnectionFailed and not error.reply_code:
            host, port = self._known.pop(0)
            self.current = replace(current, host=host, port=port)
        else:
            raise error
