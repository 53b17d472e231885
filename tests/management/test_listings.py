"""Operators can list everything that clients send: every value of every dialect and of AMQP 1.0, wherever it is stored."""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from leveret.broker import metadata
from leveret.broker.values import freeze
from leveret.cli.logs import JsonFormatter
from leveret.management.feed import Change
from leveret.management.json_values import encode_json, plain
from leveret.protocols.amqp10.management.messages import shown
from leveret.protocols.convert import values as conversion
from leveret.wire.amqp0 import dialects
from leveret.wire.amqp0.dialects import DIALECTS, QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.fieldtable import decode_table
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.values import Symbol
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers import amqp10 as peer1
from tests.support.peers.rude import RudePeer
from tests.wire.amqp10 import strategies as amqp10


def _table(fields: bytes) -> bytes:
    return struct.pack(">I", len(fields)) + fields


def _short(octets: bytes) -> bytes:
    return bytes((len(octets),)) + octets


# Of each type, bytes of special values: the largest and smallest, NaN, invalid UTF-8.
_FIXED = {
    dialects.BOOLEAN: 1,
    dialects.INT8: 1,
    dialects.UINT8: 1,
    dialects.INT16: 2,
    dialects.UINT16: 2,
    dialects.INT32: 4,
    dialects.UINT32: 4,
    dialects.INT64: 8,
    dialects.UINT64: 8,
    dialects.FLOAT: 4,
    dialects.DOUBLE: 8,
    dialects.DECIMAL: 5,
    dialects.UNSIGNED_DECIMAL: 5,
    dialects.TIMESTAMP: 8,
    dialects.VOID: 0,
    dialects.CHARACTER: 1,
}
_NAN = struct.pack(">d", math.nan)
_odd = st.sampled_from(
    [b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7, b"\0" * 8, _NAN, b"\x7f\xc0\0\0" * 2, b"\xff\x80\0\0" * 2]
) | st.binary(min_size=8, max_size=8)
_octets = st.binary(max_size=12) | st.sampled_from([b"\xff\xfe", b"\\xff", "ü\u202e\x1b[2J\n".encode(), b"\xed\xa0\x80"])
_names = _octets.map(_short)


def wire_values(dialect: Dialect) -> st.SearchStrategy[bytes]:
    """Return the encoded values with their tags."""
    leaves: list[st.SearchStrategy[bytes]] = []
    for tag, type in enumerate(dialect.types):
        head = st.just(bytes((tag,)))
        if type in _FIXED:
            leaves.append(st.tuples(head, _odd.map(itemgetter(slice(_FIXED[type])))).map(b"".join))
        elif type == dialects.SHORT_STRING:
            leaves.append(st.tuples(head, _names).map(b"".join))
        elif type in (dialects.LONG_STRING, dialects.BYTE_ARRAY):
            leaves.append(st.tuples(head, _octets.map(_table)).map(b"".join))
    return st.recursive(st.one_of(leaves), _nested, max_leaves=6)


def _nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    arrays = st.tuples(st.just(b"A"), st.lists(inner, max_size=3).map(b"".join).map(_table))
    tables = st.tuples(st.just(b"F"), wire_fields(inner, 3).map(_table))
    return (arrays | tables).map(b"".join)


def wire_fields(values: st.SearchStrategy[bytes], size: int) -> st.SearchStrategy[bytes]:
    """The fields of a table, without its length."""
    return st.lists(st.tuples(_names, values).map(b"".join), max_size=size).map(b"".join)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_tables_of_every_dialect(dialect: Dialect) -> None:
    @settings(deadline=None)
    @given(wire_fields(wire_values(dialect), 5))
    def check(fields: bytes) -> None:
        table = decode_table(fields, 0, len(fields), dialect)
        listed = json.loads(encode_json(plain(table)), parse_constant=pytest.fail)
        assert len(listed) == len(table)
        # a client that sends them encoded gets a reply, too, and so does every client after a restart
        json.loads(encode_json({"item": table}))
        assert json.loads(encode_json(plain(metadata.unpack(metadata.pack(table))))).keys() == listed.keys()
        assert freeze(table) == freeze(decode_table(fields, 0, len(fields), dialect))
        encode_value(shown(table))

    check()


