"""The cluster demo."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.broker import ROOT, leveret_only
from tests.support.postgres import require_postgres


@pytest.mark.slow
def test_the_demo_accounts_for_every_confirmed_message() -> None:
    leveret_only("it starts nodes")
    require_postgres()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_cluster.py")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["orders", "shop", "logs"]
    assert all(int(row[2].replace(",", "")) > 0 and row[4].strip() == "0" for row in rows)
