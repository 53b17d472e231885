"""Ages of unacked deliveries, from samples of delivery numbers, so that a delivery itself costs nothing.

About once a second, the next delivery number of each channel with unacked deliveries is noted with the time. All deliveries
with lower numbers are at least as old. Times are in milliseconds of the broker's clock, ages in seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer, Deliveries, UnackedOwner

# Minimum milliseconds between two passes.
MIN_INTERVAL: Final = 500
# Milliseconds after which the oldest deliveries of the last pass may be settled: the HTTP process asks for no more passes.
MAX_PASS_AGE: Final = 10_000
MINUTE: Final = 60_000
HOUR: Final = 3_600_000
# Maximum number of deliveries of a channel to look at in a pass, for the oldest one of each consumer and queue.
MAX_SCANNED: Final = 1000


class Sampling(NamedTuple):
    """Samples of a sequence to keep.

    Attributes:
        min_interval: Minimum milliseconds between two samples.
        max_samples: Number of samples, of 16 bytes each, from which on older ones are thinned out.
        periods: Pairs of an age and a period, in milliseconds: up to that age, the last sample of each period is kept.
    """

    min_interval: int
    max_samples: int
    periods: tuple[tuple[int, int], ...]


# All samples of a minute are kept, then the last one of each minute for an hour, then that of each hour for two days.
UNACKED: Final = Sampling(MIN_INTERVAL, 320, ((MINUTE, 1), (HOUR, MINUTE), (48 * HOUR, HOUR)))


class SampledNumbers:
    """When the numbers of an ascending sequence were used, known to about the interval of the samples."""

    def __init__(self, sampling: Sampling = UNACKED) -> None:
        self._sampling = sampling
        # Numbers that were not used yet, in ascending order, and the times of the samples.
        self._following = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, following: int, now: int) -> None:
        """Add a sample, unless no number was used since the last one or that is too recent.

        Args:
            following: The first number that is not used yet.
            now: The time.
        """
        if self._times and (following <= self._following[-1] or now - self._times[-1] < self._sampling.min_interval):
            return
        if len(self._times) >= self._sampling.max_samples:
            self._thin_out(now)
        self._following.append(following)
        self._times.append(now)

    def forget_before(self, number: int) -> None:
        """Forget the samples of numbers below this one."""
        known = bisect_right(self._following, number)
        if known:
            del self._following[:known]
            del self._times[:known]

    def time_of(self, number: int) -> int | None:
        """Return a time at which a number had been used; None if that was after the last sample."""
        found = bisect_right(self._following, number)
        return self._times[found] if found < len(self._times) else None

    def _thin_out(self, now: int) -> None:
        """Keep the first sample, the last one of each period, and all recent ones."""
        times = self._times
        kept = [0]
        for index in range(1, len(times) - 1):
            period = self._period_of(now - times[index])
            if period and times[index] // period != times[index + 1] // period:
                kept.append(index)
        kept.append(len(times) - 1)
        self._following = array("q", [self._following[index] for index in kept])
        self._times = array("q", [times[index] for index in kept])

    def _period_of(self, age: int) -> int:
        """Return the period of which the last sample is kept at an age; 0 if none is."""
        for max_age, period in self._sampling.periods:
            if age <= max_age:
                return period
        return 0


class ChannelSamples:
    """The samples of a channel or session.

    Attributes:
        key: The numbers of the connection and the channel.
        oldest: The time of its oldest unacked delivery.
    """

    __slots__ = ("_following", "_number", "key", "oldest", "samples")

    def __init__(self, deliveries: Deliveries) -> None:
        self.key = (deliveries.connection, deliveries.channel)
        self.samples = SampledNumbers()
        self.oldest = 0
        # The number of the next delivery in the last sample, and that number without the limit of its bits.
        self._number = self._following = deliveries.following

    def add(self, deliveries: Deliveries, now: int) -> None:
        """Add a sample."""
        self._following += (deliveries.following - self._number) & deliveries.mask
        self._number = deliveries.following
        self.samples.add(self._following, now)

    def place_of(self, number: int, deliveries: Deliveries) -> int:
        """Return the number of an unacked delivery without the limit of its bits."""
        following = self._following + ((deliveries.following - self._number) & deliveries.mask)
        return following - ((deliveries.following - number) & deliveries.mask)


class UnackedAges:
    """When unacked deliveries of all channels and sessions were made, at the latest. Ages are minimum values.

    Attributes:
        queues: The times of the oldest unacked deliveries by the ids of queues.
        channels: Those by the numbers of connections and channels.
    """

    def __init__(self) -> None:
        self._owners: dict[UnackedOwner, ChannelSamples] = {}
        self._consumers: dict[Consumer, int] = {}
        self.queues: dict[int, int] = {}
        self.channels: dict[tuple[int, int], int] = {}
        self._sampled_at = 0

    def age_of(self, consumer: Consumer, now: int) -> int | None:
        """Return the age of a consumer's oldest unacked delivery; None if nothing is unacked, or without a recent pass."""
        if not consumer.unacked or now - self._sampled_at > MAX_PASS_AGE:
            return None
        return (now - self._consumers.get(consumer, now)) // 1000

    def age_of_delivery(self, owner: UnackedOwner, number: int, deliveries: Deliveries, now: int) -> int | None:
        """Return the age of an unacked delivery by its number; None before the first pass."""
        known = self._owners.get(owner)
        if known is None:
            return 0 if self._sampled_at else None
        return (now - (known.samples.time_of(known.place_of(number, deliveries)) or now)) // 1000

    def sample(self, broker: Broker) -> Iterator[None]:
        """Add a sample of each channel with unacked deliveries, one in each step."""
        if broker.timers.now() - self._sampled_at < MIN_INTERVAL:
            return
        before, owners = self._owners, {}
        consumers: dict[Consumer, int] = {}
        queues: dict[int, int] = {}
        channels: dict[tuple[int, int], int] = {}
        for owner in list(broker.holders):
            deliveries = owner.deliveries()
            if deliveries is not None and deliveries.entries:
                known = owners[owner] = before.get(owner) or ChannelSamples(deliveries)
                _sample(known, deliveries, broker.timers.now(), consumers, queues)
                channels[known.key] = known.oldest
            yield
        self._owners, self._consumers, self.queues, self.channels = owners, consumers, queues, channels
        self._sampled_at = broker.timers.now()


def _sample(
    owner: ChannelSamples, deliveries: Deliveries, now: int, consumers: dict[Consumer, int], queues: dict[int, int]
) -> None:
    """Add a sample of a channel, and note the times of the oldest deliveries of its consumers and their queues."""
    owner.add(deliveries, now)
    samples, entries = owner.samples, deliveries.entries
    owner.oldest = 0
    left = len(entries)
    for number, entry in islice(entries.items(), MAX_SCANNED):
        consumer = entry.holder
        if consumer is not None and consumer in consumers:
            continue
        place = owner.place_of(number, deliveries)
        if not owner.oldest:
            samples.forget_before(place)
        at = samples.time_of(place) or now
        owner.oldest = owner.oldest or at
        queue = entry.queue.id
        queues[queue] = min(queues.get(queue, at), at)
        if consumer is not None:
            consumers[consumer] = at
            left -= consumer.unacked
            if left <= 0:
                break  # no other consumer has unacked deliveries
