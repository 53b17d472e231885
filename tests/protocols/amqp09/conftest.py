"""Sites and channels for the tests.

A module that sets `IN_REQUESTS_TOO` runs twice: with methods in plain frames, and in requests and responses. The tests in
its `FRAMES_ONLY` run with plain frames only.
"""

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
