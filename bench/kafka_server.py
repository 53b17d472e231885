"""Apache Kafka, one node in KRaft mode, and its connector for Spark. Maven downloads both (`bench/kafka/`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench import maven
from bench.generator import BENCH
from bench.java_process import JavaProcess
from tests.support.broker import free_port

SERVER = ("Kafka", BENCH / "kafka" / "server.xml", BENCH / "kafka" / "Publish.java")
CONNECTOR = ("Kafka connector", BENCH / "kafka" / "connector.xml")
# Kafka's own start scripts give it a heap of this size.
HEAP = "1g"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
CLUSTER = "bGV2ZXJldC1iZW5jaC1rZg"
# Sync each batch before it is acknowledged.
FLUSH = "log.flush.interval.messages=1\n"


def server() -> Path:
    """Return the directory with the server and the publisher. Raises maven.Unavailable."""
    return maven.build(*SERVER)


def connector() -> list[Path]:
    """Return the jars of Spark's connector. Raises maven.Unavailable."""
    return sorted(maven.build(*CONNECTOR).glob("*.jar"))


def downloads() -> tuple[Path, ...]:
    """Return the directories of both, which exist once they are downloaded."""
    return maven.directory(*SERVER), maven.directory(*CONNECTOR)


class KafkaProcess:
    """Kafka on a free loopback port, with default settings. It creates topics of one partition when they are first used.

    Args:
        directory: Directory of its data and its output.
        flush: Sync each batch before it is acknowledged. By default, Kafka leaves that to the operating system.
    """

    def __init__(self, directory: Path, *, flush: bool = False) -> None:
        self.directory = directory
        self.flush = flush
        self.port = free_port()
        self.data = directory / "data"
        self._process = JavaProcess("Kafka", directory, self.port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def format(self) -> None:
        """Write the settings and prepare the data directory."""
        self.directory.mkdir(parents=True)
        settings = SETTINGS.format(port=self.port, controller=free_port(), data=self.data)
        self._settings.write_text(settings + (FLUSH if self.flush else ""))
        subprocess.run(
            [*_java("kafka.tools.StorageTool"), "format", "-t", CLUSTER, "-c", str(self._settings)],
            check=True,
            capture_output=True,
        )

    def start(self, timeout: float = 120.0) -> KafkaProcess:
        """Start Kafka and wait until it listens. Raises RuntimeError with its output if it does not."""
        command = _java("kafka.Kafka", f"-Xms{HEAP}", f"-Xmx{HEAP}")
        self._process.start([*command, str(self._settings)], timeout)
        return self

    def publish(
        self, topic: str, bodies: Path, size: int, count: int, rate: int = 0, warmup: int = 0
    ) -> subprocess.Popen[str]:
        """Start Kafka's Java producer; see `bench/kafka/Publish.java`."""
        numbers = map(str, (size, count, rate, warmup))
        command = [*_java("Publish"), self.address, topic, str(bodies), *numbers]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def topic_size(self, topic: str) -> int:
        """Return the bytes that the topic's files take on the disk."""
        return sum(path.stat().st_blocks * 512 for path in (self.data / f"{topic}-0").iterdir())

    def stop(self) -> None:
        self._process.stop()

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"


def _java(program: str, *options: str) -> list[str]:
    classes = server()
    return ["java", *options, "-cp", os.pathsep.join((f"{classes}/*", str(classes))), program]
