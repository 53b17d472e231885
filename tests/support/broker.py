"""Brokers under test, as real processes.

`LeveretProcess` runs `python -m leveret serve` on its own loopback port with its own data directory. The same tests run
against another broker if the environment says so:

LEVERET_TEST_URL=amqp://...      a running broker; tests that must start or stop it are skipped
LEVERET_TEST_STORE=postgresql    brokers with their logs in PostgreSQL (`tests.support.postgres`)
LEVERET_TEST_SHARDS=2            brokers of a front and this number of shards
LEVERET_TEST_BROKER=rabbitmq     a separate RabbitMQ (`tests.support.rabbitmq`), to validate the tests themselves
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import quote, unquote, urlsplit

import pytest

from tests.support.polling import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0
# For clients whose timeouts are shorter than a busy machine may take to connect.
CONNECT_TIMEOUT = 60.0
PORTS = range(10_000, 32_768)
_reserved: set[int] = set()

# Users of every test: `guest` with all permissions, `limited` with few. RabbitMQ gets the same by definitions.
USERS = {
    "guest": ("guest", dict.fromkeys(("/", "interop", "vhöst/ü"), (".*", ".*", ".*"))),
    "limited": ("secret", {"interop": ("^mine-.*", "^(mine-.*|amq.default)$", "^mine-.*")}),
}
VHOSTS = ("/", "interop", "vhöst/ü")


def toml_string(text: str) -> str:
    return json.dumps(text)


def basic_config() -> str:
    """Return the users and virtual hosts above as a configuration file."""
    lines = []
    for vhost in VHOSTS:
        lines += [f"[vhosts.{toml_string(vhost)}]", ""]
    for name, (password, permissions) in USERS.items():
        lines += [f"[users.{toml_string(name)}]", f"password = {toml_string(password)}"]
        if name == "guest":
            lines += ['tags = ["administrator"]']
        for vhost, (configure, write, read) in permissions.items():
            lines += [
                f"permissions.{toml_string(vhost)} = {{ configure = {toml_string(configure)}, "
                f"write = {toml_string(write)}, read = {toml_string(read)} }}"
            ]
        lines += [""]
    return "\n".join(lines)


@cache
def _port_locks() -> BinaryIO:
    # Not in TMPDIR, which need not be the same for all tests on a machine.
    return open(f"/tmp/leveret-tests-ports-{os.getuid()}", "ab")


def free_port() -> int:
    """Reserve a port for the lifetime of this process, so that a broker finds it free again after a stop or a kill.

    The port lies below the range from which the system picks the ports of outgoing connections and of port 0. A lock on
    its byte of a file keeps other test processes from taking it.
    """
    choice = random.SystemRandom()
    for _ in range(1000):
        port = choice.choice(PORTS)
        try:
            fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        # A process can lock a byte again that it has locked.
        if port not in _reserved:
            _reserved.add(port)
            return port
    raise RuntimeError(f"no port between {PORTS.start} and {PORTS.stop} is free")


class Broker:
    """A broker to connect to. `kind` is "leveret", "rabbitmq" or "external"."""

    kind = "external"

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, user: str = "guest", password: str = "guest", vhost: str = "/"
    ) -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password
        self.vhost = vhost

    def url(
        self, *, user: str | None = None, password: str | None = None, vhost: str | None = None, query: str = ""
    ) -> str:
        """Return an AMQP URI with percent-encoding."""
        name = quote(user if user is not None else self.user, safe="")
        secret = quote(password if password is not None else self.password, safe="")
        path = quote(vhost if vhost is not None else self.vhost, safe="")
        return f"amqp://{name}:{secret}@{self.host}:{self.port}/{path}" + (f"?{query}" if query else "")

    def connect(self, timeout: float = CONNECT_TIMEOUT) -> socket.socket:
        """Open a plain TCP connection to the broker."""
        return socket.create_connection((self.host, self.port), timeout)

    def alive(self) -> bool:
        return True

    def stop(self) -> None:
        """Stop the broker if we started it."""

    def check_log(self) -> None:
        """Fail the test if the broker logged an exception."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def external(url: str) -> Broker:
    parts = urlsplit(url)
    path = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
    return Broker(
        parts.hostname or "127.0.0.1",
        parts.port or 5672,
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        path,
    )


