"""The async and sync API have the same names, parameters and defaults."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import leveret
from leveret import aio, sync
from leveret.client.timeouts import DEFAULT, blocked_limit

# Members of one front end only.
DIFFERENT = {
    "Connection": {"open", "run", "wait", "wait_open", "new_waiter", "flush_soon", "emit", "pause_reading",
                   "resume_reading", "close_socket", "reconnect", "received", "socket_lost", "stream", "core", "driver",
                   "message_class", "delivery_class", "file_class"},
    "Channel": {"send", "wait_flowing", "lock", "call"},
    "Consumer": set(),
    "FileConsumer": set(),
    "Publisher": set(),
    "Queue": set(),
    "Exchange": set(),
    "Sender": set(),
    "Receiver": set(),
    "Transaction": set(),
}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(call: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(call).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_front_ends_have_the_same_signatures(name: str) -> None:
    asynchronous, threaded = public(getattr(aio, name)), public(getattr(sync, name))
    assert asynchronous.keys() - DIFFERENT[name] == threaded.keys() - DIFFERENT[name]
    for member in asynchronous.keys() & threaded.keys() - DIFFERENT[name]:
        # Only threads need a timeout argument; asyncio has `asyncio.timeout`.
        if callable(asynchronous[member]) and (name, member) != ("Connection", "wait_closed"):
            assert parameters(asynchronous[member]) == parameters(threaded[member]), member


def test_connect_has_the_same_options() -> None:
    assert parameters(leveret.connect) == parameters(sync.connect)
    assert aio.connect is leveret.connect
    assert sorted(aio.__all__) == sorted(sync.__all__)


def test_blocked_limit() -> None:
    assert blocked_limit(None, DEFAULT) is None
    assert blocked_limit(7, DEFAULT) == 7
    assert blocked_limit(7, None) == 7
    assert blocked_limit(None, 5) == 5
    assert blocked_limit(7, 5) == 5
    assert blocked_limit(3, 5) == 3


def test_docstrings_mention_only_their_own_api() -> None:
    for name in DIFFERENT:
        for member, value in public(getattr(sync, name)).items():
            assert not re.search(r"\bawait|async ", value.__doc__ or ""), f"{name}.{member}"
