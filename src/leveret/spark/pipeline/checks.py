"""Checks of a pipeline.toml that types cannot express: keys that require or exclude each other.

`check_flow` yields (path of the key within the flow, problem). It opens no file and no connection. The other functions are
for the checks of the kinds of flows.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from msgspec import UNSET

from leveret._build import installation
from leveret.spark.pipeline import model
from leveret.spark.pipeline.decoding.registry import FORMAT_NAMES, FORMATS, RAW

# Modules that formats of tables need.
_TABLE_MODULES = {"delta": "deltalake", "iceberg": "pyiceberg"}

Problem = tuple[tuple[str | int, ...], str]


def check_flow(flow: model.FlowSection) -> Iterator[Problem]:
    yield from _check_capture(flow.capture)
    if flow.trigger < 0:
        yield ("trigger",), f"is {flow.trigger:g}; expected 0 or more seconds"
    yield from flow.check()


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


def check_decode(decode: model.Decode) -> Iterator[Problem]:
    if decode.format not in FORMAT_NAMES:
        yield ("decode", "format"), f"is {decode.format!r}; expected one of {', '.join(FORMAT_NAMES)}"
        return
    if decode.format == RAW:
        for name in ("schema", "schema_file", "message"):
            if getattr(decode, name) is not None:
                yield ("decode", name), 'is set, but format is "raw", which has no schema'
        return
    if (decode.schema is None) == (decode.schema_file is None):
        yield ("decode",), f'with format "{decode.format}" needs exactly one of schema and schema_file'
    body_format = FORMATS[decode.format]
    for key, problem in body_format.check(decode):
        yield ("decode", key), problem
    if decode.framing != "datum" and not body_format.framed:
        yield ("decode", "framing"), "is only for Avro"
    if decode.on_error == "quarantine" and decode.quarantine is None:
        yield (
            ("decode", "quarantine"),
            (
                'is not set, but on_error is "quarantine"; set it to a table\'s directory, or '
                'set on_error to "fail" or "drop"'
            ),
        )
    if body_format.module and not _is_installed(body_format.module):
        yield (
            ("decode", "format"),
            f'is "{decode.format}", which needs {body_format.module}: {installation("pipeline")}',
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_outputs(tables: list[model.TableOutput], exchanges: list[model.ExchangeOutput]) -> Iterator[Problem]:
    if not tables and not exchanges:
        yield (), "has no output: add tables, exchanges, or both"
    for number, table in enumerate(tables):
        yield from check_table(table, ("tables", number))


def check_table(table: model.TableOutput, at: tuple[str | int, ...]) -> Iterator[Problem]:
    if table.partition is not UNSET:
        for number, text in enumerate(table.partition):
            if not model.PARTITION.match(text):
                yield (
                    (*at, "partition", number),
                    (f"is {text!r}; expected day(COLUMN), hour(COLUMN), month(COLUMN) or a column"),
                )
    if table.format != "iceberg" and (table.table is not None or table.catalog):
        yield at, 'has table or catalog, which are only for format "iceberg"'
    module = _TABLE_MODULES.get(table.format)
    if module is not None and not _is_installed(module):
        yield (*at, "format"), f'is "{table.format}", which needs {module}: {installation("pipeline")}'
