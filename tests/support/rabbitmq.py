"""A separate RabbitMQ, to check that tests expect its behaviour.

`python -m tests.support.rabbitmq` runs one in the foreground and prints its URL; Ctrl-C ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.broker import USERS, VHOSTS, Broker, free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
# The plugins with the exchange types that Leveret has, too.
EXCHANGE_PLUGINS = ("rabbitmq_consistent_hash_exchange", "rabbitmq_random_exchange", "rabbitmq_sharding")


def available() -> bool:
    return SERVER.exists()


class RabbitProcess(Broker):
    """RabbitMQ on a free loopback port, with its own node name, directories, cookie and port mapper."""

    kind = "rabbitmq"

    def __init__(self, directory: Path, plugins: tuple[str, ...] = (), settings: str = "") -> None:
        """Start it with `plugins` in addition to the one for all tests, and with more lines of `rabbitmq.conf`."""
        super().__init__(port=free_port())
        self.plugins = (*EXCHANGE_PLUGINS, *plugins)
        self.settings = settings
        self.directory = directory
        self.mapper: subprocess.Popen[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.mapper_port = 0
        self.environment: dict[str, str] = {}

    def definitions(self) -> dict[str, object]:
        return {
            "vhosts": [{"name": vhost} for vhost in VHOSTS],
            "users": [
                {"name": name, "password": password, "tags": "administrator" if name == "guest" else ""}
                for name, (password, _) in USERS.items()
            ],
            "permissions": [
                {"user": name, "vhost": vhost, "configure": configure, "write": write, "read": read}
                for name, (_, permissions) in USERS.items()
                for vhost, (configure, write, read) in permissions.items()
            ],
        }

    def start(self, timeout: float = 240.0) -> RabbitProcess:
        self.directory.mkdir(parents=True, exist_ok=True)
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        (self.directory / "definitions.json").write_text(json.dumps(self.definitions()))
        (self.directory / "rabbitmq.conf").write_text(
            "loopback_users = none\n"
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"load_definitions = {self.directory}/definitions.json\n"
            "log.console = false\nlog.file.level = info\n"
            f"{self.settings}"
        )
        (self.directory / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        if not self.mapper_port:
            self.mapper_port = free_port()
        mapper_port, distribution = self.mapper_port, free_port()
        name = f"leverettest{os.getpid()}x{self.port}"
        self.environment = os.environ | {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        mapper = shutil.which("epmd")
        assert mapper, "epmd is not installed"
        if self.mapper is None:
            self.mapper = subprocess.Popen(
                [mapper, "-port", str(mapper_port), "-address", "127.0.0.1"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        output = open(self.directory / "output", "ab")  # noqa: SIM115 - handed to the process
        self.process = subprocess.Popen(
            [str(SERVER)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        output.close()
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("RabbitMQ did not start:\n" + (self.directory / "output").read_text()[-4000:])
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), 1) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node."""
        done = subprocess.run(
            [str(CONTROL), *arguments], env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL for the emulator and the script around it."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                # The script waits for the emulator, its child in the same session.
                os.killpg(self.process.pid, signal.SIGTERM)
                try:
                    self.process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(self.process.pid, signal.SIGKILL)
                    self.process.wait()
            self.process = None
        if self.mapper is not None:
            self.mapper.terminate()
            self.mapper.wait()
            self.mapper = None


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="leveret-rabbitmq-") as directory:
        broker = RabbitProcess(Path(directory)).start()
        print(broker.url(), flush=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
