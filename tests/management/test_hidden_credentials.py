"""Reports of imports and the audit log have no credentials: neither of valid URIs, nor of URIs that the broker refuses."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.management.audit.records import redacted
from leveret.management.redaction import without_secrets

# Each has the pieces of its passwords with "s3cr".
URIS = (
    "amqp://ann:s3cr@rabbit",
    "amqps://ann:s3cr%2Fs3cr%40@rabbit:5671/shop?heartbeat=5",
    "amqp://ann:s3cr/s3cr@rabbit/shop",
    "amqp://ann:s3cr@s3cr@rabbit",
    "amqp://ann:s3cr?s3cr@rabbit",
    "amqp://ann:s3cr#s3cr@rabbit",
    "amqp://ann:s3cr s3cr\ns3cr@rabbit",
    "amqp://ann:s3cr://s3cr@rabbit",
    "amqp://ann:s3cr/?#@:s3cr@rabbit",
    "amqp://ann/bob:s3cr@rabbit",
    "amqp://ann:s3cr@rabbit:port",
    "amqp://ann:s3cr@[rabbit",
    "amqp://ann:s3cr?keypassword=s3cr@rabbit",
    "amqps://rabbit?keypassword=s3cr&verify=false",
    "amqps://rabbit?keypassword=s3cr@s3cr&s3cr",
    "amqps://rabbit?keypass%77ord=s3cr",
    "amqps://rabbit?ssl_options=%7B%27password%27%3A%20%27s3cr%27%7D",
    "amqp://ann:s3cr@rabbit amqp://bob:s3cr/@hare, amqp://eve:s3cr@leveret",
    "password=s3cr amqp://ann:s3cr@rabbit",
    "host=rabbit password=s3cr",
)
# Only the names of their keys say what these are.
INVALID_URIS = ("ann:s3cr@rabbit", "amqp:/ann:s3cr@rabbit", "amqp//ann:s3cr/s3cr@rabbit", "rabbit?keypassword=s3cr")


def is_hidden(value: Any) -> bool:
    values = {"value": value}
    return "s3cr" not in str((without_secrets(values, "***"), redacted(values)))


@pytest.mark.parametrize("uri", URIS)
def test_passwords_of_uris_are_hidden(uri: str) -> None:
    for value in (uri, [[uri]], {"src-uri": uri}, {"src-uri": [uri, uri]}, {"any": [{"text": f"see {uri} and more"}]}):
        assert is_hidden(value)


@pytest.mark.parametrize("uri", INVALID_URIS)
def test_passwords_of_keys_for_uris_are_hidden(uri: str) -> None:
    for value in ({"src-uri": uri}, {"uri": [uri]}, {"value": {"dest-uri": [[uri]]}}):
        assert is_hidden(value)


def test_reports_hide_values_that_are_nested_too_deeply() -> None:
    value: Any = "amqp://ann:s3cr@rabbit"
    for level in range(10_000):
        value = {"a": value} if level % 2 else [value]
    assert "s3cr" not in str(without_secrets({"value": value}, "***"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("amqp://ann:secret@rabbit:5672/shop?heartbeat=5", "amqp://***@rabbit:5672/shop?heartbeat=5"),
        ("amqp://ann@rabbit", "amqp://***@rabbit"),
        ("amqp://rabbit/shop?heartbeat=5", "amqp://rabbit/shop?heartbeat=5"),
        ("amqp://rabbit/shop@home", "amqp://rabbit/shop@home"),
        ("^user:.*@example$", "^user:.*@example$"),
        ("password", "password"),
        ([{"src-queue": "orders:eu@1", "n": 5, "on": True, "none": None}], ...),
    ],
)
def test_other_values_are_shown(value: Any, shown: Any) -> None:
    assert without_secrets({"value": value}, "***") == {"value": value if shown is ... else shown}
