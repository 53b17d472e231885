"""References for large messages have the form of the generator's results."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import references, report
from bench.workloads import WORKLOADS


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
