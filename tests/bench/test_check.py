"""The comparison of `bench.check` with its baseline, over synthetic ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.check import (
    BASELINE,
    LOADS,
    NoBaseline,
    baseline_ratios,
    compare,
    complaints,
    confirmed,
    ratios_of,
    write_baseline,
)

BEFORE = {"transient": 1.2, "persistent": 5.0, "topic": 3.0, "fan-out": 0.6, "unbatched": 12.0}


def complaints_about(changed: dict[str, float], everything: float = 1.0) -> list[str]:
    ratios = {load: ratio * everything * changed.get(load, 1.0) for load, ratio in BEFORE.items()}
    return list(complaints(compare(ratios, BEFORE)).values())


@pytest.mark.parametrize("everything", [0.8, 1.0, 1.09])
def test_changes_within_the_tolerance_pass(everything: float) -> None:
    assert complaints_about({}, everything) == []
    assert complaints_about({"topic": 1.09, "fan-out": 0.5}, everything) == []


@pytest.mark.parametrize("everything", [0.8, 1.0, 1.09])
def test_load_that_got_slower_is_named_with_ratio_and_baseline(everything: float) -> None:
    [text] = complaints_about({"topic": 1.25}, everything)
    assert text.startswith(f"topic: {3.0 * 1.25 * everything:.3f} times the reference")
    assert "25.0% above its baseline of 3.000" in text
    assert "at most 10%" in text


def test_all_loads_that_got_slower_together_are_found() -> None:
    [text] = complaints_about({}, 1.2)
    assert text.startswith("all loads:") and "20.0% above the baseline" in text


def test_slowdown_of_two_loads_does_not_hide_in_the_common_change() -> None:
    found = complaints_about({"topic": 1.3, "fan-out": 1.2})
    assert [text.partition(":")[0] for text in found] == ["topic", "fan-out"]


def test_only_what_all_measurements_find_is_confirmed() -> None:
    first = {"topic": "topic: 1", "fan-out": "fan-out: 1"}
    second = {"topic": "topic: 2", "persistent": "persistent: 2"}
    assert confirmed(first, second) == {"topic": "topic: 2"}
    assert confirmed(second, {}) == {}


def test_ratios_are_of_medians() -> None:
    assert ratios_of({"topic": [3.0, 3.1, 90.0]}, [1.0, 2.0, 2.0, 2.0, 7.0]) == {"topic": 1.55}


def test_baseline_of_each_python_version_is_renewed_alone(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, "3.11", BEFORE)
    write_baseline(path, "3.13", {"topic": 2.71828})
    write_baseline(path, "3.11", {**BEFORE, "topic": 2.5})
    assert baseline_ratios(path, "3.11") == {**BEFORE, "topic": 2.5}
    assert baseline_ratios(path, "3.13") == {"topic": 2.7183}


@pytest.mark.parametrize("exists", [False, True])
def test_missing_baseline_names_the_command_that_measures_one(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "baseline.json"
    if exists:
        write_baseline(path, "3.11", BEFORE)
    with pytest.raises(NoBaseline, match=r"no baseline for Python 3\.15; .*ARGS=--renew"):
        baseline_ratios(path, "3.15")
    with pytest.raises(NoBaseline, match=r"no ratio for single-acks; .*ARGS=--renew"):
        compare({"topic": 1.0, "single-acks": 1.0}, BEFORE)


def test_committed_baseline_has_all_loads() -> None:
    assert set(baseline_ratios(BASELINE, "3.11")) == set(LOADS)
