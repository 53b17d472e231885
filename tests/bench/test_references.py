"""References have the form of the generator's results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench import references, report
from bench.workloads import RATE, WORKLOADS


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")
def test_a_broker_is_compared_with_the_references_of_its_round(tmp_path: Path) -> None:
    large, persistent = (
        next(workload for workload in WORKLOADS if workload.name == name) for name in ("large", "large-persistent")
    )
    echo = references.echo((*large.options, "--seconds", "0.2", "--warmup", "0"))
    disk = references.disk(tmp_path, persistent.size, 0.05)
    assert echo["delivered"] > 0 and disk["delivered"] > 0
    assert list(tmp_path.iterdir()) == []
    half = {**echo, "delivered": echo["delivered"] / 2}
    rows = report.rows([large], {"large": {"echo": [echo], "compiled": [half]}})
    assert [[ratio for _, ratio in row.beside] for row in rows] == [[], [0.5]]
    assert report.cells(rows[0])[1] == "asyncio echo"


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")
def test_a_latency_is_compared_with_that_of_the_relay() -> None:
    latency = next(workload for workload in WORKLOADS if workload.name == "latency")
    echo = references.echo((*latency.options, "--seconds", "0.2", "--warmup", "0"))
    assert 0 < echo["delivered"] <= RATE
    assert 0 < echo["latency_us"]["p50"] <= echo["latency_us"]["p99"]
    results = {"latency": {"echo": [timed(400)], "compiled": [timed(500)], "pure": [timed(800)]}}
    found = {row.broker: report.missed(row) for row in report.rows([latency], results)}
    assert found == {"echo": False, "compiled": False, "pure": True}


def timed(p99: int) -> dict[str, Any]:
    """Return a result with this p99 in microseconds."""
    return {
        "seconds": 1.0,
        "delivered": RATE,
        "confirmed": RATE,
        "generator_cpu": 0.1,
        "broker_cpu": 0.1,
        "broker_rss_kb": 1,
        "latency_us": {"p50": p99 / 2, "p99": p99},
    }
