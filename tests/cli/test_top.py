"""`leveret top`, printed once, and on a terminal with its keys."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from tests.cli.runner import Commands
from tests.support.broker import ROOT, LeveretProcess, leveret_only
from tests.support.polling import wait_until

COLUMNS = 150
RUN = "from leveret.cli.app import leveret; leveret()"
# Code that presses Ctrl-C in a destructor while the view is drawn, or while the terminal is restored.
IN_DESTRUCTOR = """
import signal
from rich.live import Live

class Pressed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def update(*arguments, update=Live.update, **options):
    Pressed()
    update(*arguments, **options)

Live.update = update
"""
AT_THE_END = """
import signal
from rich.live import Live

def stop(live, stop=Live.stop):
    signal.raise_signal(signal.SIGINT)
    stop(live)

Live.stop = stop
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("the control socket")
    process = LeveretProcess(tmp_path_factory.mktemp("top"))
    with process.start():
        with pika.BlockingConnection(pika.URLParameters(process.url())) as connection:
            channel = connection.channel()
            for number in range(40):
                name = f"queue-{number:02}"
                channel.queue_declare(name, durable=True)
                for _ in range(number % 3):
                    channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
            channel.queue_declare("evil\x1b]0;title\x07\x1b[2J", durable=True)
        yield process
        process.check_log()