@settings(deadline=None)
@given(st.dictionaries(amqp10.ascii_text.map(Symbol), amqp10.values, max_size=4) | amqp10.values)
def test_values_of_1_0(value: Any) -> None:
    listed = json.loads(encode_json({"raw": value, "plain": plain(conversion.plain(value))}), parse_constant=pytest.fail)
    assert listed.keys() == {"raw", "plain"}


def test_how_values_are_shown() -> None:
    table = {"\udcff": "a\udcfe", "\\xff": 1, "n": [math.nan, -math.inf, Decimal("1.50"), 1 << 64, b"\xff", None, True]}
    assert plain(table) == {
        "\\xff": "a\\xfe",
        "\\xff#2": 1,
        "n": ["nan", "-inf", "1.50", str(1 << 64), "\\xff", None, True],
    }
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    assert shown({"deep": deep, "x": 1})["deep"] == "(values are nested more than 32 deep)"


def test_keys_that_json_does_not_have_are_shown_as_text() -> None:
    assert json.loads(encode_json({"raw": {None: 1, True: 2, 127: 3}})) == {"raw": {"None": 1, "True": 2, "127": 3}}


def test_names_in_the_log_as_json() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "queue '%s'", ("a\udcff\ud800",), None)
    text = json.loads(JsonFormatter().format(record))["message"]
    text.encode("utf-8")
    assert text.startswith("queue 'a\\")


# A broker with such values everywhere

few = settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LISTS = (
    "connections",
    "channels",
    "consumers",
    "queues",
    "exchanges",
    "bindings",
    "links",
    "streams",
    "leases",
    "status",
    "permissions",
    "users",
    "vhosts",
)


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("the listings are Leveret's")
    with LeveretProcess(tmp_path_factory.mktemp("listings")).start() as broker:
        yield broker


def _method(class_id: int, method_id: int, payload: bytes, channel: int) -> bytes:
    body = struct.pack(">HH", class_id, method_id) + payload
    return struct.pack(">BHI", 1, channel, len(body)) + body + b"\xce"


def log_in(broker: LeveretProcess, header: bytes, properties: bytes) -> RudePeer:
    peer = RudePeer(broker)
    peer.send_bytes(header)
    assert peer.next_frame() is not None
    secret = b"\0guest\0guest"
    peer.send_bytes(_method(10, 11, _table(properties) + _short(b"PLAIN") + _table(secret) + _short(b"en_US"), 0))
    assert peer.next_frame() is not None  # tune
    peer.send_bytes(_method(10, 31, struct.pack(">HIH", 0, 131072, 0), 0))
    peer.send_bytes(_method(10, 40, _short(b"/") + _short(b"") + b"\0", 0))
    assert peer.next_frame() is not None  # open-ok
    peer.send_bytes(_method(20, 10, _short(b""), 1))
    assert peer.next_frame() is not None
    return peer


def define(peer: RudePeer, name: bytes, odd: bytes, fields: bytes) -> None:
    """Create an exchange, a queue, two bindings and a consumer with these arguments; the second binding has none."""
    table = _table(fields)
    ticket = b"\0\0"
    consumed = _short(name) + _short(b"tag" + odd) + b"\0"
    for class_id, method_id, payload in (
        (40, 10, ticket + _short(name) + _short(b"topic") + b"\x02" + table),
        (50, 10, ticket + _short(name) + b"\x02" + table),
        (50, 20, ticket + _short(name) + _short(name) + _short(b"key" + odd) + b"\0" + table),
        (50, 20, ticket + _short(name) + _short(name) + _short(b"bare" + odd) + b"\0" + _table(b"")),
        (60, 20, ticket + consumed + table),
    ):
        peer.send_bytes(_method(class_id, method_id, payload, 1))
        frame = peer.next_frame()
        assert frame is not None and struct.unpack(">HH", frame[2][:4]) == (class_id, method_id + 1), frame


