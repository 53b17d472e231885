"""Definitions of shovels: RabbitMQ's keys, and the errors for invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.shovel.definition import read_definition
from leveret.shovel.uris import is_local, without_credentials

BASIC = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://far", "dest-queue": "b"}


def test_defaults_are_those_of_rabbitmq() -> None:
    found = read_definition("s", BASIC)
    assert (found.prefetch, found.ack_mode, found.delete_after, found.reconnect_delay) == (1000, "on-confirm", "never", 5)


def test_older_names_are_accepted() -> None:
    found = read_definition(
        "s", {**BASIC, "prefetch-count": 7, "delete-after": "queue-length", "add-forward-headers": True}
    )
    assert (found.prefetch, found.delete_after, found.forward_headers) == (7, "queue-length", True)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("src-uri", 5, "expected a URI"),
        ("src-uri", [], "expected a URI"),
        ("src-uri", ["amqp://"] * 65, "a list of 1 to 64"),
        ("dest-uri", "http://far", "expected amqp://"),
        ("src-protocol", "mqtt", "amqp091, amqp10"),
        ("src-prefetch-count", 0, "from 1 to 65535"),
        ("src-delete-after", -1, "a number of messages"),
        ("src-exchange", "x", "'src-queue' and 'src-exchange' are both given"),
        ("dest-exchange", "x", "'dest-queue' and 'dest-exchange' are both given"),
        ("ack-mode", "sometimes", "on-confirm, on-publish, no-ack"),
        *(
            ("reconnect-delay", value, "expected seconds from 1 to 86400, or 0 for no restart")
            for value in (True, "1", 1e-6, 0.999, -1, 86401, float("nan"))
        ),
        ("dest-add-forward-headers", "yes", "true or false"),
        ("dest-publish-properties", {"colour": 1}, "delivery_mode"),
        ("dest-publish-properties", {"priority": "high"}, "from 0 to 255"),
        ("dest-application-properties", {"a": 1}, "unknown with src-protocol"),
        ("src-consumer-args", 1, "an object"),
        ("src-address", "a", "unknown with src-protocol 'amqp091'"),
        ("colour", 1, "'colour' is unknown"),
    ],
)
def test_an_error_names_the_key(key: str, value: Any, expected: str) -> None:
    with pytest.raises(PreconditionFailed) as raised:
        read_definition("s", {**BASIC, key: value})
    assert key in str(raised.value)
    assert expected in str(raised.value)


@pytest.mark.parametrize(("stored", "delay"), [(0, 0.0), (1e-6, 1.0), (0.5, 1.0), (1, 1.0), (7.5, 7.5)])
def test_a_short_delay_of_an_earlier_version_is_a_second(stored: float, delay: float) -> None:
    assert read_definition("s", {**BASIC, "reconnect-delay": stored}, is_stored=True).reconnect_delay == delay


def test_a_source_is_required() -> None:
    with pytest.raises(PreconditionFailed, match="expected 'src-queue' or 'src-exchange'"):
        read_definition("s", {"src-uri": "amqp://", "dest-uri": "amqp://"})


def test_an_address_is_required_over_amqp10() -> None:
    with pytest.raises(PreconditionFailed, match=r"'dest-address'.*expected an address"):
        read_definition("s", {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-protocol": "amqp10"})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("dest-application-properties", [1], "an object"),
        ("dest-application-properties", {"a": None}, "text, numbers, true and false as values"),
        ("dest-message-annotations", {"x-opt-a": {"b": 1}}, "text, numbers, true and false as values"),
        ("dest-message-annotations", {"x-opt-a": 1 << 70}, "out of the range"),
        ("dest-properties", {"colour": "x"}, "properties among message_id, user_id"),
        ("dest-properties", {"subject": 1}, "expected text, or a number"),
        ("dest-properties", {"creation-time": "now"}, "expected text, or a number"),
        ("dest-properties", {"group-sequence": -1}, "properties: "),
        ("dest-publish-properties", {}, "unknown with src-protocol"),
    ],
)
def test_an_error_names_a_key_of_amqp10(key: str, value: Any, expected: str) -> None:
    basic = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-protocol": "amqp10", "dest-address": "b"}
    with pytest.raises(PreconditionFailed) as raised:
        read_definition("s", {**basic, key: value})
    assert key in str(raised.value)
    assert expected in str(raised.value)


def test_an_error_does_not_show_a_password() -> None:
    with pytest.raises(PreconditionFailed) as raised:
        read_definition("s", {**BASIC, "dest-uri": "amqp://user:hunter2@far:port/v"})
    assert "hunter2" not in str(raised.value)


def test_credentials_are_removed() -> None:
    assert without_credentials("amqps://me:pw@far:5671/a%2Fb?password=x") == "amqps://far:5671/a%2Fb"
    assert without_credentials("amqp://me:314/159@far/shop") == "amqp://***"


def test_a_uri_without_a_host_is_local() -> None:
    assert is_local("amqp:///v?heartbeat=5")
    assert is_local("amqp://me:pw@/v")
    assert not is_local("amqp://localhost")
