"""State shared by the connections of one protocol. Each protocol registers a subclass with `Services`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.vhost import Vhost
    from leveret.security.users import UserStore


class SharedState:
    """The state of one protocol in a server. Every method is an optional hook."""

    def recover(self, recovery: Recovery) -> None:
        """Recover the state of the protocol from the log, before the broker recovers its queues."""

    def start(self, post: Callable[[Callable[[], None]], object]) -> None:
        """Start, after the log has started. `post` schedules a callback on the event loop from any thread."""

    def is_ready(self) -> bool:
        """Return whether connections may be accepted."""
        return True

    def users_changed(self, users: UserStore) -> None:
        """Handle a change of users or permissions."""

    def vhost_removed(self, vhost: Vhost) -> None:
        """Handle the deletion of a vhost, whose connections are already closed."""
