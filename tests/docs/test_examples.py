"""The programs in `examples/` print what they promise, against a real broker process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.support.broker import ROOT, Broker, leveret_only

EXAMPLES = ROOT / "examples"

# Output of each program. Lines that two workers may print in either order are compared as a set.
PRINTED = {
    "publish_subscribe.py": """\
audit (#): order.created, order.paid, order.paid.eu, stock.low.eu
billing (order.*): order.created, order.paid
europe (*.*.eu): order.paid.eu, stock.low.eu
""",
    "rpc.py": """\
2 squared is 4
3 squared is 9
12 squared is 144
""",
    "retry.py": """\
attempt 1 at 'send the invoice' failed, retrying in 100 ms
attempt 2 at 'send the invoice' failed, retrying in 100 ms
attempt 3 at 'send the invoice' failed, giving up
in the failed queue: 'send the invoice'
""",
    "sink_transactions.py": """\
prepared:  0 in the queue
committed: 4, already: False
prepared:  4 in the queue
committed: 0, already: True
3 + 1 = 4
3 + 2 = 5
4 + 1 = 5
4 + 2 = 6
""",
    "priorities.py": """\
ten levels:         second, fourth, first, fifth, third
x-max-priority = 5: second, fourth, first, third, fifth
""",
    "transactions.py": """\
begin:          1 orders and 0 invoices are ready
not committed:  0 orders and 0 invoices are ready
rolled back:    1 orders and 0 invoices are ready
committed:      0 orders and 1 invoices are ready
""",
}


def run(command: list[str], directory: Path, timeout: float = 60.0, **variables: str) -> str:
    """Return the output of a command. Raises AssertionError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"} | variables
    result = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def run_pytest(directory: Path) -> str:
    """The output of a session that has the plugin of the sources, whether or not it is installed as well."""
    return run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "leveret.pytest_plugin"],
        directory,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )


def test_every_example_is_tested() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == {*PRINTED, "work_queue.py", "demo.py", "demo_pipeline.py", "demo_cluster.py"}


@pytest.mark.parametrize("program", PRINTED)
def test_example(program: str, broker: Broker, tmp_path: Path) -> None:
    assert run([str(EXAMPLES / program), broker.url()], tmp_path) == PRINTED[program]


def test_work_queue(broker: Broker, tmp_path: Path) -> None:
    first, broken, *done, last = run([str(EXAMPLES / "work_queue.py"), broker.url()], tmp_path).splitlines()
    assert (first, broken, last) == ("6 tasks are on disk", "worker 1 fails with 'task 0'", "0 tasks left")
    did = [re.fullmatch(r"worker [23] does '(task \d)'( \(redelivered\))?", line) for line in done]
    assert all(did), done
    # Each task once; the one that the first worker had received is marked as redelivered.
    assert sorted(match[1] for match in did if match) == [f"task {number}" for number in range(6)]
    assert "task 0" in {match[1] for match in did if match and match[2]}


def test_broker_in_pytest(tmp_path: Path) -> None:
    leveret_only("the plugin starts one")
    # Outside this project, whose test configuration must not apply.
    shutil.copytree(EXAMPLES / "pytest_broker", tmp_path / "tests")
    assert "3 passed" in run_pytest(tmp_path)


@pytest.mark.slow
def test_the_tests_of_the_page_about_pytest(tmp_path: Path) -> None:
    leveret_only("the plugin starts one")
    files = {}
    for block in blocks(ROOT / "docs" / "testing.md", "python"):
        name, _, rest = block.text.partition("\n")
        files[name.removeprefix("# ")] = rest
    assert {"test_orders.py", "conftest.py"} <= files.keys()
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    tests = sum(text.count("def test_") for text in files.values())
    assert f"{tests} passed" in run_pytest(tmp_path)


def test_demo(tmp_path: Path) -> None:
    leveret_only("the demo starts one")
    output = run([str(EXAMPLES / "demo.py")], tmp_path)
    total = re.search(r"all\D+([\d,]+)\D+([\d,]+)\D+([\d,]+)\D+([\d,]+)", output)
    assert total is not None, output
    published, confirmed, found, lost = (int(figure.replace(",", "")) for figure in total.groups())
    assert lost == 0
    assert 0 < confirmed <= found <= published
    assert "No confirmed message is lost" in output
