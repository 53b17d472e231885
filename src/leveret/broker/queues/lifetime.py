"""The lifetime of a queue: what deletes it, besides a client.

`x-expires` deletes a queue that has neither consumers nor browsers, and has had no other use for this time. Readers of
leases do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue


class UnusedTimer(Timed):
    """Deletes a queue that is unused for the time of `x-expires`, in milliseconds."""

    def __init__(self, queue: Queue, expires: int) -> None:
        super().__init__()
        self.queue: Queue | None = queue
        self.timers = queue.broker.timers
        self.expires = expires

    def restart(self) -> None:
        self.timers.at(self.timers.now() + self.expires, self)

    def stop(self) -> None:
        self.timers.cancel(self)

    def release(self) -> None:
        """Stop, and drop the reference to the queue."""
        self.stop()
        self.queue = None

    def fire(self, now: int) -> None:
        queue = self.queue
        if queue is None or queue.deleted or queue.lifetime.users:
            return
        if queue.leased_count:
            self.restart()
        else:
            queue.vhost.remove_queue(queue)


class Lifetime:
    """The lifetime of one queue.

    It has no reference to its queue, so that a deleted queue is freed without a garbage collection. The timer has one until
    the queue is deleted.

    exclusive_owner  the connection with which the queue is deleted; None if it is not exclusive
    auto_delete      the queue is deleted with its last consumer
    temporary        the queue is deleted at the latest with the connection or the last consumer
    users            number of consumers and browsers
    unused           the timer of `x-expires`; None without it
    """

    def __init__(self, exclusive_owner: object | None, auto_delete: bool) -> None:
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.temporary = exclusive_owner is not None or auto_delete
        self.users = 0
        self.unused: UnusedTimer | None = None

    # Definition

    def expire_unused(self, timer: UnusedTimer | None) -> None:
        """Delete the queue when this timer fires, which `touch` starts; None for no `x-expires`."""
        if self.unused is not None:
            self.unused.release()
        self.unused = timer

    def transfer(self, owner: object) -> None:
        """Make another connection the owner of an exclusive queue."""
        self.exclusive_owner = owner

    def delete_when_unused(self) -> None:
        """Delete the queue with its last consumer from now on."""
        self.auto_delete = True

    def make_temporary(self) -> None:
        """Note that a protocol deletes the queue with the object that it belongs to."""
        self.temporary = True

    # Use

    def touch(self) -> None:
        """Note a use of the queue, which restarts `x-expires`."""
        if self.unused is not None:
            self.unused.restart()

    def begin_use(self) -> None:
        """Note a new consumer or browser, which suspends `x-expires`."""
        self.users += 1
        if self.unused is not None:
            self.unused.stop()

    def end_use(self) -> None:
        """Note that a consumer or browser has left; after the last one, `x-expires` restarts."""
        self.users -= 1
        if not self.users:
            self.touch()

    def end(self) -> None:
        """Release the owner and the timer of the deleted queue: remaining references to it must not keep them alive."""
        self.exclusive_owner = None
        if self.unused is not None:
            self.unused.release()
            self.unused = None
