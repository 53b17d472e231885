"""The lines of `bench.growth` and their table, over synthetic results; one line against a broker."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import growth
from bench.brokers import PURE, Contender


def test_decades() -> None:
    assert growth.decades(1, 1000) == (1, 10, 100, 1000)
    assert growth.decades(16, 1_600_000) == (16, 160, 1600, 16_000, 160_000, 1_600_000)


def test_cost_is_processor_time_per_delivered_message() -> None:
    assert growth.cost({"broker_cpu": 0.5, "delivered": 250_000}) == 2.0


def test_table_has_a_row_for_each_line_with_its_growth() -> None:
    table = growth.table({"depth": {0: 2.0, 1000: 2.5, 10_000: 3.0}, "consumers": {1: 1.0, 10: 1.0}})
    assert table.splitlines()[2:] == [
        "| messages in the queue, persistent | 0: 2.00, 1,000: 2.50, 10,000: 3.00 | 1.5 x |",
        "| consumers of the queue | 1: 1.00, 10: 1.00 | 1.0 x |",
    ]


def test_chart_has_a_line_for_each_line_of_the_table_without_values_of_zero() -> None:
    drawn = ElementTree.fromstring(
        growth.chart({"depth": {0: 2.0, 1000: 2.5, 10_000: 30.0}, "consumers": {1: 0.5, 10: 1.0}})
    )
    named = "{http://www.w3.org/2000/svg}"
    assert [len((line.get("points") or "").split()) for line in drawn.iter(f"{named}polyline")] == [2, 2]
    texts = [text.text for text in drawn.iter(f"{named}text")]
    assert texts[-2:] == ["messages in the queue, persistent", "consumers of the queue"]
    assert {"1", "10,000", "0.1", "100"} <= set(texts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")
@pytest.mark.parametrize("name", list(growth.LINES))
def test_line_is_measured_up_to_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Processor time is counted in ticks of 10 ms, and the broker may get a twentieth of a busy machine.
    monkeypatch.setattr(growth, "SPAN", ("--warmup", "0.1", "--seconds", "0.8"))
    contender = Contender(PURE, tmp_path)
    try:
        said: list[str] = []
        line = growth.LINES[name]
        costs = growth.measure(line, contender, said.append, limit=line.steps[1])
        assert list(costs) == list(line.steps[:2]) and len(said) == 2
        assert all(value > 0 for value in costs.values())
    finally:
        contender.stop()
