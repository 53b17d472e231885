"""JSON records, classes of times and shares of a load: the parts that need no broker."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leveret.broker.exchanges.routing_types import ROUTING_TYPES
from leveret.cli.load.histogram import Histogram
from leveret.cli.load.plan import EXCHANGES, Plan, shares
from leveret.cli.load.report import Report, load_report
from leveret.cli.load.results import Results, duration
from leveret.cli.messages.record import dump, parse
from leveret.client.message import Message
from leveret.client.properties import Properties, encode_properties
from leveret.wire.amqp0.commands import Deliver
from tests.support.broker import ROOT


class Channel:
    generation = 1


def message(body: bytes, properties: Properties, routing_key: bytes = b"key") -> Message:
    """Return a message as if it had been received."""
    header = b"\0\x3c" + bytes(2) + len(body).to_bytes(8, "big") + encode_properties(properties)
    address = b"\x02ex" + bytes([len(routing_key)]) + routing_key
    return Message(Channel(), Deliver(1, b"", 1, False, address, header, len(body), body))  # type: ignore[arg-type]


HEADERS: dict[str, Any] = {
    "bytes": b"\xff\x00",
    "decimal": Decimal("1.25"),
    "time": datetime(2026, 1, 2, tzinfo=UTC),
    "infinity": math.inf,
    "text": "ü\u2028",
    "table": {"list": [1, -1.5, None, {"inner": b"x"}]},
    "no": False,
    "big": 2**63 - 1,
}


def test_a_record_equals_the_received_message() -> None:
    properties = Properties(
        headers=HEADERS,
        delivery_mode=2,
        timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        expiration="soon",
        type="t",
        cluster_id="c",
    )
    for body in (b"", b"text \xc3\xbc\n", b"\xff\x00", b"\xed\xa0\x80"):
        line = dump(message(body, properties))
        assert line.count(b"\n") == 1
        draft = parse(line)
        assert (draft.body, draft.exchange, draft.routing_key) == (body, "ex", "key")
        assert draft.properties == properties


def test_names_that_are_no_unicode_survive() -> None:
    line = dump(message(b"", Properties(), b"\xff\xfe"))
    line.decode("ascii")
    assert parse(line).routing_key == b"\xff\xfe".decode("utf-8", "surrogateescape")


def test_properties_that_cannot_be_read_are_no_end() -> None:
    broken = message(b"body", Properties(type="long enough"))
    broken._command.header = broken._command.header[:-3]
    assert b'"malformed": "' in dump(broken)


def test_a_table_that_only_looks_tagged() -> None:
    draft = parse(b'{"headers": {"a": {"!bytes": 1}, "b": {"!bytes": "eA==", "c": 1}, "d": {"!float": "nan"}}}')
    assert draft.properties is not None and draft.properties.headers is not None
    assert math.isnan(draft.properties.headers.pop("d"))
    assert draft.properties.headers == {"a": {"!bytes": 1}, "b": {"!bytes": "eA==", "c": 1}}


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"NaN",
        b'"text"',
        b"{} {}",
        b'{"exchange": 1}',
        b'{"headers": []}',
        b'{"properties": 1}',
        b'{"properties": {"headers": 1}}',
        b'{"encoding": "hex"}',
        b'{"properties": {"timestamp": "today"}}',
        b'{"headers": {"a": {"!decimal": "x"}}}',
        b'{"headers": {"a": [{"!float": "x"}]}}',
        b'{"body": Infinity}',
    ],
)
def test_invalid_records(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(line)


# Times


def test_quantiles_are_right_within_three_percent() -> None:
    source = random.Random(7)
    times = sorted(int(10 ** source.uniform(0, 11)) for _ in range(20_000))
    halves = [Histogram(), Histogram()]
    for number, time in enumerate(times):
        halves[number % 2].add(time)
    both = Histogram()
    for half in halves:
        both.load(half.dump(), half.longest)
    assert (both.count, both.longest) == (len(times), times[-1])
    for share in (0.001, 0.1, 0.5, 0.9, 0.99, 0.9999):
        assert both.quantile(share) == pytest.approx(times[round(share * len(times)) - 1], rel=0.03, abs=1)


def test_times_at_the_ends() -> None:
    empty = Histogram()
    assert (empty.count, empty.quantile(0.5), empty.dump()) == (0, 0, {})
    for time in (-5, 0, 1 << 80):
        times = Histogram()
        times.add(time)
        assert times.count == 1
        assert times.quantile(0.5) <= times.longest < 1 << 63


def test_durations_for_people() -> None:
    assert [duration(time) for time in (900, 1500, 999_999, 1_500_000, 2_000_000_000)] == [
        "1 µs",
        "2 µs",
        "1000 µs",
        "1.5 ms",
        "2.00 s",
    ]


def test_reports_add_up_and_travel() -> None:
    first, second = Report(published=3, confirmed=2, ended=1, published_at=5), Report(published=1, consumed=4, cpu=0.5)
    first.confirming.add(1000)
    second.delivering.add(2000)
    second.add(load_report(first.dump()))
    assert (second.published, second.confirmed, second.consumed, second.ended, second.published_at) == (4, 2, 4, 1, 5)
    assert (second.confirming.count, second.delivering.count, second.cpu) == (1, 1, 0.5)


# Load


def plan(**values: Any) -> Plan:
    return Plan(urls=("amqp://",), name="b", **values)


def test_there_is_a_load_for_every_exchange_type() -> None:
    assert ("default", *ROUTING_TYPES) == EXCHANGES
    with pytest.raises(ValueError, match="exchange type 'x-new' is unknown; expected one of default, direct, fanout"):
        plan(exchange="x-new")


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(("publishers", "queues", "consumers"), [(1, 1, 1), (2, 5, 3), (5, 2, 3), (3, 3, 0)])
def test_every_queue_is_written_and_read(exchange: str, publishers: int, queues: int, consumers: int) -> None:
    load = plan(exchange=exchange, publishers=publishers, queues=queues, consumers=consumers)
    names = {load.queue_name(queue) for queue in range(queues)}
    if exchange in ("default", "direct"):
        assert {key for number in range(publishers) for key, _ in load.routes(number)} == names
    assert all(load.routes(number) for number in range(publishers))
    if consumers:
        assert {name for number in range(consumers) for name in load.consumed_by(number)} == names
        assert all(load.consumed_by(number) for number in range(consumers))


@pytest.mark.parametrize("processes", [1, 2, 7])
def test_the_load_is_divided_without_a_remainder(processes: int) -> None:
    load = plan(publishers=3, consumers=4, messages=101)
    assert sum(load.quota(number) or 0 for number in range(3)) == 101
    parts = shares(load, processes)
    assert len(parts) <= processes
    assert sorted(number for part in parts for number in part.publishers) == [0, 1, 2]
    assert sorted(number for part in parts for number in part.consumers) == [0, 1, 2, 3]


def test_completions() -> None:
    assert Results(plan(), "", 1).complete
    assert not Results(plan(), "", 1, Report(refused=1)).complete
    assert not Results(plan(messages=2), "", 1, Report(published=2, confirmed=2, consumed=1)).complete
    fanout = plan(messages=2, exchange="fanout", queues=2)
    assert not Results(fanout, "", 1, Report(published=2, confirmed=2, consumed=3)).complete
    assert Results(fanout, "", 1, Report(published=2, confirmed=2, consumed=4)).complete
    assert Results(plan(messages=2, consumers=0), "", 1, Report(published=2, confirmed=2)).complete


# Imports


def test_a_broker_and_its_commands_do_without_the_client_and_help_without_both() -> None:
    program = """
import sys, importlib
from leveret.cli.app import COMMANDS, leveret
import click
def loaded(prefix): return sorted(name for name in sys.modules if name.startswith(prefix))
leveret.main(["--help"], standalone_mode=False)
assert not loaded("leveret.client") and not loaded("asyncio") and not loaded("rich"), loaded("")
for name in ("publish", "consume", "get", "purge", "bench"):
    leveret.main([name, "--help"], standalone_mode=False)
assert not loaded("leveret.client.") and not loaded("asyncio") and not loaded("rich") and not loaded("leveret.wire")
for name, (path, _) in COMMANDS.items():
    if name not in ("publish", "consume", "get", "purge", "bench"):
        importlib.import_module(path.partition(":")[0])
import leveret.cli.serving
assert not loaded("leveret.client.")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
