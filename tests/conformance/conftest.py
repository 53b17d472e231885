"""The broker under test, and the two modes of its virtual hosts.

A test that uses `mode` (most do, through `connect`, `peer` or `channel`) runs twice: on a virtual host that follows
RabbitMQ where it deviates from the specification (`rabbitmq`), and on one that follows the specification (`strict`).
`@pytest.mark.mode("strict")` keeps a test to one of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.sockets import sockets
from tests.support.broker import Broker, LeveretProcess, basic_config, leveret_only, start_broker
from tests.support.peers.amqp091 import Channel, Peer

MODES = {"rabbitmq": "/", "strict": "strict"}
CONFIG = (
    basic_config()
    + """
[vhosts.strict]
compat.strict = true

[vhosts.windows]
qos_global = "spec"

[vhosts.small]
limits.max_queues = 1

[vhosts.small-strict]
compat.strict = true
limits.max_queues = 1

[users."guest".permissions.small]
configure = ".*"
write = ".*"
read = ".*"

[users."guest".permissions.small-strict]
configure = ".*"
write = ".*"
read = ".*"

[users."guest".permissions.strict]
configure = ".*"
write = ".*"
read = ".*"

[users."guest".permissions.windows]
configure = ".*"
write = ".*"
read = ".*"
"""
)
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    # The specification deprecates recover-async, but has rules for it.
    config.addinivalue_line("filterwarnings", "ignore:This command is deprecated:DeprecationWarning")
    config.addinivalue_line("markers", "mode(name): run in one mode only, 'rabbitmq' or 'strict'")
    config.addinivalue_line("markers", "ahead_of_rabbitmq(why): asks for more than RabbitMQ does")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mode" in metafunc.fixturenames:
        only = [mark.args[0] for mark in metafunc.definition.iter_markers("mode")]
        metafunc.parametrize("mode", only or list(MODES))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests that do not restart it."""
    running = start_broker(tmp_path_factory.mktemp("broker"), config=CONFIG)
    yield running
    running.stop()
    running.check_log()


@pytest.fixture(scope="session")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker that follows the specification outside its virtual hosts, too."""
    leveret_only("it is configured")
    config = CONFIG + "\n[server]\ncompat.strict = true\n"
    process = LeveretProcess(tmp_path_factory.mktemp("strict"), config=config).start()
    yield process
    process.stop()
    process.check_log()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker for one test, to stop, kill and start again."""
    leveret_only("it is restarted")
    process = LeveretProcess(tmp_path / "own", config=CONFIG).start()
    yield process
    process.kill()
    process.check_log()


@pytest.fixture
def vhost(mode: str, broker: Broker) -> str:
    if broker.kind == "rabbitmq" and mode == "strict":
        pytest.skip("RabbitMQ has no strict mode")
    return MODES[mode]


@pytest.fixture(autouse=True)
def _skip_what_rabbitmq_lacks(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("ahead_of_rabbitmq")
    if mark is not None and os.environ.get("LEVERET_TEST_BROKER") == "rabbitmq":
        pytest.skip(f"RabbitMQ: {mark.args[0]}")


@pytest.fixture
def raw(broker: Broker) -> Iterator[Callable[..., Peer]]:
    """A factory of new sockets, before the handshake."""
    yield from sockets(Peer, broker)


Connect = Callable[..., Peer]


@pytest.fixture
def connect(raw: Callable[..., Peer], vhost: str) -> Connect:
    """A factory of open connections to the mode's virtual host."""

    def make(*, receive_buffer: int = 0, **options: object) -> Peer:
        peer = raw(receive_buffer=receive_buffer)
        peer.handshake(vhost, **options)  # type: ignore[arg-type]
        return peer

    return make


@pytest.fixture
def peer(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def channel(peer: Peer) -> Channel:
    """Channel 1 of an open connection."""
    return peer.channel(1)


@pytest.fixture
def other(connect: Connect) -> Channel:
    """Channel 1 of another connection."""
    return connect().channel(1)


@pytest.fixture
def unique() -> Callable[[], str]:
    """Names that no other test uses."""
    return lambda: f"conf.{os.getpid()}.{next(_numbers)}"


@pytest.fixture
def name(unique: Callable[[], str]) -> str:
    """One name that no other test uses."""
    return unique()