class Terminal:
    """A terminal of 20 lines on which `leveret top` runs. `before` is code that runs before it."""

    def __init__(self, broker: LeveretProcess, *arguments: str, before: str = "") -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        broker_options = ["--data-dir", str(broker.data_dir)] if "--url" not in arguments else []
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + RUN, "top", *broker_options, "--interval", "0.2", *arguments],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
            | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"},
            start_new_session=True,
        )
        os.set_blocking(self._ours, False)
        self.shown = ""

    def press(self, keys: str, expected: str) -> None:
        """Press keys, and wait until a text is shown after that."""
        at = len(self.shown)
        os.write(self._ours, keys.encode())
        wait_until(lambda: expected in self.read()[at:], lambda: f"{expected!r} was not shown: {self.shown[at:]!r}")

    def read(self) -> str:
        try:
            self.shown += os.read(self._ours, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            pass
        return self.shown

    def wait(self) -> int:
        """Return the exit code, and check that the terminal is as before."""

        def ended() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(ended, lambda: f"it did not end: {self.shown[-1000:]!r}")
        self.read()
        assert termios.tcgetattr(self._theirs) == self.before
        assert self.shown.count("\x1b[?1049h") == self.shown.count("\x1b[?1049l") == 1
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(broker: LeveretProcess, *arguments: str, before: str = "") -> Iterator[Terminal]:
    opened = Terminal(broker, *arguments, before=before)
    try:
        yield opened
    finally:
        opened.close()


def test_once_prints_the_state_and_the_queues_in_order(broker: LeveretProcess) -> None:
    commands = Commands(broker.data_dir)
    lines = commands.ok("top", "--once", "--interval", "0.1").splitlines()
    assert lines[0].startswith("Leveret ")
    assert "ready 39" in lines[1]
    assert lines[2].split() == ["vhost", "name", "ready", "unacked", "in/s", "out/s", "ack/s", "consumers", "size"]
    ready = [int(line.split()[2]) for line in lines[3:]]
    assert ready == [2] * 13 + [1] * 13 + [0] * 15
    shown = commands.json("top", "--interval", "0.1", "--sort", "name", "--reverse")
    assert [row["name"] for row in shown["queues"]][:2] == ["queue-39", "queue-38"]


def test_rates_are_those_between_two_looks(broker: LeveretProcess) -> None:
    command = [sys.executable, "-m", "leveret", "top", "--data-dir", str(broker.data_dir), "--json", "--interval", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("busy", exclusive=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            while process.poll() is None:
                channel.basic_publish("", "busy", b"x")
                method, _, _ = channel.basic_get("busy")
                channel.basic_ack(method.delivery_tag)
            assert process.stdout is not None
            shown = json.loads(process.stdout.read())
    [row] = [row for row in shown["queues"] if row["name"] == "busy"]
    for rate in (row["in"], row["out"], row["ack"]):
        assert rate > 0
    for name, rate in (("publish", row["in"]), ("deliver", row["out"]), ("ack", row["ack"])):
        assert abs(shown[f"{name}_rate"] - rate) < 10 + rate / 10
    assert shown["confirm_rate"] > 0
    assert {row["in"] for row in shown["queues"] if row["name"] != "busy"} == {0}


def test_names_cannot_control_the_terminal(broker: LeveretProcess) -> None:
    shown = Commands(broker.data_dir).ok("top", "--once", "--interval", "0.1")
    assert "evil\\x1b]0;title\\x07\\x1b[2J" in shown
    with terminal(broker, "--sort", "name") as opened:
        opened.press("", "evil\\x1b]0;title\\x07")
        opened.press("q", "")
        assert opened.wait() == 0
        assert "\x1b]0;" not in opened.shown


def test_keys(broker: LeveretProcess) -> None:
    with terminal(broker, "--sort", "name") as opened:
        opened.press("", "page 1 of 3")
        assert "name*" in opened.shown
        assert "queue-30" not in opened.shown
        opened.press("n", "page 2 of 3")
        opened.press("\x1b[6~", "page 3 of 3")
        opened.press("b", "page 2 of 3")
        opened.press("s", "ready*")
        opened.press("p", "(paused)")
        opened.press("p", "3: q quit")
        opened.press("br", "page 1 of 3")
        opened.press("v", "connections, page 1 of 1")
        opened.press("v", "queues, page 1 of 3")
        opened.press("q", "")
        assert opened.wait() == 0


def test_ctrl_c_restores_the_terminal(broker: LeveretProcess) -> None:
    with terminal(broker) as opened:
        opened.press("", "page 1 of 3")
        opened.process.send_signal(signal.SIGINT)
        assert opened.wait() == 0


def test_ctrl_c_in_a_destructor(broker: LeveretProcess) -> None:
    with terminal(broker, "--interval", "50", before=IN_DESTRUCTOR) as opened:
        assert opened.wait() == 0
        assert "page 1 of 3" in opened.shown
        assert "KeyboardInterrupt" not in opened.shown


def test_ctrl_c_while_the_terminal_is_restored(broker: LeveretProcess) -> None:
    with terminal(broker, before=AT_THE_END) as opened:
        opened.press("q", "")
        assert opened.wait() == 0


def test_a_broker_that_was_restarted_is_shown_again(tmp_path: Path) -> None:
    leveret_only("the control socket")
    with LeveretProcess(tmp_path).start() as broker:
        commands = Commands(broker.data_dir)
        commands.ok("queues", "add", "first")
        with terminal(broker) as opened:
            opened.press("", "first")
            broker.stop()
            opened.press("", "no answer, trying again: no broker is running")
            broker.start()
            commands.ok("queues", "add", "second")
            opened.press("", "second")
            # The view that follows, because the first one may come directly after that of a broker without an answer.
            opened.press("", "second")
            opened.press("q", "")
            assert opened.wait() == 0
            assert "no answer" not in opened.shown[opened.shown.rindex("second") - 1000 :]
        broker.check_log()


def test_mistakes_are_named(broker: LeveretProcess, tmp_path: Path) -> None:
    commands = Commands(broker.data_dir)
    assert "--sort: 'sent': expected one of vhost, name, ready" in commands.mistaken("top", "--sort", "sent")
    assert commands.run("top", "--interval", "0").exit_code == 2
    assert Commands(tmp_path).run("top", "--once").exit_code == 3
    assert Commands(tmp_path, "http://guest:guest@127.0.0.1:1").run("top", "--once").exit_code == 3
