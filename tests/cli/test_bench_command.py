"""`leveret bench` against real brokers: every option, with little load."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.load.plan import EXCHANGES
from tests.cli.program import LIMIT, Program
from tests.cli.runner import Commands
from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.rabbitmq import RabbitProcess


def result(program: Program, *arguments: str) -> dict[str, Any]:
    """Its JSON, of a run that succeeds."""
    found: dict[str, Any] = json.loads(program.ok("bench", "--json", "-", "--quiet", *arguments))
    return found


def left_behind(server: Broker) -> list[str]:
    """Queues and exchanges of a run."""
    if isinstance(server, RabbitProcess):
        # Starting the program takes seconds, so it lists both at once.
        both = "[N || {resource, _, _, N} <- rabbit_amqqueue:list_names() ++ rabbit_exchange:list_names()]"
        names = server.control("-q", "eval", f'io:format("~s", [lists:join(" ", {both})]).').split()
        assert "amq.direct" in names
    elif not isinstance(server, LeveretProcess):
        pytest.skip("only the owner of a broker can look at all of its queues")
    else:
        commands = Commands(server.data_dir)
        names = [item["name"] for kind in ("queues", "exchanges") for item in commands.json(kind)]
    return [name for name in names if name.startswith("leveret-bench")]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_exchanges(server: Broker, program: Program, exchange: str) -> None:
    if isinstance(server, RabbitProcess) and exchange == "x-local-random":
        pytest.skip("RabbitMQ 3 has no exchanges of this type")
    found = result(
        program,
        "--exchange",
        exchange,
        "--messages",
        "3001",
        "--queues",
        "3",
        "--publishers",
        "2",
        "--consumers",
        "2",
        "--ack-every",
        "7",
        "--prefetch",
        "20",
    )
    assert (found["published"], found["confirmed"], found["refused"]) == (3001, 3001, 0)
    assert found["consumed"] == 3001 * (3 if exchange == "fanout" else 1)
    assert left_behind(server) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--size", "0"),
        ("--size", "8"),
        ("--size", "200000", "--messages", "20"),
        ("--persistent",),
        ("--window", "1"),
        ("--window", "2"),
        ("--no-confirms",),
        ("--no-ack",),
        ("--prefetch", "0"),
        ("--ack-every", "1"),
        ("--processes", "2"),
        ("--processes", "3", "--publishers", "2", "--consumers", "3"),
        ("--exchange", "headers", "--size", "4"),
    ],
    ids=lambda options: "".join(options),
)
def test_options(program: Program, options: tuple[str, ...]) -> None:
    count = 500
    if "--messages" in options:
        count = 20
    else:
        options = (*options, "--messages", str(count))
    found = result(program, *options)
    assert (found["published"], found["consumed"], found["refused"]) == (count, count, 0)
    assert found["confirmed"] == (0 if "--no-confirms" in options else count)
    assert (found["confirm"] is None) == ("--no-confirms" in options)
    assert 0 < found["delivery"]["p50"] <= found["delivery"]["p99"] <= found["delivery"]["longest"] < LIMIT * 1e6
    assert found["generator_cpu_seconds"] > 0


def test_a_rate_for_some_seconds(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    done = program.run("bench", "--seconds", "1.5", "--rate", "200", "--publishers", "2", "--json", str(path))
    assert done.code == 0, done.err
    found = json.loads(path.read_text())
    # Never more than due; fewer only on a busy machine.
    assert 100 < found["published"] <= 200 * found["publishing_seconds"] + 4
    assert found["publishing_seconds"] >= 1.5
    assert [interval["at"] for interval in found["intervals"]] == sorted(interval["at"] for interval in found["intervals"])
    assert "urls" not in found["load"]
    shown = done.out.decode()
    assert "2 publishers, 1 consumer, 1 queue" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("published", "confirmed", "consumed"))] == [
        "published",
        "confirmed",
        "consumed",
    ]
    assert "until consumed" in shown
    assert "consumed" in done.err.splitlines()[0]


def test_without_consumers(program: Program) -> None:
    found = result(program, "--consumers", "0", "--messages", "100")
    assert (found["published"], found["consumed"], found["delivery"]) == (100, 0, None)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_shows_the_results_and_deletes_the_queues(server: Broker, program: Program, processes: str) -> None:
    with program.begin(
        "bench", "--seconds", "0", "--rate", "1000", "--exchange", "topic", "--queues", "2", "--processes", processes
    ) as process:
        assert process.stderr is not None
        assert b"published" in process.stderr.readline()
        assert len(left_behind(server)) == 3
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert b"interrupted" in out
    assert b"until consumed" in out
    assert left_behind(server) == []


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "end"), [("1", "kill"), ("2", "kill"), ("1", "stop")])
def test_the_broker_ends(tmp_path: Path, processes: str, end: str) -> None:
    leveret_only("it is killed")
    broker = LeveretProcess(tmp_path).start()
    program = Program(broker)
    with program.begin("bench", "--seconds", "0", "--rate", "1000", "--processes", processes) as process:
        assert process.stderr is not None
        assert b"published" in process.stderr.readline()
        getattr(broker, end)()
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 3
    assert err.splitlines()[-1].startswith(b"Error: ")
    assert b"Traceback" not in err
    assert b"until consumed" in out


def test_impossible_options_are_refused(program: Program) -> None:
    for wrong in (("--ack-every", "10", "--prefetch", "5"), ("--publishers", "0"), ("--exchange", "x"), ("--size", "-1")):
        assert program.run("bench", *wrong).code == 2
