"""The statistics of a comparison of two builds, over synthetic ratios."""

from __future__ import annotations

import statistics

from bench.pairs import interval


def test_interval_surrounds_the_median_and_ignores_an_outlier() -> None:
    ratios = [0.97, 0.98, 0.99, 0.99, 1.0, 1.0, 1.0, 1.01, 1.01, 1.02, 1.03, 5.0]
    low, high = interval(ratios)
    assert 0.97 < low <= statistics.median(ratios) <= high < 1.03


def test_interval_of_equal_ratios_is_that_ratio() -> None:
    assert interval([0.9] * 12) == (0.9, 0.9)


def test_interval_is_wider_for_fewer_pairs() -> None:
    few = interval([0.9, 1.0, 1.1])
    many = interval([0.9, 1.0, 1.1] * 10)
    assert few == (0.9, 1.1)
    assert many[1] - many[0] < few[1] - few[0]
