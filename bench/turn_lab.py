"""A broker whose turns are measured, and clients that may do unusual things."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bench.turn_clock import LAYOUT
from leveret.broker.message import make_address
from leveret.management import control_client
from leveret.wire.amqp0.commands import Command, ContentMethod, Deliver, Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.frames import Failure, FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, End, Flow, Open, Transfer

ROOT = Path(__file__).resolve().parent.parent
BASIC = 60
HEADERS = {V0_9_1: b"AMQP\x00\x00\x09\x01", V0_9: b"AMQP\x01\x01\x00\x09"}
CONFIG = """
[server]
port = 0
log_level = "error"
slow_turn = 0

[amqp]
channel_max = 65535
"""
MANY = 1 << 30
T = TypeVar("T", bound=Performative)


class Client:
    """One blocking connection of AMQP 0-9-1 or 0-9. `delivered` counts the deliveries."""

    def __init__(self, address: tuple[str, int], version: Version = V0_9_1, timeout: float = 600) -> None:
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.engine = Engine(CLIENT, version)
        self.delivered = 0
        self.received: list[Command] = []
        self.closed = False
        self.socket.sendall(HEADERS[version])
        self.take("connection.start")
        self.engine.send(
            0,
            "connection.start-ok",
            {
                "client_properties": {"capabilities": {"consumer_cancel_notify": True}},
                "mechanism": "PLAIN",
                "response": "\0guest\0guest",
                "locale": "en_US",
            },
        )
        tune = self.take("connection.tune")
        self.engine.send(
            0, "connection.tune-ok", {"channel_max": tune["channel_max"], "frame_max": tune["frame_max"], "heartbeat": 0}
        )
        self.call(0, "connection.open", "connection.open-ok", virtual_host="/")

    def flush(self) -> None:
        self.socket.sendall(self.engine.to_send())

    def read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            self.closed = True
            raise ConnectionResetError("the broker closed the connection")
        for command in self.engine.receive(data):
            if isinstance(command, Deliver):
                self.delivered += 1
            else:
                self.received.append(command)

    def take(self, name: str, channel: int | None = None) -> dict[str, Any]:
        """Wait for a method. Raises RuntimeError if the broker closes the channel or the connection instead."""
        self.flush()
        while True:
            for index, command in enumerate(self.received):
                if isinstance(command, (Method, ContentMethod)) and (channel is None or command.channel == channel):
                    if command.name == name:
                        del self.received[index]
                        return command.arguments
                    if command.name in ("channel.close", "connection.close"):
                        raise RuntimeError(command.arguments["reply_text"])
            self.read()

    def call(self, channel: int, name: str, answer: str, **arguments: Any) -> dict[str, Any]:
        self.engine.send(channel, name, arguments)
        return self.take(answer, channel)

    def send(self, channel: int, name: str, **arguments: Any) -> None:
        """Send a method; the output is flushed occasionally."""
        self.engine.send(channel, name, arguments)
        if self.engine.pending > 1 << 17:
            self.flush()

    def open_channel(self, number: int = 1) -> None:
        self.call(number, "channel.open", "channel.open-ok")

    def declare(
        self,
        queue: str,
        *,
        channel: int = 1,
        durable: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.call(
            channel,
            "queue.declare",
            "queue.declare-ok",
            queue=queue,
            durable=durable,
            exclusive=exclusive,
            arguments=arguments or {},
        )

    def publish(self, key: str, body: bytes = b"", *, exchange: str = "", channel: int = 1, **properties: Any) -> None:
        header = encode_header(BASIC, len(body), properties)
        self.engine.send_publish(channel, make_address(exchange, key), 0, header, body, len(body))
        if self.engine.pending > 1 << 17:
            self.flush()

    def fill(self, queue: str, count: int, **properties: Any) -> None:
        """Publish messages without a body, and wait until all are in the queue."""
        for _ in range(count):
            self.publish(queue, **properties)
        self.sync()

    def sync(self, channel: int = 1) -> None:
        """Wait until everything sent on a channel has been executed."""
        self.call(channel, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=0, **{"global": False})

    def consume(
        self, queue: str, *, channel: int = 1, arguments: dict[str, Any] | None = None, no_ack: bool = False, tag: str = ""
    ) -> None:
        self.call(
            channel,
            "basic.consume",
            "basic.consume-ok",
            queue=queue,
            no_ack=no_ack,
            consumer_tag=tag,
            arguments=arguments or {},
        )

    def wait_delivered(self, count: int) -> None:
        self.flush()
        while self.delivered < count:
            self.read()

    def drop(self) -> None:
        self.socket.close()


class Client10:
    """One blocking connection of AMQP 1.0. `delivered` counts the received transfers."""

    def __init__(self, address: tuple[str, int], timeout: float = 600) -> None:
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.output = Output(1 << 16)
        self.reader = FrameReader(1 << 20)
        self.received: list[Performative] = []
        self.delivered = 0
        self.last = 0
        self.output.send_header(0)
        self.send(Open("turns"))
        self.take(Open)

    def send(self, *frames: Performative) -> None:
        """Send frames; the output is flushed occasionally."""
        for frame in frames:
            self.output.send(frame)
        if self.output.pending > 1 << 17:
            self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.output.to_send())

    def read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        for frame in self.reader.receive(data):
            if isinstance(frame, Transfer):
                self.delivered += 1
                self.last = self.last if frame.delivery_id is None else frame.delivery_id
            else:
                self.received.append(frame)

    def take(self, kind: type[T]) -> T:
        """Wait for a frame. Raises RuntimeError if the broker reports an error instead."""
        self.flush()
        while True:
            for index, frame in enumerate(self.received):
                if isinstance(frame, kind):
                    del self.received[index]
                    return frame
                if isinstance(frame, (Close, End, Detach, Failure)) and getattr(frame, "error", None) is not None:
                    raise RuntimeError(str(getattr(frame, "error", None) and frame.error.description))  # type: ignore[union-attr]
            self.received = [frame for frame in self.received if isinstance(frame, (Close, End, Detach))]
            self.read()

    def begin(self, channel: int = 0) -> None:
        self.send(Begin(0, MANY, MANY, channel=channel))
        self.take(Begin)

    def attach(self, name: str, handle: int, *, receives: bool, **options: Any) -> Attach:
        self.send(Attach(name, handle, receives, initial_delivery_count=None if receives else 0, **options))
        return self.take(Attach)

    def credit(self, handle: int, credit: int, *, drain: bool = False) -> None:
        self.send(Flow(MANY, 0, MANY, 0, handle, 0, credit, drain=drain))

    def sync(self, channel: int = 0) -> None:
        """Wait until everything sent on a channel has been executed."""
        self.send(Flow(MANY, 0, MANY, 0, echo=True, channel=channel))
        self.received = [frame for frame in self.received if not isinstance(frame, Flow)]
        self.take(Flow)

    def wait_delivered(self, count: int) -> None:
        self.flush()
        while self.delivered < count:
            self.read()

    def drop(self) -> None:
        self.socket.close()


class Lab:
    """A broker of the compiled build, and the cost of its turns."""

    def __init__(self, directory: Path, config: str = CONFIG) -> None:
        self.directory = directory
        self.clock = directory / "turns"
        self.clock.write_bytes(LAYOUT.pack(0.0, 0.0))
        with self.clock.open("r+b") as file:
            self.shared = mmap.mmap(file.fileno(), LAYOUT.size)
        (directory / "leveret.toml").write_text(config)
        ready = directory / "ready"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "LEVERET_MANAGEMENT__ENABLED": "false",
        }
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "bench" / "turn_clock.py"),
                    str(self.clock),
                    "serve",
                    "--config",
                    str(directory / "leveret.toml"),
                    "--data-dir",
                    str(directory / "data"),
                    "--ready-file",
                    str(ready),
                ],
                stdout=log,
                stderr=log,
                env=environment,
            )
        while not ready.exists():
            if self.process.poll() is not None:
                raise SystemExit((directory / "log").read_text())
            time.sleep(0.02)
        found = json.loads(ready.read_text())
        self.address = (found["host"], found["port"])
        self.build = (directory / "log").read_text().partition("\n")[0]
        self.clients: list[Client | Client10] = []

    def connect(self, **options: Any) -> Client:
        client = Client(self.address, **options)
        self.clients.append(client)
        return client

    def connect10(self) -> Client10:
        client = Client10(self.address)
        self.clients.append(client)
        return client

    def control(self, name: str, /, **arguments: Any) -> Any:
        """Call an operation on the control socket."""
        return control_client.call(self.directory / "data", name, arguments)

    def raw(self) -> socket.socket:
        """Open a socket to the broker."""
        return socket.create_connection(self.address, 30)

    def reset(self) -> None:
        LAYOUT.pack_into(self.shared, 0, 0.0, 0.0)

    def longest(self) -> float:
        """Return the processor time of the longest turn since `reset`, in milliseconds."""
        return float(LAYOUT.unpack_from(self.shared)[0]) * 1000

    def settle(self) -> None:
        """Wait until the broker is idle: its thread uses no processor time."""
        quiet = 0
        before = self._used()
        while quiet < 3:
            time.sleep(0.05)
            now = self._used()
            quiet = quiet + 1 if now - before <= 1 else 0
            before = now

    def _used(self) -> int:
        """Return the processor time of the broker in ticks."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def stop(self) -> None:
        for client in self.clients:
            client.drop()
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(config: str = CONFIG) -> Iterator[Lab]:
    """Start a broker with its own directory."""
    with tempfile.TemporaryDirectory(prefix="leveret-turns-") as directory:
        lab = Lab(Path(directory), config)
        try:
            yield lab
        finally:
            lab.stop()
