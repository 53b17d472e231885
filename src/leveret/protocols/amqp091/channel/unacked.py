"""Unacknowledged deliveries of a channel (0-9-1 basic.ack, basic.recover). On the hot path."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Final

from leveret.broker.consumer import Deliveries
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Entry
from leveret.broker.queues.frozen import FrozenQueues
from leveret.broker.timers import Timers
from leveret.protocols.amqp091.channel.consumers import ChannelConsumer

# Delivery tags that are looked up or sorted at once, and the units of work.
PIECE: Final = 2000
PIECE_WORK: Final = 200
# Numbers per delivery up to which tags are looked up by all possible numbers.
MAX_SPAN: Final = 4


class UnackedDeliveries:
    """Delivery tags of a channel, and its deliveries that the client has not acknowledged.

    Attributes:
        entries: entries by delivery tag.
        gets: number of deliveries of basic.get, which do not count in any window.
        sized: whether a window counts bytes, so that `size` is kept.
        size: bytes of the entries, and of those settled in an open transaction.
        tracked: whether `uncount` has an effect: there are gets, or sizes or times are kept.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._next_tag = 1
        # Lower bound of the tags in `entries`.
        self._low_tag = 1
        self.entries: dict[int, Entry] = {}
        # Number of deliveries that need no acknowledgement, and of all replies to basic.get.
        self.untracked = 0
        self.gets = 0
        self.sized = False
        self.size = 0
        self.tracked = False
        # Times of deliveries by tag, for the consumer timeout; None if they are not kept.
        self._times: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.entries)

    # Deliveries

    def new_tag(self) -> int:
        """Return the delivery tag of a delivery that is not added, or added by `put`."""
        tag = self._next_tag
        self._next_tag = tag + 1
        self.untracked += 1
        return tag

    def delivered(self) -> int:
        """Return the number of deliveries and replies to basic.get."""
        return self._next_tag - 1

    def any_delivered(self) -> bool:
        """Return whether the channel has delivered anything."""
        return self._next_tag > 1

    def add(self, entry: Entry) -> int:
        """Add a delivery to a consumer, and return its tag."""
        tag = self._next_tag
        self._next_tag = tag + 1
        self.entries[tag] = entry
        if self.tracked:
            if self.sized:
                self.count(entry)
            if self._times is not None:
                self._times[tag] = self._timers.now()
        return tag

    def put(self, tag: int, entry: Entry) -> None:
        """Add a delivery that `count` has counted."""
        self.entries[tag] = entry
        if self._times is not None:
            self._times[tag] = self._timers.now()

    def restore(self, tag: int, entry: Entry) -> None:
        """Add a delivery again whose acknowledgement is rolled back."""
        self.entries[tag] = entry
        if tag < self._low_tag:
            self._low_tag = tag

    def count(self, entry: Entry) -> None:
        """Count an entry in the windows by size, or in the number of gets."""
        holder = entry.holder
        if holder is None:
            self.gets += 1
            self.tracked = True
        if self.sized:
            size = entry.message.size
            self.size += size
            if isinstance(holder, ChannelConsumer):
                holder.count_size(size)

    def uncount(self, tag: int, entry: Entry) -> None:
        """Remove an entry from the number of gets, the windows by size and the consumer timeout."""
        holder = entry.holder
        if holder is None:
            self.gets -= 1
            self.tracked = self.gets > 0 or self.sized or self._times is not None
        if self.sized:
            size = entry.message.size
            self.size -= size
            if isinstance(holder, ChannelConsumer):
                holder.count_size(-size)
        if self._times is not None:
            self._times.pop(tag, None)

    def remove(self, tag: int, entry: Entry) -> None:
        """Remove a delivery."""
        del self.entries[tag]
        self.uncount(tag, entry)

    def begin_sizes(self, entries: list[Entry]) -> None:
        """Begin to count bytes: those of the channel's entries now, and of all deliveries from now on.

        The consumers of the channel have counted none.
        """
        self.sized = True
        self.tracked = True
        self.size = sum(entry.message.size for entry in entries)
        for entry in entries:
            holder = entry.holder
            if isinstance(holder, ChannelConsumer):
                holder.count_size(entry.message.size)

    def oldest_time(self, now: int) -> int:
        """Return the time of the oldest delivery in milliseconds; `now` if there is none."""
        return now if self._times is None else min(self._times.values(), default=now)

    def begin_times(self) -> None:
        """Keep the times of deliveries from now on. Earlier deliveries count as made now."""
        if self._times is None:
            self.tracked = True
            self._times = dict.fromkeys(self.entries, self._timers.now())

    def deliveries(self, connection: int, channel: int) -> Deliveries:
        """Return the deliveries by tag, for a channel with these numbers."""
        return Deliveries(connection, channel, self.entries, self._low_tag, self._next_tag, -1)

    # Acknowledgements

    def take(self, tag: int, multiple: bool) -> list[tuple[int, Entry]]:
        """Remove and return the deliveries that an acknowledgement covers (0-9-1 basic.ack.multiple.exists).

        Raises:
            PreconditionFailed: the delivery tag is unknown or already acknowledged.
        """
        entries = self.entries
        if not multiple:
            entry = entries.pop(tag, None)
            if entry is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            return [(tag, entry)]
        if tag == 0:
            taken = sorted(entries.items())
            entries.clear()
            self._low_tag = self._next_tag
            return taken
        if tag not in entries:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        taken = []
        if tag - self._low_tag > 4 * len(entries) + 64:
            for number in sorted(entries):
                if number > tag:
                    break
                taken.append((number, entries.pop(number)))
        else:
            for number in range(self._low_tag, tag + 1):
                found = entries.pop(number, None)
                if found is not None:
                    taken.append((number, found))
        self._low_tag = tag + 1
        return taken

    def take_up_to(self, tag: int) -> list[Entry]:
        """Remove, uncount and return the deliveries up to a tag, or all if it is 0.

        Raises:
            PreconditionFailed: the delivery tag is unknown or already acknowledged.
        """
        entries = self.entries
        if not tag:
            tag = self._next_tag - 1
        elif tag not in entries:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        taken = []
        if tag - self._low_tag > 4 * len(entries) + 64:
            for number in sorted(entries):
                if number > tag:
                    break
                entry = entries.pop(number)
                if self.tracked:
                    self.uncount(number, entry)
                taken.append(entry)
        else:
            for number in range(self._low_tag, tag + 1):
                found = entries.pop(number, None)
                if found is not None:
                    if self.tracked:
                        self.uncount(number, found)
                    taken.append(found)
        self._low_tag = tag + 1
        return taken

    def taking_up_to(self, last: int, newest_first: bool) -> Iterator[list[int]]:
        """Return an iterator over the tags up to `last`, or over all if it is 0, as `tags_between` yields them.

        The caller must remove their deliveries. If it fails, the iterator is not exhausted.

        Raises:
            PreconditionFailed: the delivery tag is unknown or already acknowledged.
        """
        if not last:
            last = self._next_tag - 1
        elif last not in self.entries:
            raise PreconditionFailed(f"unknown delivery tag {last}")
        return self._taking(last, newest_first)

    def _taking(self, last: int, newest_first: bool) -> Iterator[list[int]]:
        yield from tags_between(self.entries, self._low_tag, last, newest_first)
        if last >= self._low_tag:
            self._low_tag = last + 1

    def all_tags(self) -> Iterator[list[int]]:
        """Return an iterator over all tags, oldest first, as `tags_between` yields them."""
        return tags_between(self.entries, self._low_tag, self._next_tag - 1, False)

    # Requeuing

    def requeuing(self) -> Iterator[int]:
        """Requeue unacknowledged entries, newest first, so that they keep their order.

        Entries delivered meanwhile are not requeued. An entry counts in the window until it is requeued.
        """
        frozen = FrozenQueues()
        try:
            for tags in self.taking_up_to(0, True):
                yield PIECE_WORK
                for tag in tags:
                    if self._requeue(tag, frozen):
                        yield 2
        finally:
            frozen.thaw()

    def requeuing_tags(self, tags: list[int]) -> Iterator[int]:
        """Requeue the deliveries with these tags, last tag first."""
        frozen = FrozenQueues()
        try:
            while tags:
                if self._requeue(tags.pop(), frozen):
                    yield 2
        finally:
            frozen.thaw()

    def _requeue(self, tag: int, frozen: FrozenQueues) -> bool:
        """Requeue a delivery; return False if it is no longer unacknowledged."""
        entry = self.entries.pop(tag, None)
        if entry is None:
            return False
        frozen.freeze(entry.queue)
        self.uncount(tag, entry)
        entry.queue.requeue(entry)
        return True


