"""Tests wait for conditions (`tests.support.polling`), not for time: a wait is at most 50 ms, or an exemption here.

Waits are sleeps, calls that process a client's input for a time, and timeouts too short to be the deadline of a failing
test: a test expects them to elapse. To show that nothing arrives, make a round trip on the same channel instead.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS = 0.05
# Timeouts from here on are deadlines of failing tests.
MIN_DEADLINE = 1.0
# Functions that wait for as long as their argument says, and the name of the argument.
WAITS = {"time.sleep": "", "asyncio.sleep": "delay", "process_data_events": "time_limit", "drain_events": "timeout"}
# The argument of the wait, by file, and why it is needed.
EXEMPT = {
    ("tests/client/aio/test_cancelling.py", "pause"): "yields to the loop, or waits 0.1 ms, between steps",
    ("tests/client/aio/test_channels.py", "0.5"): "the timeout under test, with replies that must not exceed it",
    ("tests/client/aio/test_opening.py", "0.1"): "the timeout under test, with replies that must not exceed it",
    ("tests/client/aio/test_reconnecting.py", "0.2"): "the timeout under test",
    ("tests/client/sync/test_lifecycle.py", "0.2"): "the timeout under test, with replies that must not exceed it",
    ("tests/client/sync/test_lifecycle.py", "0.3"): "the timeout under test",
    ("tests/cluster/test_freeze.py", "CONNECT_TIMEOUT"): "the broker closes the connection",
    ("tests/cluster/test_links.py", "1"): "a slow node, for which clients queue longer than the timeout under test",
    ("tests/cluster/test_nodes.py", "CONNECT_TIMEOUT"): "the broker closes the connection",
    ("tests/cluster/test_operations.py", "30"): "the broker closes the connection",
    ("tests/cluster/test_shards.py", "30"): "the broker closes the connection",
    ("tests/cluster/test_shards.py", "4"): "a broker that is stopped for longer than the timeout under test",
    ("tests/interop/test_oauth.py", "60"): "the broker closes the connection when the token expires",
    ("tests/interop/test_proton.py", "0.2"): "the blocking API has no call that shows that nothing arrives",
    ("tests/client/aio/test_chaos.py", "chance.uniform(0.005, 0.05)"): "a cut at a random moment",
    ("tests/management/http/test_mail.py", "0.3"): "the timeout under test",
    ("tests/spark/pipeline/kill_compaction.py", "number * INTERVAL"): "a kill at different moments",
    ("tests/client/aio/test_chaos.py", "chance.uniform(0, 0.02)"): "a cut at a random moment",
    ("tests/client/aio/test_reconnecting.py", "3.2"): "heartbeats",
    ("tests/client/aio/test_reconnecting.py", "2.5"): "a program that computes through heartbeats",
    ("tests/client/aio/test_reconnecting.py", "0.3"): "heartbeats",
    ("tests/client/aio/test_reconnecting.py", "delay"): "0 or 50 ms",
    ("tests/client/amqp10/test_lifecycle.py", "chance.uniform(0, 0.02)"): "a cancellation at a random moment",
    ("tests/client/amqp10/test_reconnecting.py", "chance.uniform(0.01, 0.05)"): "a cut at a random moment",
    ("tests/client/amqp10/test_reconnecting.py", "chance.uniform(0, 0.02)"): "a cut at a random moment",
    ("tests/client/sync/test_faults.py", "chance.random() * 0.02"): "a cut at a random moment",
    ("tests/client/sync/test_threads.py", "2.5"): "a program that computes through heartbeats",
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
    ("tests/support/peers/async_amqp091.py", "interval / 2"): "heartbeats",
    ("tests/support/polling.py", "_pause(ended - called)"): "5 to 100 ms between two calls of the condition",
    ("tests/support/proxy.py", "self.delay"): "a slow network",
    ("tests/support/proxy.py", "len(data) / self.rate"): "a slow network",
}


def long_wait(call: ast.Call) -> str | None:
    """Return the argument of a call that may wait for more than `MAX_SECONDS` although nothing fails."""
    function = ast.unparse(call.func)
    # A test's own `sleep` advances a clock.
    name = function if function in ("time.sleep", "asyncio.sleep") else function.rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in WAITS:
        argument = keywords.get(WAITS[name], call.args[0] if call.args else None)
        if argument is None:
            return "no limit"
        value = argument.value if isinstance(argument, ast.Constant) else None
        return None if isinstance(value, (int, float)) and value <= MAX_SECONDS else ast.unparse(argument)
    position = {"asyncio.timeout": 0, "asyncio.wait_for": 1}.get(function, len(call.args))
    timeout = call.args[position] if position < len(call.args) else keywords.get("timeout")
    if isinstance(timeout, ast.Constant) and isinstance(timeout.value, float):
        return ast.unparse(timeout) if MAX_SECONDS < timeout.value < MIN_DEADLINE else None
    return None


@cache
def waits() -> list[tuple[str, int, str]]:
    """File, line and argument of each wait that is not known to be short."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in ("sleep", "timeout", *WAITS)):
            continue
        file = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
                found += [(file, node.lineno, "import") for name in node.names if name.name == "sleep"]
            elif isinstance(node, ast.Call) and (argument := long_wait(node)) is not None:
                found.append((file, node.lineno, argument))
    return found


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("time.sleep(0.05)", None),
        ("time.sleep(0.06)", "0.06"),
        ("site.sleep(1000)", None),
        ("asyncio.sleep(pause)", "pause"),
        ("connection.process_data_events(0.02)", None),
        ("connection.process_data_events(seconds)", "seconds"),
        ("connection.process_data_events(time_limit=0.5)", "0.5"),
        ("connection.drain_events(timeout=0.25)", "0.25"),
        ("connection.drain_events()", "no limit"),
        ("asyncio.timeout(0.1)", "0.1"),
        ("asyncio.timeout(5)", None),
        ("asyncio.wait_for(task, 0.3)", "0.3"),
        ("receiver.receive(timeout=0.2)", "0.2"),
        ("process.wait(timeout=30)", None),
    ],
)
def test_what_counts_as_a_long_wait(call: str, argument: str | None) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert long_wait(node) == argument


def test_no_test_waits_for_long() -> None:
    wrong = [f"{file}:{line}: {argument}" for file, line, argument in waits() if (file, argument) not in EXEMPT]
    assert not wrong, f"wait for a condition with tests.support.polling, or make a round trip instead: {wrong}"


def test_every_exemption_is_used() -> None:
    assert EXEMPT.keys() == {(file, argument) for file, _, argument in waits()} & EXEMPT.keys()
