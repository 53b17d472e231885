"""The brokers to compare: Leveret with compiled and with plain modules, RabbitMQ if it is installed, and for AMQP 1.0
Artemis if Java and Maven are installed.

The tests' process classes start them, each with its own directories under a temporary one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import artemis, generator
from bench.artemis import ArtemisProcess
from bench.generator import slow_sync
from tests.support.broker import Broker, LeveretProcess
from tests.support.rabbitmq import RabbitProcess, available

RABBIT = "rabbitmq"
ARTEMIS = "artemis"
COMPILED = "compiled"
PURE = "pure"
TITLES = {RABBIT: "RabbitMQ", ARTEMIS: "Artemis", COMPILED: "Leveret, compiled", PURE: "Leveret, pure Python"}
SPEAK_0_9_1 = [RABBIT, COMPILED, PURE]

CONFIG = """\
[users.guest]
password = "guest"
tags = ["administrator"]
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
"""


def names(wanted: list[str] | None = None, amqp10: bool = False) -> list[str]:
    """Return the wanted brokers that are available on this machine, RabbitMQ first.

    With `amqp10`, include brokers that speak only AMQP 1.0.
    """
    from leveret import build_info

    found = []
    if available():
        found.append(RABBIT)
    if amqp10 and (wanted is None or ARTEMIS in wanted) and artemis.program() is not None:
        found.append(ARTEMIS)
    if build_info().compiled:
        found.append(COMPILED)
    found.append(PURE)
    return [name for name in found if wanted is None or name in wanted]


@contextlib.contextmanager
def preloaded(slow: bool) -> Iterator[None]:
    """Preload the slow disk into processes that start inside the `with` block."""
    before = os.environ.get("LD_PRELOAD")
    if slow:
        os.environ["LD_PRELOAD"] = str(slow_sync())
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = before


class Contender:
    """A running broker.

    `pid` is the process whose CPU time and memory count; `options` are the generator's options for this broker.
    """

    def __init__(self, name: str, directory: Path, slow: bool = False) -> None:
        self.name = name
        self.slow = slow
        self.directory = directory
        self.broker: Broker
        self.options: tuple[str, ...] = ()
        if name == RABBIT:
            self.broker = RabbitProcess(directory, ("rabbitmq_amqp1_0",))
        elif name == ARTEMIS:
            self.broker = ArtemisProcess(directory)
            self.options = ("--no-declare", "--address", "")
        else:
            pure = {"LEVERET_PURE": "1" if name == PURE else "0"}
            self.broker = LeveretProcess(directory, config=CONFIG, environment=pure, log_level="error")
        self.start()

    def start(self, timeout: float = 600) -> None:
        with preloaded(self.slow):
            assert isinstance(self.broker, (LeveretProcess, RabbitProcess, ArtemisProcess))
            self.broker.start(timeout)
        if self.name == ARTEMIS:
            # Code that the JVM has not compiled yet must not be measured.
            for durable in ((), ("--durable",)):
                generator.run(self.port, "run", "--publish-1.0", "--consume-1.0", *self.options, *durable, "--seconds", "3")
        if isinstance(self.broker, LeveretProcess):
            # The sources may have been edited since they were compiled.
            build = "(pure" if self.name == PURE else "(compiled"
            started = self.broker.log().splitlines()[0]
            if build not in started:
                self.stop()
                raise SystemExit(f"requested {TITLES[self.name]}, but started {started}")

    def stop(self) -> None:
        if isinstance(self.broker, LeveretProcess):
            self.broker.stop(timeout=600)
        else:
            self.broker.stop()

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def pid(self) -> int:
        if isinstance(self.broker, RabbitProcess):
            # RabbitMQ writes the file when it listens, or a little later on a busy machine.
            deadline = time.monotonic() + 30
            while not (self.directory / "pid").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            return int((self.directory / "pid").read_text())
        assert isinstance(self.broker, (LeveretProcess, ArtemisProcess))
        return self.broker.pid


@contextlib.contextmanager
def alone(measured: Contender, contenders: list[Contender]) -> Iterator[None]:
    """Suspend the other brokers."""
    with suspended([contender for contender in contenders if contender is not measured]):
        yield


@contextlib.contextmanager
def suspended(contenders: list[Contender]) -> Iterator[None]:
    """Suspend brokers, since even an idle broker runs now and then."""
    for contender in contenders:
        os.kill(contender.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for contender in contenders:
            os.kill(contender.pid, signal.SIGCONT)


@contextlib.contextmanager
def running(wanted: list[str], directory: Path, slow: bool = False) -> Iterator[list[Contender]]:
    """Run these brokers during the `with` block."""
    with contextlib.ExitStack() as stack:
        started = []
        for name in wanted:
            contender = Contender(name, directory / f"{name}{'-slow' if slow else ''}", slow)
            stack.callback(contender.stop)
            started.append(contender)
        try:
            yield started
        except BaseException:
            for contender in started:
                if isinstance(contender.broker, LeveretProcess):
                    print(contender.broker.log()[-4000:], file=sys.stderr)
            raise