def tags_between(entries: dict[int, Entry], first: int, last: int, newest_first: bool) -> Iterator[list[int]]:
    """Yield the tags of deliveries from `first` to `last` in order, in pieces, some of which may be empty.

    Deliveries may be removed meanwhile, and others be added with tags above `last`.
    """
    if last + 1 - first > MAX_SPAN * len(entries) + PIECE:
        yield from _sorted_tags(entries, last, newest_first)
        return
    starts = range(first, last + 1, PIECE)
    for start in reversed(starts) if newest_first else starts:
        tags = [tag for tag in range(start, min(start + PIECE, last + 1)) if tag in entries]
        if newest_first:
            tags.reverse()
        yield tags


def _sorted_tags(entries: dict[int, Entry], last: int, newest_first: bool) -> Iterator[list[int]]:
    """Yield the same tags if they are few among many numbers: they are sorted in pieces, which are then merged.

    A rollback can leave the tags in any order.
    """
    unsorted = list(entries)
    runs: list[list[int]] = []
    for at in range(0, len(unsorted), PIECE):
        run = [tag for tag in unsorted[at : at + PIECE] if tag <= last]
        run.sort(reverse=newest_first)
        runs.append(run)
        yield []
    del unsorted
    tags: list[int] = []
    for tag in merge(*runs, reverse=newest_first):
        tags.append(tag)
        if len(tags) == PIECE:
            yield tags
            tags = []
    yield tags
