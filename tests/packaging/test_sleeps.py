"""Tests wait for conditions (`tests.support.polling`), not for time: a sleep is at most 50 ms, or an exemption here."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS = 0.05
# The argument of the sleep, by file, and why it is needed.
EXEMPT = {
    ("tests/client/aio/test_cancelling.py", "pause"): "yields to the loop, or waits 0.1 ms, between steps",
    ("tests/client/aio/test_chaos.py", "chance.uniform(0.005, 0.05)"): "a cut at a random moment",
    ("tests/client/aio/test_chaos.py", "chance.uniform(0, 0.02)"): "a cut at a random moment",
    ("tests/client/aio/test_reconnecting.py", "3.2"): "heartbeats",
    ("tests/client/aio/test_reconnecting.py", "2.5"): "a program that computes through heartbeats",
    ("tests/client/aio/test_reconnecting.py", "0.3"): "heartbeats",
    ("tests/client/aio/test_reconnecting.py", "delay"): "0 or 50 ms",
    ("tests/client/amqp10/test_lifecycle.py", "chance.uniform(0, 0.02)"): "a cancellation at a random moment",
    ("tests/client/amqp10/test_reconnecting.py", "chance.uniform(0.01, 0.05)"): "a cut at a random moment",
    ("tests/client/amqp10/test_reconnecting.py", "chance.uniform(0, 0.02)"): "a cut at a random moment",
    ("tests/client/sync/test_faults.py", "chance.random() * 0.02"): "a cut at a random moment",
    ("tests/client/sync/test_threads.py", "4"): "a program that computes through heartbeats",
    ("tests/conformance/amqp10/test_transport_connection.py", "1"): "a broker stopped for longer than the idle time-out",
    (
        "tests/faults/crash/workload.py",
        "self.random.random() * self.pause if self.random.random() < 0.3 else 0",
    ): "the pace of a workload",
    ("tests/faults/crash/workload.py", "self.random.random() * 0.02"): "the pace of a workload",
    ("tests/faults/power/forked.py", "POLL_INTERVAL"): "polls a process that cannot be waited for",
    ("tests/faults/power/streams.py", "chance.random() * 0.02"): "the pace of a workload",
    ("tests/faults/test_amqp10_links_kill9.py", "seconds"): "a kill at a random moment",
    ("tests/faults/test_lease_kill9.py", "self.pace"): "the pace of a workload",
    ("tests/faults/test_slow_clients.py", "0.5"): "heartbeats",
    ("tests/spark/sink/test_exactly_once.py", "chance.random() * 0.05"): "a kill at a random moment",
    ("tests/support/amqp.py", "interval / 2"): "heartbeats",
    ("tests/support/polling.py", "INTERVAL"): "5 ms between two calls of the condition",
    ("tests/support/proxy.py", "self.delay"): "a slow network",
    ("tests/support/proxy.py", "len(data) / self.rate"): "a slow network",
}


@cache
def sleeps() -> list[tuple[str, int, str]]:
    """File, line and argument of each sleep that is not known to be short."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ".sleep(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("time.sleep", "asyncio.sleep"):
                continue
            argument = node.args[0]
            value = argument.value if isinstance(argument, ast.Constant) else None
            if not isinstance(value, (int, float)) or value > MAX_SECONDS:
                found.append((str(path.relative_to(ROOT)), node.lineno, ast.unparse(argument)))
    return found


def test_no_test_sleeps_for_long() -> None:
    wrong = [f"{file}:{line}: sleep({argument})" for file, line, argument in sleeps() if (file, argument) not in EXEMPT]
    assert not wrong, f"wait for a condition with tests.support.polling instead: {wrong}"


def test_every_exemption_is_used() -> None:
    assert EXEMPT.keys() == {(file, argument) for file, _, argument in sleeps()} & EXEMPT.keys()
