"""`properties_key` of bindings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.management.http.binding_keys import arguments_hash, encoded_hash, matches, properties_key
from tests.management.http.client import HttpBroker
from tests.management.http.typed_arguments import ENCODED, bind_typed
from tests.support.broker import LeveretProcess, basic_config
from tests.support.peers.amqp091 import Peer


@pytest.mark.parametrize(
    ("routing_key", "expected"),
    [("", "~"), ("routing", "routing"), ("a b", "a+b"), ("a.b-c_d", "a.b-c_d"), ("~", "%7E"), ("#/*", "%23%2F%2A")],
)
def test_without_arguments(routing_key: str, expected: str) -> None:
    key = properties_key(routing_key, {})
    assert key == expected
    assert matches(routing_key, key) or not routing_key
    assert not matches(routing_key + "x", key)


# The values are those of RabbitMQ 3.10, except for null, which it refuses: this one is of Erlang's phash2.
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-match": "all"}, "3ujGfg"),
        ({"x-match": "all", "n": 1}, "D79veA"),
        ({"n": -7, "x": ""}, "fIAu4A"),
        ({"n": 1 << 40, "z": -(1 << 62)}, "VJxYcA"),
        ({"f": 2.25, "t": True, "v": None}, "tDvRxQ"),
        ({"a": [1, "a longer text than twelve bytes, which takes three blocks"]}, "OY3nSg"),
        ({"a": [], "b": {"c": "ü"}}, "NqS8QA"),
        ({"t": {"z": 1, "b": 2, "a": [{"y": 1, "x": 2}]}}, "4Bm2hQ"),
        ({"n": 0}, "Lrk9ww"),
        ({"n": 3_000_000_000}, "f_7kbg"),
        ({"n": 1 << 62}, "9XBilQ"),
        ({"n": -(1 << 40)}, "HW3FZA"),
        ({"x": False}, "bR6z2w"),
        ({"f": 0.0}, "wyka5A"),
        ({"f": 1e30}, "cviIFA"),
    ],
)
def test_the_hash_of_erlang_terms(arguments: dict[str, Any], expected: str) -> None:
    assert arguments_hash(arguments) == expected
    assert properties_key("", arguments) == f"~{expected}"
    assert properties_key("key", arguments) == f"key~{expected}"


@pytest.mark.parametrize(
    "value", [0, 255, -1, 256, 1 << 31, -(1 << 40), 1 << 70, 1.5, True, None, "ü", [], [1, "a"], {}, {"b": 1, "a": []}]
)
def test_arguments_of_every_type(value: Any) -> None:
    key = properties_key("k", {"x": value})
    assert key == properties_key("k", {"x": value})
    assert key.startswith("k~")
    assert key != properties_key("k", {"x": "other"})


@pytest.mark.parametrize(("expected", "fields"), ENCODED.items())
def test_the_hash_of_arguments_with_the_types_of_amqp(expected: str, fields: bytes) -> None:
    assert encoded_hash(fields) == expected
    assert properties_key("key", {"n": 1}, fields) == f"key~{expected}"


def test_types_of_arguments_survive_a_restart(tmp_path: Path) -> None:
    environment = {"LEVERET_MANAGEMENT__ENABLED": "true"}
    config = basic_config() + "[management]\nport = 0\n"
    process = LeveretProcess(tmp_path, config=config, environment=environment)
    with process.start():
        with Peer(process.host, process.port) as peer:
            peer.handshake()
            bind_typed(peer.channel())
        process.kill()
        process.start()
        api = HttpBroker(process)
        found = api.get("/bindings/%2F/e/amq.headers/q/typed")
        assert {row["properties_key"] for row in found} == {f"{hashed}~{hashed}" for hashed in ENCODED}
        assert api("POST", "/bindings/%2F/e/amq.headers/q/typed", {"routing_key": "x", "arguments": {"n": 1}}).status == 201
        listed = next(row for row in api.get("/bindings/%2F/e/amq.headers/q/typed") if row["routing_key"] == "x")
        assert listed["properties_key"] == properties_key("x", {"n": 1})
        process.check_log()


def test_the_order_of_arguments_is_ignored() -> None:
    assert properties_key("k", {"a": 1, "b": 2}) == properties_key("k", {"b": 2, "a": 1})
