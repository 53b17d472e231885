"""The examples for Node.js, Go and Java, run with their own toolchains."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from tests.support.broker import ROOT, Broker
from tests.support.npm import install
from tests.support.polling import wait_until

DIRECTORY = ROOT / "examples" / "frameworks"
TIMEOUT = 280

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("everything")]


def run(command: list[str | Path], directory: Path, broker: Broker, **variables: str) -> str:
    """Return the output of a command for the broker of AMQP_URL. Raises AssertionError if it fails."""
    ran = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"AMQP_URL": broker.url(vhost="/")} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
    return ran.stdout


class Worker:
    """A running program and its log."""

    def __init__(self, command: list[str | Path], log: Path, broker: Broker, **variables: str) -> None:
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"AMQP_URL": broker.url(vhost="/")} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, text: str, times: int = 1) -> None:
        def written() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.log.read_text().count(text) >= times

        wait_until(written, self.log.read_text)

    def stop(self) -> int:
        """Return the exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def start(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start_worker(*command: str | Path, **variables: str) -> Worker:
        started.append(Worker(list(command), tmp_path / f"worker-{len(started)}", broker, **variables))
        return started[-1]

    yield start_worker
    for worker in started:
        worker.process.kill()
        worker.process.wait()


def dead_letter(broker: Broker, queue: str) -> tuple[object, str]:
    """Take the next dead letter; return its content and the reason of its death."""
    with pika.BlockingConnection(pika.URLParameters(broker.url(vhost="/"))) as connection:
        channel = connection.channel()
        _, properties, body = wait_until(
            lambda: next((got for got in [channel.basic_get(queue, auto_ack=True)] if got[0]), None)
        )
    return json.loads(body), properties.headers["x-death"][0]["reason"]


def test_amqplib(broker: Broker) -> None:
    modules = install(DIRECTORY / "amqplib", "example-amqplib")
    output = run(["node", "--test", "--test-reporter=spec"], DIRECTORY / "amqplib", broker, NODE_PATH=str(modules))
    assert "ℹ pass 5" in output


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the compiled programs."""
    compiler = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(compiler).exists():
        pytest.skip("Go is not installed")
    programs = tmp_path_factory.mktemp("go")
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    command = [compiler, "build", "-o", f"{programs}/", "./..."]
    built = subprocess.run(command, cwd=DIRECTORY / "go", env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"Go cannot build the examples: {built.stderr[-1000:]}")
    return programs


def test_go(broker: Broker, go: Path, start: Callable[..., Worker]) -> None:
    program = go / "amqp091"
    worker = start(program)
    worker.wait_for("ready")
    run([program, "place", "1", "20"], go, broker)
    worker.wait_for("order 1 done")
    run([program, "place", "2", "0"], go, broker)
    assert dead_letter(broker, "go-orders-failed") == ({"id": 2, "amount": 0}, "delivery_limit")
    worker.wait_for("failed: order 2", times=3)
    assert worker.stop() == 0
    run([program, "place", "3", "5"], go, broker)
    start(program).wait_for("order 3 done")


def test_go_amqp10(broker: Broker, go: Path, start: Callable[..., Worker]) -> None:
    """Over the queue of the 0-9-1 worker, which declares it. The protocols share its delivery limit."""
    if broker.kind != "leveret":
        pytest.skip("RabbitMQ 3 has other addresses")
    run([go / "amqp091", "place", "10", "1"], go, broker)
    worker = start(go / "amqp10")
    worker.wait_for("order 10 done")
    run([go / "amqp10", "place", "11", "20"], go, broker)
    worker.wait_for("order 11 done")
    run([go / "amqp10", "place", "12", "0"], go, broker)
    assert dead_letter(broker, "go-orders-failed") == ({"id": 12, "amount": 0}, "delivery_limit")
    worker.wait_for("failed: order 12", times=3)
    assert worker.stop() == 0
    run([go / "amqp10", "place", "13", "5"], go, broker)
    other = start(go / "amqp091")
    other.wait_for("order 13 done")


def spring(example: str) -> list[str | Path]:
    """Return the command that runs a Spring Boot application. Maven builds it when its files have changed."""
    if any(shutil.which(tool) is None for tool in ("java", "mvn")):
        pytest.skip("Java with Maven is not installed")
    sources = DIRECTORY / example
    files = [sources / "pom.xml", *sorted((sources / "src").rglob("*.*"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    directory = ROOT / "build" / "examples" / f"{example}-{digest}"
    archive = directory / "shop.jar"
    if not archive.exists():
        command = ["mvn", "-q", "-B", "-f", str(files[0]), f"-DbuildDirectory={directory}", "package"]
        built = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if built.returncode:
            pytest.skip(f"Maven cannot build the example: {built.stdout[-1000:]}")
    return ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-jar", archive]


@pytest.mark.timeout(600)
def test_spring_amqp(broker: Broker, start: Callable[..., Worker]) -> None:
    shop = spring("spring-amqp")
    # Spring does not decode the vhost of a URL.
    url = f"amqp://{broker.user}:{broker.password}@{broker.host}:{broker.port}"
    worker = start(*shop, "--order=1,20", "--order=2,0", AMQP_URL=url)
    worker.wait_for("order 1 done")
    assert dead_letter(broker, "spring-orders-failed") == ({"id": 2, "amount": 0}, "rejected")
    assert worker.log.read_text().count("order 2 failed") == 3
    with pika.BlockingConnection(pika.URLParameters(broker.url(vhost="/"))) as connection:
        channel = connection.channel()
        channel.queue_delete("spring-orders")
        # The listener declares the queue again.
        json_type = pika.BasicProperties(content_type="application/json")
        channel.confirm_delivery()

        def published() -> bool:
            try:
                channel.basic_publish("spring-orders", "order.placed", b'{"id": 3, "amount": 5}', json_type, mandatory=True)
            except pika.exceptions.UnroutableError:
                return False
            return True

        wait_until(published)
    worker.wait_for("order 3 done")
    # The exit status of a JVM that SIGTERM ends.
    assert worker.stop() == 143
    start(*shop, "--order=4,5", AMQP_URL=url).wait_for("order 4 done")


@pytest.mark.timeout(600)
def test_spring_jms(broker: Broker, start: Callable[..., Worker]) -> None:
    if broker.kind != "leveret":
        pytest.skip("RabbitMQ 3 has other addresses")
    shop = spring("spring-jms")
    with pika.BlockingConnection(pika.URLParameters(broker.url(vhost="/"))) as connection:
        channel = connection.channel()
        channel.queue_declare("jms-orders-failed", durable=True)
        arguments = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jms-orders-failed"}
        channel.queue_declare("jms-orders", durable=True, arguments=arguments)
    address = f"amqp://{broker.host}:{broker.port}"
    worker = start(*shop, "--order=1,20", "--order=2,0", JMS_URL=address)
    worker.wait_for("order 1 done")
    assert dead_letter(broker, "jms-orders-failed") == ({"id": 2, "amount": 0}, "delivery_limit")
    assert worker.log.read_text().count("order 2 failed") == 3
    assert worker.stop() == 143
    start(*shop, "--order=3,5", JMS_URL=address).wait_for("order 3 done")
