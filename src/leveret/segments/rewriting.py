"""New files for old ones: neighbours made one, and rows erased by rules. Offsets stay what they are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from leveret.segments import schema
from leveret.segments.columns import Rows, make_columns
from leveret.segments.erasure import CompiledRule, Counts
from leveret.segments.errors import SegmentDamaged
from leveret.segments.manifest import Segment
from leveret.segments.masking import applied
from leveret.segments.reader import SegmentReader, Stored, rebuild
from leveret.segments.writer import SegmentWriter
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp1.errors import DecodeError
from leveret.wire.amqp1.errors import EncodeError as EncodeError1

# Rows that are in memory at a time, but for row groups that are being written.
BATCH_ROWS = 4096


def merge(sources: Sequence[SegmentReader], writer: SegmentWriter) -> Segment:
    """One file of neighbours, in the order of their offsets. The sources stay open, and what they are.

    SegmentError where a source cannot be read or the file not written; nothing is left of it then.
    """
    try:
        for source in sources:
            for batch in source.file_batches(BATCH_ROWS):
                writer.append_columns(_columns(batch), batch.num_rows)
        writer.cover(sources[0].first, sources[-1].last)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def rewrite(source: SegmentReader, rules: Sequence[CompiledRule], writer: SegmentWriter | None) -> tuple[Segment | None,
                                                                                                         Counts]:
    """A file in which the rules have been applied, each row by the first rule that it meets; and what was done. None where
    no row was changed, and with no writer: then it is only counted.

    The new file covers the offsets of the source, whichever rows are still there. SegmentError as `merge`.
    """
    counts = Counts()
    try:
        for batch in source.file_batches(BATCH_ROWS):
            changed = _applied(batch, rules, counts, source.url)
            if writer is None:
                continue
            if changed is None:
                writer.append_columns(_columns(batch), batch.num_rows)
            elif changed:
                rows = _rows(changed)
                writer.append_columns(make_columns(rows), len(rows))
        if writer is None or not counts.removed + counts.emptied + counts.masked:
            if writer is not None:
                writer.abort()
            return None, counts
        writer.cover(source.first, source.last)
        return writer.finish(), counts
    except BaseException:
        if writer is not None:
            writer.abort()
        raise


def _applied(batch: pa.RecordBatch, rules: Sequence[CompiledRule], counts: Counts, url: str) -> list[Stored] | None:
    """The rows as the rules leave them, None where no rule says anything of them."""
    counts.rows += batch.num_rows
    by_row: dict[int, CompiledRule] = {}
    for rule in rules:
        for row in rule.rows(batch, counts):
            by_row.setdefault(row, rule)
    if not by_row:
        return None
    encodings = batch.column("content_encoding")
    found: list[Stored] = []
    try:
        for number, stored in enumerate(rebuild(batch)):
            rule_of_row = by_row.get(number)
            kept = stored if rule_of_row is None else applied(
                    rule_of_row, stored, encodings[number].as_py(), counts)
            if kept is not None:
                found.append(kept)
    except (WireError, DecodeError, EncodeError, EncodeError1, ValueError, IndexError) as error:
        raise SegmentDamaged(url, f"a row cannot be rewritten: {error}") from error
    return found


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return {name: batch.column(name) for name in schema.FILE_COLUMNS}


def _rows(messages: list[Stored]) -> Rows:
    return Rows([item.offset for item in messages], [item.time for item in messages], [item.format for item in messages],
                [item.address for item in messages], [item.header for item in messages], [item.body for item in messages],
                [item.overlay or b"" for item in messages])
