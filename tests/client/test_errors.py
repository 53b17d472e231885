"""The exceptions of the client."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from typing import Any

import pytest

from leveret.client import errors
from leveret.client.errors import Error, closed_error, method_name
from leveret.client.properties import Properties


def tree(kind: type[Error] = Error) -> Iterator[type[Error]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below)


KINDS = list(tree())
REPLY: dict[str, Any] = {"reply_code": 404, "reply_text": "NOT_FOUND", "class_id": 50, "method_id": 10}
OWN: dict[type[Error], dict[str, Any]] = {
    errors.ConnectionFailed: {"host": "rabbit", "port": 5671},
    errors.PublishFailed: {"messages": [("x", "key", Properties(priority=1), b"body"), ("", "q", None, b"")]},
    errors.ConsumerCancelled: {"consumer_tag": "tag"},
}


def attributes(kind: type[Error]) -> dict[str, Any]:
    own = [values for base, values in OWN.items() if issubclass(kind, base)]
    return REPLY | (own[0] if own else {})


def test_exception_tree() -> None:
    public = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert set(public) == set(KINDS)


@pytest.mark.parametrize("again", [copy, deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("kind", KINDS)
def test_every_exception_can_be_pickled_and_copied(kind: type[Error], again: Callable[[Error], Error]) -> None:
    for given in (attributes(kind), {}):
        error = kind("what happened", **given)
        other = again(error)
        assert type(other) is kind
        assert other is not error
        assert str(other) == "what happened"
        assert vars(other) == vars(error)
        for name, value in given.items():
            assert getattr(other, name) == value
        assert other.method == ("queue.declare" if given else "")


def test_builtin_base_classes() -> None:
    assert issubclass(errors.Timeout, TimeoutError)
    assert issubclass(errors.InvalidMessage, ValueError)
    assert issubclass(errors.InvalidUrl, ValueError)
    assert issubclass(errors.ConnectionLost, errors.ConnectionClosed)
    assert not issubclass(errors.ConnectionClosed, errors.ConnectionFailed)


def test_failed_messages_are_named_tuples() -> None:
    error = errors.Returned("back", messages=[("x", "key", None, b"one"), ("x", "key", None, b"two")])
    assert [message.body for message in error.messages] == [b"one", b"two"]
    assert error.message is not None
    assert error.message.routing_key == "key"
    assert errors.Returned().message is None


def test_method_names() -> None:
    assert method_name(60, 120) == "basic.nack"
    assert method_name(0, 0) == method_name(60, 65535) == method_name(65535, 65535) == ""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (403, errors.AccessRefused),
        (404, errors.NotFound),
        (405, errors.ResourceLocked),
        (406, errors.PreconditionFailed),
        (311, errors.ChannelClosed),
        (504, errors.ChannelClosed),
        (65535, errors.ChannelClosed),
    ],
)
def test_reply_code_selects_the_class(code: int, kind: type[Error]) -> None:
    error = closed_error(code, "WHY", 50, 20, channel=True)
    assert type(error) is kind
    assert (error.reply_code, error.reply_text, error.class_id, error.method_id) == (code, "WHY", 50, 20)
    assert error.method == "queue.bind"
    connection = closed_error(code, "WHY", 50, 20, channel=False)
    assert type(connection) is errors.ConnectionClosed
    assert (connection.reply_code, connection.method) == (code, "queue.bind")


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            (404, "NOT_FOUND - no queue 'q'", 60, 20, True),
            "the server closed the channel: 404 NOT_FOUND - no queue 'q' (basic.consume); "
            "expected a queue that exists: declare it first",
        ),
        (
            (406, "inequivalent arg 'durable'", 50, 10, True),
            "the server closed the channel: 406 inequivalent arg 'durable' (queue.declare); "
            "expected the arguments of the first declaration, or passive=True",
        ),
        ((405, "", 50, 10, True), "the server closed the channel: 405 resource-locked (queue.declare)"),
        (
            (403, "exchange name 'amq.x' contains reserved prefix 'amq.*'", 40, 10, True),
            "the server closed the channel: 403 exchange name 'amq.x' contains reserved prefix 'amq.*' (exchange.declare)",
        ),
        (
            (403, "write access to 'x' in vhost '/' refused for user 'ann'", 60, 40, True),
            "the server closed the channel: 403 write access to 'x' in vhost '/' refused for user 'ann' (basic.publish); "
            "expected a user with that permission (option user)",
        ),
        ((320, "CONNECTION_FORCED", 0, 0, False), "the server closed the connection: 320 CONNECTION_FORCED"),
        (
            (501, "too large", 0, 0, False),
            "the server closed the connection: 501 too large; expected frames of at most frame_max bytes"
            " (option frame_max)",
        ),
        ((999, "", 9, 9, False), "the server closed the connection: 999"),
    ],
)
def test_error_messages(reply: tuple[int, str, int, int, bool], text: str) -> None:
    code, reason, class_id, method_id, channel = reply
    assert str(closed_error(code, reason, class_id, method_id, channel=channel)) == text
