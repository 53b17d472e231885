"""The programs in `examples/` that need Spark, as users run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from leveret import sync
from tests.spark.environment import environment
from tests.support.broker import ROOT, LeveretProcess, leveret_only

BIN = Path(sys.executable).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not shutil.which("java") and "JAVA_HOME" not in os.environ, reason="Spark needs Java 17"),
]


def test_the_demo_accounts_for_every_message(tmp_path: Path) -> None:
    leveret_only("the demo starts one")
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_pipeline.py")],
        cwd=tmp_path,
        timeout=880,
        env=environment(COLUMNS="120", LEVERET_DEMO_SECONDS="2,2,1", LEVERET_DEMO_DIRECTORY=str(tmp_path / "demo")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Every message is accounted for" in result.stdout
    assert "kill -9 the broker" in result.stdout
    page = (tmp_path / "demo" / "traffic.html").read_text("utf-8")
    assert "<svg" in page and "Messages per second" in page


def test_the_declarative_pipeline(own_broker: LeveretProcess, tmp_path: Path) -> None:
    with sync.connect(own_broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue("orders", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(20):
            body = json.dumps({"id": number, "country": "de" if number % 2 else "fr", "amount": number}).encode()
            channel.publish(body, "orders")
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "declarative_pipeline", project)
    file = project / "spark-pipeline.yml"
    file.write_text(file.read_text().replace("/tmp/leveret-declarative-pipeline", str(tmp_path / "storage")))
    result = subprocess.run(
        [str(BIN / "spark-pipelines"), "run"],
        cwd=project,
        timeout=880,
        env=environment(COLUMNS="120", LEVERET_URL=own_broker.url()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Run is COMPLETED" in result.stdout

    def rows(table: str) -> list[dict[str, object]]:
        files = sorted((project / "spark-warehouse" / table).glob("*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    assert sorted((row["id"], row["offset"]) for row in rows("orders")) == [(number, number) for number in range(20)]
    sales = {row["country"]: (row["orders"], row["amount"]) for row in rows("sales")}
    assert sales == {"de": (10, 100.0), "fr": (10, 90.0)}
