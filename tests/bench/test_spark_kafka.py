"""The comparison with Kafka: its table, over synthetic figures; and a run with few messages if Kafka is downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from bench import kafka_server, maven, spark_kafka
from bench.kafka_sides import Figures
from bench.spark_kafka import Row, Work
from tests.support.broker import ROOT

RATE = Row("publish", "rate", "/s", 1.2)
TIME = Row("count", "seconds", "s", 0.85, cost=True)


def work(ours: list[Figures], theirs: list[Figures], *rows: Row) -> Work:
    """Return a work whose rounds have these figures."""
    return Work("work", lambda _side: ours.pop(0), lambda _side: theirs.pop(0), rows)


def compared(of: Work, rounds: int) -> list[dict[str, object]]:
    return spark_kafka.compare(of, MagicMock(), MagicMock(), Namespace(rounds=rounds, warmup=0))


def test_ratio_is_the_median_of_the_measured_rounds() -> None:
    ours = [{"rate": rate} for rate in (1.0, 300.0, 200.0, 100.0)]
    (result,) = compared(work(ours, [{"rate": 100.0}] * 4, RATE), 3)
    assert result["ratio"] == 2
    assert result["reached"] is True


def test_target_of_a_cost_is_a_maximum() -> None:
    (fast,) = compared(work([{"seconds": 8.5}] * 2, [{"seconds": 10.0}] * 2, TIME), 1)
    (slow,) = compared(work([{"seconds": 9.0}] * 2, [{"seconds": 10.0}] * 2, TIME), 1)
    assert (fast["reached"], slow["reached"]) == (True, False)


def test_row_without_a_target_has_no_verdict() -> None:
    (result,) = compared(work([{"seconds": 1.0}] * 2, [{"seconds": 4.0}] * 2, TIME._replace(target=None)), 1)
    assert spark_kafka.markdown_row(result) == "| count | 1.00 s | 4.00 s | 0.25 |  |  |"


def test_failed_work_is_a_row_with_the_reason() -> None:
    (result,) = compared(Work("work", MagicMock(side_effect=RuntimeError("no disk\n  at line 1")), MagicMock(), (RATE,)), 1)
    assert spark_kafka.markdown_row(result) == "| publish | | | | >= 1.2 | failed: no disk |"


def test_results_of_an_earlier_run_with_the_same_messages_remain(tmp_path: Path) -> None:
    facts = {"messages": 10, "size": 200, "machine": "here", "date": "2026-05-01"}
    result = spark_kafka.result_of(RATE, leveret=2400.0, kafka=1200.0, ratio=2.0)
    spark_kafka.Results(tmp_path, facts).add("default", "publish", [result])
    spark_kafka.Results(tmp_path, facts | {"date": "2026-05-02"}).add("flush", "count", [result])
    table = (tmp_path / "spark_kafka.md").read_text()
    assert table.startswith("messages 10, size 200, machine here, date 2026-05-02\n")
    assert table.count("| publish | 2,400 /s | 1,200 /s | 2.00 | >= 1.2 | yes |") == 2
    spark_kafka.Results(tmp_path, facts | {"messages": 20}).add("default", "count", [result])
    assert list(json.loads((tmp_path / "spark_kafka.json").read_text())["tables"]) == ["default"]


def test_missing_artifact_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in {
        "mvn": "echo '[ERROR] Could not find artifact org.example:absent:jar:1 in central'; exit 1",
        "java": "",
        "javac": "",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    with pytest.raises(maven.Unavailable, match="Maven cannot download org\\.example:absent:jar:1"):
        maven.build("Thing", pom)


@pytest.mark.slow
def test_few_messages_are_compared_with_kafka(tmp_path: Path) -> None:
    if not all(path.exists() for path in kafka_server.downloads()):
        pytest.skip("Kafka is not downloaded; run `python -m bench.spark_kafka --only start` once")
    works = [argument for name in ("publish", "read-sealed", "latency") for argument in ("--only", name)]
    options = [
        "--messages",
        "2000",
        "--rounds",
        "1",
        "--warmup",
        "0",
        "--seconds",
        "2",
        "--table",
        "default",
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark_kafka", *works, *options],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "spark_kafka.json").read_text())["tables"]["default"]
    assert set(found) == {"publish", "read-sealed", "latency"}
    for results in found.values():
        for result in results:
            # Processor time is counted in ticks, of which so few messages may take none.
            least = 0.0 if "processor time" in result["title"] else 1e-9
            assert min(result["leveret"], result["kafka"]) >= least, result
