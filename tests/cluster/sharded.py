"""Brokers of a front and shards, as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pika

from leveret.management.socket_path import short_path
from tests.support.broker import CONNECT_TIMEOUT, LeveretProcess, leveret_only
from tests.support.polling import wait_until

KEPT = pika.BasicProperties(delivery_mode=2)


def config(*vhosts: str) -> str:
    """Return a configuration with vhosts and a user who may use them and the default vhost."""
    lines = [f"[vhosts.{json.dumps(name)}]" for name in vhosts]
    lines += ["[users.guest]", 'password = "guest"', 'tags = ["administrator"]']
    permission = '{ configure = ".*", write = ".*", read = ".*" }'
    lines += [f"permissions.{json.dumps(name)} = {permission}" for name in ("/", *vhosts)]
    return "\n".join(lines)


class Sharded(LeveretProcess):
    """A broker with shards. Its vhosts are declared in the configuration."""

    def __init__(self, directory: Path, shards: int, *vhosts: str, **environment: str) -> None:
        leveret_only("shards")
        super().__init__(directory, config=config(*vhosts), environment=environment)
        self.count = shards

    def begin(self) -> None:
        self.defaults["LEVERET_CLUSTER__SHARDS"] = str(self.count)
        super().begin()

    def start(self, timeout: float = 120.0) -> Sharded:
        super().start(timeout)
        return self

    def call(self, shard: int, name: str, **arguments: Any) -> Any:
        """Execute an operation in a shard, at its control socket. Raises `OSError` if it does not serve."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(CONNECT_TIMEOUT)
            with short_path(self.data_dir / "shards" / f"{shard}.sock") as path:
                control.connect(path)
            control.sendall(json.dumps({"v": 1, "call": name, "arguments": arguments}).encode() + b"\n")
            answer = json.loads(control.makefile().readline())
        assert "error" not in answer, answer
        return answer["result"]

    def vhosts(self, shard: int) -> list[str]:
        """Return the names of the vhosts in a shard."""
        return [vhost["name"] for vhost in self.call(shard, "vhosts.list")]

    def shard_pid(self, shard: int, other_than: int = 0) -> int:
        """Return the id of the process of a shard, once it serves."""

        def pid() -> int:
            try:
                found: int = self.call(shard, "status")["pid"]
            except (OSError, ValueError):
                return 0
            return 0 if found == other_than else found

        return wait_until(pid, lambda: f"shard {shard} does not serve:\n{self.log()[-4000:]}")

    def kill_shard(self, shard: int) -> int:
        """Kill the process of a shard. Returns its id."""
        pid = self.shard_pid(shard)
        os.kill(pid, signal.SIGKILL)
        return pid

    def open(self, vhost: str, user: str = "guest", password: str = "guest") -> pika.BlockingConnection:
        """Open a connection to a vhost."""
        parameters = pika.URLParameters(self.url(user=user, password=password, vhost=vhost))
        parameters.socket_timeout = parameters.blocked_connection_timeout = CONNECT_TIMEOUT
        return pika.BlockingConnection(parameters)

    def publish(self, vhost: str, *bodies: bytes) -> None:
        """Publish confirmed messages to the durable queue `q` of a vhost."""
        connection = self.open(vhost)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "q", body, KEPT)
        connection.close()

    def bodies(self, vhost: str, queue: str = "q") -> list[bytes]:
        """Take the messages of a queue of a vhost."""
        connection = self.open(vhost)
        channel = connection.channel()
        found = []
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[2])
        connection.close()
        return found


AnySharded = TypeVar("AnySharded", bound=Sharded)


@contextmanager
def running(broker: AnySharded) -> Iterator[AnySharded]:
    """Run a broker, and check its log after its stop."""
    with broker.start():
        yield broker
    broker.check_log()
