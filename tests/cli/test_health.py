"""`leveret health`: exit codes for probes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("the control socket")
    with LeveretProcess(tmp_path_factory.mktemp("health")).start() as process:
        yield process
        process.check_log()


def test_a_healthy_broker(broker: LeveretProcess, commands: Commands) -> None:
    assert commands.ok("health") == "ok\n"
    assert commands.ok("health", "--alarms", "--indexed", "--listener", str(broker.port), "--listener", "amqp") == "ok\n"
    found = commands.json("health")
    assert (found["status"], found["problems"], found["alarm"]) == ("ok", [], "")


def test_a_missing_listener(broker: LeveretProcess, commands: Commands) -> None:
    message = commands.refused("health", "--listener", "amqps", "--listener", str(broker.port))
    assert f"no listener for 'amqps'; the broker listens on amqp://127.0.0.1:{broker.port}" in message


def test_an_alarm(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path, config=f"{basic_config()}[limits]\nmemory_high_watermark = 1000\n").start() as process:
        commands = Commands(process.data_dir)
        assert commands.ok("health") == "ok\n"
        wait_until(lambda: commands.run("health", "--alarms").exit_code)
        result = commands.run("health", "--alarms", "--json")
        assert result.exit_code == 1 and "publishers are blocked: memory" in result.stderr
        assert json.loads(result.stdout)["status"] == "failed"


def test_a_broker_that_does_not_answer(broker: LeveretProcess, commands: Commands) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        result = commands.run("health", "--timeout", "0.2")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert result.exit_code == 3 and "did not answer within 0.2 seconds" in result.output
    assert commands.ok("health") == "ok\n"
