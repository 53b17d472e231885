"""The consumers of a queue, in round-robin order by priority.

Each priority has one ring of consumers: those that accepted the last entry offered to them. A consumer that refuses
an entry is parked outside of its ring until it has credit again (`unpark`). `Rings.ring` is the ring that is served now:
the non-empty one of the highest priority.

A client may have tens of thousands of consumers on a queue, so no operation visits all of them. A consumer that leaves
stays in its ring, marked `left`, until the queue reaches it or until such consumers are the majority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer

# Below this number, consumers that have left are not removed from the rings.
MIN_STRAYS: Final = 32


class Ring:
    """The consumers of one priority. `members` is the number of those that have not left, parked or not."""

    __slots__ = ("line", "members", "priority", "queued", "resigned", "succession")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.line: deque[Consumer] = deque()
        self.members = 0
        # Whether it is in the heap `Rings.serving`.
        self.queued = False
        # Consumers that wait to become the single active consumer, oldest first.
        self.succession: deque[Consumer] = deque()
        # Number of these that have left.
        self.resigned = 0


# Consumers of a ring (as a power of two) that are passed in 1 µs.
PASSED_SHIFT: Final = 6


# Parts of a queue without consumers, shared by all of them. They stay empty; even an empty deque takes 700 bytes.
NO_RING: Final[deque[Consumer]] = deque()
NO_RINGS: Final[dict[int, Ring]] = {}
NO_PRIORITIES: Final[list[int]] = []


class Rings:
    """The consumers of one queue that acquire entries: neither browsers nor readers of leases.

    consumers           all of them
    exclusive_consumer  the exclusive consumer
    active_consumer     the consumer that is served, with `single_active`
    ring                the consumers that are served now
    rings               all rings by priority
    serving             the negated priorities of the rings that may have consumers, as a heap
    strays              number of consumers in rings that have left
    waiting_consumer    the consumer that was last parked until the next turn, although it had credit and a writable socket
    parkings            number of times that a consumer was parked
    blocked_since       time since which all consumers are parked or have left, 0 if it is not so or there are none
    blocked_time        milliseconds in which it was so, without the present time
    """

    def __init__(self, broker: Broker, single_active: bool) -> None:
        self.broker = broker
        self.single_active = single_active
        self.consumers: dict[Consumer, None] = {}
        self.exclusive_consumer: Consumer | None = None
        self.active_consumer: Consumer | None = None
        self.ring = NO_RING
        self.rings = NO_RINGS
        self.serving = NO_PRIORITIES
        self.strays = 0
        self.waiting_consumer: Consumer | None = None
        self.parkings = 0
        self.blocked_since = 0
        self.blocked_time = 0

    def __len__(self) -> int:
        return len(self.consumers)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self.consumers)

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self.consumers

    def wait_for_turn(self, consumer: Consumer) -> None:
        """Note that a consumer with credit and a writable socket gets its next entries in the next turn."""
        self.waiting_consumer = consumer

    def is_behind(self) -> bool:
        """Return whether a consumer with credit and a writable socket waits for the next turn."""
        consumer = self.waiting_consumer
        if consumer is None:
            return False
        if consumer.parked and not consumer.left and consumer.is_writable():
            return True
        self.waiting_consumer = None
        return False

    def is_exclusive(self) -> bool:
        """Return whether there is an exclusive consumer."""
        consumer = self.exclusive_consumer
        return consumer is not None and not consumer.is_leaving()

    def is_consumed(self) -> bool:
        """Return whether there is a consumer that is not about to leave."""
        passed = 0
        for consumer in self.consumers:
            if not consumer.is_leaving():
                return True
            passed += 1
        self.broker.work += passed >> 3
        return False

    def become_selective(self, consumer: Consumer) -> None:
        """Note that a consumer that accepted every message has become selective."""
        consumer.select()

    def freeze(self) -> None:
        """Stop deliveries until the matching `thaw`, while the order of the entries is restored. Calls nest.

        Nothing to do if the order cannot change.
        """

    def thaw(self) -> bool:
        """Undo one `freeze`. Return whether deliveries resume."""
        return False

    def add(self, consumer: Consumer) -> bool:
        """Add a consumer. Return whether it is served: with a single active consumer it may have to wait."""
        self.consumers[consumer] = None
        if consumer.exclusive:
            self.exclusive_consumer = consumer
        ring = self.rings.get(consumer.priority)
        if ring is None:
            if self.rings is NO_RINGS:
                self.rings = {}
            ring = self.rings[consumer.priority] = Ring(consumer.priority)
            if len(self.rings) == 2:
                self._fill_heap()
        ring.members += 1
        if self.single_active:
            if self.active_consumer is not None:
                consumer.stand_by()
                ring.succession.append(consumer)
                return False
            self.active_consumer = consumer
        self._enter(consumer)
        return True

    def blocked(self) -> tuple[int, int]:
        """Return `blocked_time`, and `blocked_since` in milliseconds of Unix time."""
        since = self.blocked_since
        return self.blocked_time, since + self.broker.timers.step if since else 0

    def remove(self, consumer: Consumer) -> Consumer | None:
        """Remove a consumer. Return the one that replaces it as the single active consumer."""
        del self.consumers[consumer]
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        self.leave(consumer)
        ring = self.rings[consumer.priority]
        ring.members -= 1
        if not ring.members:
            self.strays -= len(ring.line)
            ring.line.clear()
            del self.rings[consumer.priority]
            if len(self.serving) > MIN_STRAYS + 2 * len(self.rings) or len(self.rings) == 1:
                self._fill_heap()
            self._choose()
        elif self.active_consumer is not None and self.active_consumer is not consumer:
            ring.resigned += 1
            if ring.resigned > MIN_STRAYS and ring.resigned * 2 > len(ring.succession):
                ring.succession = deque([other for other in ring.succession if not other.left])
                ring.resigned = 0
        consumer.deactivate()
        if self.active_consumer is not consumer:
            return None
        self.active_consumer = self._successor()
        return self.active_consumer

    def _successor(self) -> Consumer | None:
        """Return the consumer that replaces the single active consumer: the oldest of the highest priority."""
        self.broker.work += len(self.rings) >> 2
        for priority in sorted(self.rings, reverse=True):
            ring = self.rings[priority]
            while ring.succession:
                successor = ring.succession.popleft()
                if successor.left:
                    ring.resigned -= 1
                    continue
                successor.activate()
                self._enter(successor)
                return successor
        return None

    def leave(self, consumer: Consumer) -> None:
        """Deliver nothing more to this consumer, which is about to be removed."""
        if consumer.left:
            return
        consumer.leave()
        if self.waiting_consumer is consumer:
            self.waiting_consumer = None
        if consumer.parked:
            return
        consumer.park()
        self.strays += 1
        if self.strays > MIN_STRAYS and self.strays * 2 > len(self.consumers):
            self.clear_strays()
        self._choose()

    def clear_strays(self) -> None:
        """Remove consumers that have left from their rings."""
        for ring in self.rings.values():
            line = [other for other in ring.line if not other.left]
            ring.line.clear()
            ring.line.extend(line)
        self.strays = 0

    def clear(self) -> list[Consumer]:
        """Remove all consumers, and return them."""
        consumers = list(self.consumers)
        self.consumers = {}
        self.waiting_consumer = None
        self.exclusive_consumer = self.active_consumer = None
        self.ring = NO_RING
        self.rings = NO_RINGS
        self.serving = NO_PRIORITIES
        self.strays = 0
        self.blocked_since = 0
        return consumers

    def unpark(self, consumer: Consumer) -> bool:
        """Return a parked consumer that has credit again to its ring. Return whether it is served."""
        if not consumer.active or consumer.left:
            consumer.park()
            return False
        if len(self.rings) == 1:
            self.ring.append(consumer)
            if self.blocked_since:
                self._end_block()
        else:
            self._enter(consumer)
        return True

    def step_out(self, ring: deque[Consumer]) -> None:
        """Park the first consumer of a ring until it has credit, or drop it if it has left."""
        consumer = ring.popleft()
        if consumer.left:
            self.strays -= 1
        consumer.park()
        self.parkings += 1
        if not ring:
            self._choose()

    def park(self, consumer: Consumer) -> None:
        """Park a consumer, which is anywhere in its ring, until it has credit."""
        line = self.rings[consumer.priority].line
        if line[len(line) - 1] is consumer:
            line.pop()
        else:
            self.broker.work += len(line) >> PASSED_SHIFT
            line.remove(consumer)
        consumer.park()
        self.parkings += 1
        if not line:
            self._choose()

    def lines(self) -> list[deque[Consumer]]:
        """Return the rings with consumers, highest priority first."""
        if len(self.rings) == 1:
            return [ring.line for ring in self.rings.values()]
        self.broker.work += len(self.rings) >> 2
        return [self.rings[priority].line for priority in sorted(self.rings, reverse=True) if self.rings[priority].line]

    def _enter(self, consumer: Consumer) -> None:
        """Put a consumer into its ring."""
        ring = self.rings.get(consumer.priority)
        if ring is None:
            return  # the queue was deleted
        ring.line.append(consumer)
        if not ring.queued and len(self.rings) > 1:
            ring.queued = True
            heappush(self.serving, -consumer.priority)
        self._choose()

    def _fill_heap(self) -> None:
        """Put the rings that may be served into the heap, which exists only if there are several."""
        self.serving = []
        for ring in self.rings.values():
            ring.queued = len(self.rings) > 1 and bool(ring.line)
            if ring.queued:
                heappush(self.serving, -ring.priority)

    def _choose(self) -> None:
        """Choose the non-empty ring of the highest priority, and note whether there is none."""
        self._choose_ring()
        if self.ring or not self.consumers:
            if self.blocked_since:
                self._end_block()
        elif not self.blocked_since:
            self.blocked_since = self.broker.timers.now()

    def _end_block(self) -> None:
        self.blocked_time += self.broker.timers.now() - self.blocked_since
        self.blocked_since = 0

    def _choose_ring(self) -> None:
        if len(self.rings) == 1:
            for only in self.rings.values():
                self.ring = only.line
            return
        serving = self.serving
        while serving:
            ring = self.rings.get(-serving[0])
            if ring is not None and ring.line:
                self.ring = ring.line
                return
            heappop(serving)
            if ring is not None:
                ring.queued = False
        self.ring = NO_RING
