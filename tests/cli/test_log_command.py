"""`leveret log`."""

from __future__ import annotations

import json
import re
import signal

from tests.cli.program import LIMIT, Program, interruptible
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.logged import close_channel
from tests.support.polling import wait_until


def test_past_records(broker: LeveretProcess, commands: Commands) -> None:
    for number in range(3):
        close_channel(broker, f"missing-{number}")
    (line,) = wait_until(lambda: commands.ok("log", "--text", "Missing-2").splitlines())
    assert re.match(r"20\d\d-\d\d-\d\dT[\d:.]+Z info    leveret\.connection: (shard 0: )?127\.0\.0\.1:", line)
    assert line in broker.log()
    assert "ready in" in commands.ok("log", "--logger", "leveret.serve")
    found = commands.json("log", "--text", "missing", "--count", "2")
    assert [("missing-1" in item["message"], item["vhost"]) for item in found] == [(True, "/"), (False, "/")]
    connection = str(found[0]["connection"])
    assert commands.json("log", "--connection", connection, "--vhost", "/", "--level", "info") == [found[0]]
    assert commands.ok("log", "--level", "error") == ""


def test_records_as_they_are_logged(broker: LeveretProcess) -> None:
    close_channel(broker, "missing-before")
    arguments = ("log", "--data-dir", str(broker.data_dir), "--text", "missing", "--follow", "--json")
    with interruptible(), Program(broker).begin(*arguments) as process:
        assert process.stdout is not None
        assert "missing-before" in json.loads(process.stdout.readline())["message"]
        close_channel(broker, "missing-after")
        assert "missing-after" in json.loads(process.stdout.readline())["message"]
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
