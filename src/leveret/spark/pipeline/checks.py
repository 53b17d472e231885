"""Checks of a pipeline.toml that types cannot express: keys that require or exclude each other.

`check_flow` yields (path of the key within the flow, problem). It opens no file and no connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec

from msgspec import UNSET

from leveret.security.patterns import Pattern
from leveret.spark.pipeline import model

Problem = tuple[tuple[str | int, ...], str]


def check_flow(flow: model.AnyFlow) -> Iterator[Problem]:
    yield from _check_capture(flow.capture)
    if flow.trigger < 0:
        yield ("trigger",), f"is {flow.trigger:g}; expected 0 or more seconds"
    if isinstance(flow, model.PlainFlow):
        yield from _check_plain(flow)
    elif isinstance(flow, model.ArchiveFlow):
        yield from _check_decode(flow.decode)
        yield from _check_table(flow.table, ("table",))
    elif isinstance(flow, model.TrafficFlow):
        yield from _check_traffic(flow)
    elif isinstance(flow, model.EnrichFlow):
        yield from _check_enrich(flow)
    else:
        yield from _check_scrub(flow)


def _check_plain(flow: model.PlainFlow) -> Iterator[Problem]:
    yield from _check_decode(flow.decode)
    yield from _check_outputs(flow.tables, flow.exchanges)
    transform = flow.transform
    if transform is None:
        return
    if (transform.function is None) == (transform.sql is None):
        yield ("transform",), "needs exactly one of function and sql"
    if transform.function is not None and not re.fullmatch(r"[\w.]+:\w+", transform.function):
        yield ("transform", "function"), f"is {transform.function!r}; expected module:function"
    if transform.tables and transform.sql is None:
        yield ("transform", "tables"), "are only for sql; a function reads its tables itself"
    if transform.output == "update" and transform.scope == "batch":
        yield ("transform", "output"), 'is only for scope = "stream"'
    if (
        transform.scope == "stream"
        and flow.capture.queue is not None
        and flow.decode.on_error == "quarantine"
        and flow.decode.format != "raw"
    ):
        yield (
            ("transform", "scope"),
            (
                'is "stream": messages that cannot be decoded are then read a second time, which a queue does not support; '
                'capture a stream or an exchange, or set decode.on_error to "fail" or "drop"'
            ),
        )


def _check_traffic(flow: model.TrafficFlow) -> Iterator[Problem]:
    if flow.table is None and flow.exchange is None:
        yield (), "needs a table, an exchange, or both"
    if flow.report is not None and flow.table is None:
        yield ("report",), "is made from the table: set table as well"
    if flow.window <= 0:
        yield ("window",), f"is {flow.window:g}; expected more than 0 seconds"
    if flow.late < 0:
        yield ("late",), f"is {flow.late:g}; expected 0 or more seconds"
    if flow.table is not None:
        yield from _check_table(flow.table, ("table",))
    if flow.capture.queue is not None:
        yield ("capture", "queue"), "does not support windows that last across a restart; bind a stream to the events"


def _check_enrich(flow: model.EnrichFlow) -> Iterator[Problem]:
    yield from _check_decode(flow.decode)
    if flow.decode.format == "raw":
        yield ("decode", "format"), 'is "raw": a raw body has no field to join on'
    if not flow.on:
        yield ("on",), 'is empty; expected { FIELD_OF_THE_BODY = "COLUMN_OF_THE_TABLE" }'
    if flow.unmatched == "quarantine" and flow.decode.quarantine is None:
        yield ("unmatched",), 'is "quarantine", but decode.quarantine is not set'


def _check_scrub(flow: model.ScrubFlow) -> Iterator[Problem]:
    yield from _check_outputs(flow.tables, flow.exchanges)
    if not flow.rules:
        yield ("rules",), "is empty: nothing would be masked"
    for number, rule in enumerate(flow.rules):
        at = ("rules", number)
        if sum(one is not None for one in (rule.field, rule.header, rule.property, rule.pattern)) != 1:
            yield at, "needs exactly one of field, header, property and pattern"
        if rule.pattern is not None:
            try:
                Pattern(rule.pattern).replace(lambda found: found, "")
            except ValueError as error:
                yield (*at, "pattern"), str(error)
        if rule.action == "hash" and flow.key_file is None:
            yield (*at, "action"), 'is "hash", which needs key_file: hashes without a key can be reversed by trial'
    of_bodies = any(rule.field is not None or rule.pattern is not None for rule in flow.rules)
    if of_bodies and flow.on_error == "quarantine" and flow.quarantine is None:
        yield ("quarantine",), 'is not set, but on_error is "quarantine"; set it to a directory, or change on_error'


def _check_capture(capture: model.Capture) -> Iterator[Problem]:
    named = [
        name
        for name in ("exchange", "queue", "stream", "super_stream", "stream_pattern")
        if getattr(capture, name) is not None
    ]
    if len(named) != 1:
        found = " and ".join(named) if named else "none"
        yield (
            ("capture",),
            (f"has {found}; expected exactly one of exchange, queue, stream, super_stream and stream_pattern"),
        )
    if capture.exchange is None and (capture.into is not None or capture.keys != ["#"] or capture.arguments):
        yield ("capture",), "has into, keys or arguments, which are only for a captured exchange"
    for name in sorted(
        {"url", "queue", "stream", "superStream", "streamPattern", "consumerName", "lease", "startingOffsets"}
        & capture.options.keys()
    ):
        yield ("capture", "options", name), "has a key of its own in the capture; set that instead"


def _check_decode(decode: model.Decode) -> Iterator[Problem]:
    if decode.format == "raw":
        for name in ("schema", "schema_file", "message"):
            if getattr(decode, name) is not None:
                yield ("decode", name), 'is set, but format is "raw", which has no schema'
        return
    if (decode.schema is None) == (decode.schema_file is None):
        yield ("decode",), f'with format "{decode.format}" needs exactly one of schema and schema_file'
    if decode.format == "protobuf":
        if decode.schema is not None:
            yield ("decode", "schema"), "is only for JSON and Avro; Protobuf needs schema_file, a descriptor set"
        if decode.message is None:
            yield ("decode", "message"), 'is not set; expected the full name of the message type, as in "shop.Order"'
    if decode.framing != "datum" and decode.format != "avro":
        yield ("decode", "framing"), "is only for Avro"
    if decode.on_error == "quarantine" and decode.quarantine is None:
        yield (
            ("decode", "quarantine"),
            (
                'is not set, but on_error is "quarantine"; set it to a table\'s directory, or '
                'set on_error to "fail" or "drop"'
            ),
        )
    module = {"avro": "fastavro", "protobuf": "google.protobuf"}.get(decode.format)
    if module is not None and not _is_installed(module):
        yield ("decode", "format"), f"is \"{decode.format}\", which needs {module}: pip install 'leveret[pipeline]'"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _check_outputs(tables: list[model.TableOutput], exchanges: list[model.ExchangeOutput]) -> Iterator[Problem]:
    if not tables and not exchanges:
        yield (), "has no output: add tables, exchanges, or both"
    for number, table in enumerate(tables):
        yield from _check_table(table, ("tables", number))


def _check_table(table: model.TableOutput, at: tuple[str | int, ...]) -> Iterator[Problem]:
    if table.partition is not UNSET:
        for number, text in enumerate(table.partition):
            if not model.PARTITION.match(text):
                yield (
                    (*at, "partition", number),
                    (f"is {text!r}; expected day(COLUMN), hour(COLUMN), month(COLUMN) or a column"),
                )
    if table.format != "iceberg" and (table.table is not None or table.catalog):
        yield at, 'has table or catalog, which are only for format "iceberg"'
    if table.format == "iceberg" and not _is_installed("pyiceberg"):
        yield (*at, "format"), "is \"iceberg\", which needs pyiceberg: pip install 'leveret[pipeline]'"
