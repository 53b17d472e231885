"""The async and sync API have the same names, parameters and defaults."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import leveret
from leveret import aio, sync
from leveret.client.timeouts import DEFAULT, blocked_limit

CLASSES = (
    "Channel",
    "Connection",
    "Consumer",
    "Exchange",
    "FileConsumer",
    "Publisher",
    "Queue",
    "Receiver",
    "Sender",
    "Transaction",
)


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(call: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(call).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


@pytest.mark.parametrize("name", CLASSES)
def test_front_ends_have_the_same_signatures(name: str) -> None:
    asynchronous, threaded = public(getattr(aio, name)), public(getattr(sync, name))
    assert asynchronous.keys() == threaded.keys()
    for member, value in asynchronous.items():
        if callable(value):
            assert parameters(value) == parameters(threaded[member]), member


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
    for name in CLASSES:
        for member, value in public(getattr(sync, name)).items():
            assert not re.search(r"\bawait|async ", value.__doc__ or ""), f"{name}.{member}"
