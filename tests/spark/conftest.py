"""One Spark session and one broker for all tests of this folder, which run in one process (see tests/conftest.py)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.artemis import ArtemisProcess, program
from leveret import sync
from tests.spark.environment import JVM_SOURCE, environment
from tests.support import rabbitmq
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.rabbitmq import RabbitProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Seconds for a test. Spark takes its time on a busy machine, and a test that exceeds its time ends its process.
TIMEOUT = 600


def _reason_to_skip() -> str | None:
    if not shutil.which("java") and not (Path(os.environ.get("JAVA_HOME", "/nowhere")) / "bin" / "java").exists():
        return "Spark needs Java 17, and there is no java (JAVA_HOME, PATH)"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _reason_to_skip()
    for item in items:
        if item.nodeid.startswith("tests/spark/") and {"spark", "java"} & set(getattr(item, "fixturenames", ())):
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def java() -> None:
    """Skip tests that start their own Spark applications if Java is missing."""


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitProcess]:
    """Yield a RabbitMQ. Skips if it is not installed."""
    if not rabbitmq.available():
        pytest.skip("there is no rabbitmq-server here")
    with RabbitProcess(tmp_path_factory.mktemp("rabbitmq")).start() as broker:
        yield broker


@pytest.fixture(scope="session")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtemisProcess]:
    """Yield an Artemis, which speaks AMQP 1.0. Skips if Java or Maven is not installed, or Artemis cannot be downloaded."""
    if program() is None:
        pytest.skip("there is no Artemis here: it needs java, javac and mvn, and its jars from Maven")
    with ArtemisProcess(tmp_path_factory.mktemp("artemis"), keep=True).start() as broker:
        yield broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session with two task slots. Its Python workers run this checkout."""
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("leveret tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={directory}")
        .config("spark.sql.streaming.stopTimeout", "300s")
        .config("spark.sql.streaming.pollingDelay", "20ms")
        .config("spark.log.level", "ERROR")
        .config("spark.jars", str(JVM_SOURCE) if JVM_SOURCE.exists() else "")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def jar() -> None:
    """Skip tests of the data source in the JVM if it is not built."""
    if not JVM_SOURCE.exists():
        pytest.skip(f"the data source in the JVM is not built ({JVM_SOURCE}); run make jar, which needs Maven")


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker that tests must not stop, with unique names per test."""
    leveret_only("Spark reads what only Leveret keeps")
    with LeveretProcess(tmp_path_factory.mktemp("broker")).start() as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker that tests may kill."""
    leveret_only("it is stopped and started")
    with LeveretProcess(tmp_path / "broker").start() as broker:
        yield broker


@pytest.fixture
def own_password(own_broker: LeveretProcess) -> LeveretProcess:
    """Return a broker with a password that appears in no text by chance."""
    own_broker.stop()
    own_broker.password = "pa55word"
    own_broker.config = own_broker.config.replace('password = "guest"', 'password = "pa55word"')
    return own_broker.start()


@pytest.fixture
def broker(shared_broker: LeveretProcess) -> LeveretProcess:
    return shared_broker


@pytest.fixture
def connection(broker: LeveretProcess) -> Iterator[sync.Connection]:
    """A 0-9-1 connection to the shared broker."""
    with sync.connect(broker.url()) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A unique name for a queue or a stream."""
    return f"t-{uuid.uuid4().hex[:12]}"
