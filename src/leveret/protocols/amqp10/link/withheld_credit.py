"""Links whose clients get no more credit for now, because the broker is behind with the messages that it has."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.jobs import Job, Jobs

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink

# Maximum number of links that are checked in one step, and units of work after which it ends.
MAX_CHECKED: Final = 100
MAX_WORK: Final = 500


class WithheldCredit(Job):
    """Grants credit to these links once a queue of theirs is no longer behind.

    A step checks some of the links in turn. Deliveries that are behind continue in the next pass of the event loop, so the
    job takes a step in each.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs)
        self.quiet = True
        self._links: deque[IncomingLink] = deque()

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: IncomingLink) -> None:
        """Check a link until it gets credit."""
        self._links.append(link)
        self.resume()

    def step(self) -> bool:
        links = self._links
        broker = self.jobs.broker
        begun = broker.work
        for _ in range(min(len(links), MAX_CHECKED)):
            links.popleft().grant_again()
            if broker.work - begun > MAX_WORK:
                break
        return bool(links)

    def failed(self) -> None:
        if self._links:
            self.resume()
