"""Sites and channels for the tests. And whole modules in both kinds of frames: one that sets `IN_REQUESTS_TOO` is run with
methods in frames of their own, and with methods in requests and responses, but for the tests that it names in
`FRAMES_ONLY`."""

from __future__ import annotations

import pytest

from tests.protocols.amqp09.support import Channel, Client, Clock, connect
from tests.protocols.support import Site


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module
    if getattr(module, "IN_REQUESTS_TOO", False) and metafunc.function.__name__ not in getattr(module, "FRAMES_ONLY", ()):
        metafunc.parametrize("frames", ["frames", "requests"], indirect=True)


@pytest.fixture(autouse=True)
def frames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "frames") == "frames":
        return
    plain = Client.open_vhost

    def open_vhost(self: Client, insist: bool = False) -> None:
        self.engine.use_requests()
        plain(self, insist)

    monkeypatch.setattr(Client, "open_vhost", open_vhost)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def channel(site: Site) -> Channel:
    return connect(site).channel()


@pytest.fixture
def clock(site: Site) -> Clock:
    return Clock(site)