class LeveretProcess(Broker):
    """A broker process over one data directory; `start` after `stop` or `kill` finds the stored data.

    directory  contains data, config, ready file and the output of every run (`broker.log`)
    config     text of a TOML config file
    environment  added to the process's
    wrapper    a command to run it under (`prlimit ...`)
    extra      more arguments of `leveret serve`
    """

    kind = "leveret"

    def __init__(
        self,
        directory: Path,
        *,
        config: str | None = None,
        environment: dict[str, str] | None = None,
        data_dir: Path | None = None,
        wrapper: list[str] | None = None,
        log_level: str = "info",
    ) -> None:
        super().__init__(port=free_port())
        self.directory = directory
        self.data_dir = data_dir or directory / "data"
        self.config = basic_config() if config is None else config
        self.environment = environment or {}
        # On a busy machine, the store may need more than a second. Clients that do not answer get 8 of these 10.
        # The HTTP API takes half a second of CPU time and is tested on its own.
        self.defaults = {
            "LEVERET_SERVER__SHUTDOWN_TIMEOUT": "10",
            "LEVERET_MANAGEMENT__ENABLED": "false",
            "LEVERET_MANAGEMENT__METRICS_PORT": "0",
        }
        if os.environ.get("LEVERET_TEST_STORE") == "postgresql":
            # Imported here because it needs `free_port`.
            from tests.support.postgres import broker_environment

            self.defaults |= broker_environment(self.data_dir)
        shards = os.environ.get("LEVERET_TEST_SHARDS")
        if shards:
            self.defaults["LEVERET_CLUSTER__SHARDS"] = shards
        # The interpreter. Another one may have its own compiled modules in the same checkout.
        self.python = sys.executable
        self.wrapper = wrapper or []
        self.extra: list[str] = []
        self.log_level = log_level
        self.log_path = directory / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.control: str | None = None
        # The ids of the processes of shards, as of the start.
        self.shards: list[int] = []

    def start(self, timeout: float = START_TIMEOUT) -> LeveretProcess:
        """Start the broker and wait until it listens. Raises RuntimeError with its output if it does not."""
        self.begin()
        return self.wait(timeout)

    def begin(self) -> None:
        """Start the broker without waiting for it."""
        assert self.process is None, "already running"
        self.directory.mkdir(parents=True, exist_ok=True)
        config_path = self.directory / "leveret.toml"
        config_path.write_text(self.config, encoding="utf-8")
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        command = [
            *self.wrapper,
            self.python,
            "-m",
            "leveret",
            "serve",
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--data-dir",
            str(self.data_dir),
            "--config",
            str(config_path),
            "--ready-file",
            str(ready),
            "--log-level",
            self.log_level,
            *self.extra,
        ]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        environment |= self.defaults | self.environment
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.directory
            )

    def wait(self, timeout: float = START_TIMEOUT) -> LeveretProcess:
        """Wait until the broker listens, as `start`."""
        assert self.process is not None
        ready = self.directory / "ready.json"
        deadline = time.monotonic() + timeout
        while True:
            try:
                facts = json.loads(ready.read_text(encoding="utf-8"))
                break
            except (FileNotFoundError, ValueError):
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                code = self.process.poll()
                self.kill()
                raise RuntimeError(f"the broker did not start (exit code {code}):\n{self.log()[-6000:]}")
            time.sleep(0.01)
        self.port = int(facts["port"])
        self.control = facts.get("control")
        self.shards = facts.get("shards", [])
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """Return the output of all runs, stdout and stderr."""
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def wait_for_log(self, wanted: str, after: int = 0) -> str:
        """Wait for a line of the log with this text, after a number of characters, and return it."""

        def line() -> str | None:
            return next((line for line in self.log()[after:].splitlines() if wanted in line), None)

        return wait_until(line, lambda: f"no line with {wanted!r} in:\n{self.log()[after:]}")

    def check_log(self) -> None:
        text = self.log()
        for sign in (
            "Traceback (most recent call last)",
            "Task exception was never retrieved",
            "Fatal error:",
            "never awaited",
        ):
            if sign in text:
                at = text.index(sign)
                raise AssertionError("the broker logged an exception:\n" + text[max(0, at - 1000) : at + 4000])

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Send SIGTERM and wait for a clean end. Raises AssertionError on a timeout or an exit code."""
        process = self.process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker did not stop within {timeout} s:\n{self.log()[-4000:]}") from None
        self.process = None
        assert code == 0, f"the broker stopped with code {code}:\n{self.log()[-4000:]}"

    def kill(self) -> None:
        """Send SIGKILL."""
        process = self.process
        if process is not None:
            process.kill()
            process.wait()
            self.process = None

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


def start_broker(directory: Path, **options: object) -> Broker:
    """Start the broker that the environment selects. `options` are those of `LeveretProcess`."""
    url = os.environ.get("LEVERET_TEST_URL")
    if url:
        return external(url)
    if os.environ.get("LEVERET_TEST_BROKER") == "rabbitmq":
        from tests.support.rabbitmq import RabbitProcess

        return RabbitProcess(directory).start()
    return LeveretProcess(directory, **options).start()  # type: ignore[arg-type]


def leveret_only(why: str) -> None:
    """Skip the test if the broker under test cannot be started and stopped by it."""
    if os.environ.get("LEVERET_TEST_URL") or os.environ.get("LEVERET_TEST_BROKER") == "rabbitmq":
        pytest.skip(f"needs a broker process of its own: {why}")
