"""The broker under test and its peers of AMQP 0-9.

The virtual host `realm` has realms: `/own` for resources that begin with `own.`, in which `guest` has every right, and
`/shared` and `/closed`, for which no user has full rights. The other virtual hosts have no realms and accept ticket 0.
Channels of lost connections are not kept for `channel.resume`, so that their unacked messages are available at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import CONFIG, MODES
from tests.conformance.sockets import sockets
from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.peers.amqp09 import Channel, Peer

REALM = "realm"
OWN, SHARED, CLOSED, UNKNOWN = "/own", "/shared", "/closed", "/unknown"
RIGHTS = ("exclusive", "passive", "active", "write", "read")
CONFIG_AMQP09 = (
    CONFIG
    + """
[vhosts.realm]

[vhosts.realm.realms."/own"]
resources = "own\\\\..*|amq\\\\..*|"
exclusive = ["guest"]
passive = ["guest"]
active = ["guest"]
write = ["guest"]
read = ["guest"]

[vhosts.realm.realms."/shared"]
resources = "shared\\\\..*"
exclusive = ["*"]
passive = ["*"]
active = ["*"]
write = ["*"]
read = ["*"]

[vhosts.realm.realms."/closed"]
resources = "closed\\\\..*"
active = ["unknown"]

[users."guest".permissions.realm]
configure = ".*"
write = ".*"
read = ".*"

[amqp09]
resume_timeout = 0
"""
)

Raw = Callable[..., Peer]
Connect = Callable[..., Peer]


@pytest.fixture(autouse=True)
def _leveret_only() -> None:
    leveret_only("only Leveret supports AMQP 0-9")


@pytest.fixture(scope="session")
def broker09(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """One broker for all tests that do not restart it."""
    process = LeveretProcess(tmp_path_factory.mktemp("broker09"), config=CONFIG_AMQP09).start()
    yield process
    process.stop()
    process.check_log()


@pytest.fixture
def broker(broker09: LeveretProcess) -> LeveretProcess:
    return broker09


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker for one test, to stop, kill and start again. A test that changes `config` starts it itself."""
    process = LeveretProcess(tmp_path / "own", config=CONFIG_AMQP09).start()
    yield process
    process.kill()
    process.check_log()


@pytest.fixture
def raw(broker09: LeveretProcess) -> Iterator[Raw]:
    """A factory of new sockets, before the handshake."""
    yield from sockets(Peer, broker09)


@pytest.fixture
def connect(raw: Raw) -> Connect:
    """A factory of open connections."""

    def make(vhost: str = "/", *, at: Broker | None = None, receive_buffer: int = 0, **options: object) -> Peer:
        peer = raw(receive_buffer=receive_buffer) if at is None else raw(at)
        peer.connect(vhost, **options)  # type: ignore[arg-type]
        return peer

    return make


@pytest.fixture
def peer(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def channel(peer: Peer) -> Channel:
    """Channel 1 of an open connection."""
    return peer.open()


@pytest.fixture
def other(connect: Connect) -> Channel:
    """Channel 1 of another connection."""
    return connect().open()


@pytest.fixture
def moded(mode: str, connect: Connect) -> Callable[[], Channel]:
    """A factory of channels, each on its own connection, in the mode's virtual host."""
    return lambda: connect(MODES[mode]).open()


@pytest.fixture
def guarded(connect: Connect) -> Callable[[], Channel]:
    """A factory of channels in the virtual host with realms."""
    return lambda: connect(REALM).open()


def ticket(channel: Channel, *rights: str, realm: str = OWN) -> int:
    """A ticket with these rights."""
    given: dict[str, Any] = dict.fromkeys(rights, True)
    return int(channel.call("access.request", realm=realm, **given).ticket)