@pytest.mark.parametrize(
    ("header", "dialect"), [(b"AMQP\0\0\x09\x01", RABBITMQ), (b"AMQP\x01\x01\0\x09", QPID)], ids=["0-9-1", "0-9"]
)
def test_every_list_shows_every_value(own_broker: LeveretProcess, header: bytes, dialect: Dialect) -> None:
    broker = own_broker
    commands = Commands(broker.data_dir)
    made: list[str] = []

    @few
    @given(st.lists(wire_values(dialect), min_size=20, max_size=40), _octets)
    def check(values: list[bytes], odd: bytes) -> None:
        fields = b"".join(_short(b"%d" % number + odd) + value for number, value in enumerate(values))
        name = f"{dialect.name}-{len(made)}"
        with log_in(broker, header, fields if len(fields) < 7000 else b"") as peer:
            define(peer, name.encode(), odd, fields)
            made.append(name)
            for things in LISTS:
                commands.json(things)
                commands.ok(things)
            (consumer,) = [item for item in commands.json("consumers") if item["queue"] == name]
            assert consumer["tag"] == plain((b"tag" + odd).decode("utf-8", "surrogateescape"))
            assert len(consumer["arguments"]) == len(values)

    check()
    broker.stop()
    broker.start()
    for things in LISTS:
        commands.ok(things)
    names = set(made)
    assert names <= {item["name"] for item in commands.json("queues")}
    assert names <= {item["name"] for item in commands.json("exchanges")}
    bindings = [item for item in commands.json("bindings") if item["destination"] in names]
    assert len(bindings) == 2 * len(names)
    # Commands accept the displayed names.
    for item in bindings:
        if not item["arguments"]:
            commands.ok("bindings", "delete", item["source"], item["destination"], "--routing-key", item["routing_key"])
    broker.check_log()


def test_every_list_shows_every_value_of_1_0(own_broker: LeveretProcess) -> None:
    commands = Commands(own_broker.data_dir)

    @few
    @given(st.lists(amqp10.values, min_size=5, max_size=15), amqp10.text)
    def check(values: list[Any], odd: str) -> None:
        table = {Symbol(f"p{number}"): value for number, value in enumerate(values) if len(encode_value(value)) < 400}
        name = odd[:60] + "q"
        peer = peer1.Peer(own_broker.host, own_broker.port)
        try:
            peer.login()
            peer.open(container_id=name, properties=table)
            peer.begin().sender("/exchanges/amq.topic", name=odd + "l", properties=table)
            for things in LISTS:
                commands.json(things)
                commands.ok(things)
            (connection,) = [item for item in commands.json("connections") if item["protocol"] == "AMQP 1.0"]
            assert len(connection["client_properties"]) == len(table)
            assert [item["name"] for item in commands.json("links")] == [odd + "l"]
        finally:
            peer.drop()
            while any(item["protocol"] == "AMQP 1.0" for item in commands.json("connections")):
                pass

    check()
    own_broker.check_log()


def test_a_terminal_that_lacks_the_characters(own_broker: LeveretProcess) -> None:
    fields = _short(b"\xff") + b"S" + _table("日本\u202e".encode())
    with log_in(own_broker, b"AMQP\0\0\x09\x01", fields) as peer:
        define(peer, "日本".encode(), b"", fields)
        for option in ([], ["--json"]):
            shown = subprocess.run(
                [sys.executable, "-m", "leveret", "queues", "--data-dir", str(own_broker.data_dir), *option],
                env={**os.environ, "PYTHONPATH": str(Path("src").absolute()), "PYTHONIOENCODING": "latin-1"},
                capture_output=True,
                check=True,
                timeout=120,
            )
            assert b"\\u65e5\\u672c" in shown.stdout


def test_text_that_is_not_utf8_keeps_the_shape_of_an_array() -> None:
    change = Change(kind="queue", key=7, value={"name": "q\udcff"})
    assert json.loads(encode_json(change)) == ["queue", 7, {"name": "q\\xff"}]
    assert json.loads(encode_json([change, Change(kind="end")])) == [["queue", 7, {"name": "q\\xff"}], ["end", None, None]]
