"""Ages of unacked deliveries from samples of delivery numbers."""

from __future__ import annotations

import pytest

from leveret.broker.consumer import Deliveries
from leveret.management.unacked_ages import HOUR, MINUTE, UNACKED, ChannelSamples, SampledNumbers

SECOND = 1000
MASK = (1 << 32) - 1


def test_a_number_is_as_old_as_the_first_sample_behind_it() -> None:
    samples = SampledNumbers()
    samples.add(10, 1 * SECOND)
    samples.add(20, 2 * SECOND)
    assert [samples.time_of(number) for number in (1, 9, 10, 19, 20)] == [1000, 1000, 2000, 2000, None]


def test_a_sample_without_new_numbers_keeps_the_earlier_time() -> None:
    samples = SampledNumbers()
    for second in range(1, 100):
        samples.add(10, second * SECOND)
    assert len(samples) == 1
    assert samples.time_of(9) == 1000


def test_samples_of_lower_numbers_are_forgotten() -> None:
    samples = SampledNumbers()
    for second in range(1, 11):
        samples.add(10 * second, second * SECOND)
    samples.forget_before(50)
    assert len(samples) == 5
    assert samples.time_of(50) == 6000


def test_samples_of_days_are_few_and_never_too_old() -> None:
    samples = SampledNumbers()
    seconds = 49 * HOUR // SECOND
    for second in range(1, seconds + 1):
        samples.add(second, second * SECOND)
        assert len(samples) <= UNACKED.max_samples
    now = seconds * SECOND
    # The limits of the errors; samples are thinned out every few minutes.
    for age, error in ((30 * SECOND, SECOND), (10 * MINUTE, MINUTE), (5 * HOUR, HOUR), (40 * HOUR, HOUR)):
        number = (now - age) // SECOND
        found = samples.time_of(number)
        assert found is not None
        assert number * SECOND < found <= number * SECOND + error + SECOND
    assert samples.time_of(0) == SECOND


@pytest.mark.parametrize("first", [5, MASK - 15])
def test_numbers_with_few_bits_begin_again(first: int) -> None:
    def deliveries(following: int) -> Deliveries:
        return Deliveries(1, 1, {}, first, (first + following) & MASK, MASK)

    channel = ChannelSamples(deliveries(10))
    channel.add(deliveries(10), 1 * SECOND)
    channel.add(deliveries(20), 2 * SECOND)
    channel.add(deliveries(30), 3 * SECOND)
    later = deliveries(40)
    found = [channel.samples.time_of(channel.place_of((first + number) & MASK, later)) for number in (0, 9, 10, 29, 30, 39)]
    assert found == [1000, 1000, 2000, 3000, None, None]
