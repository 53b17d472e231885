"""Rewriting of segments: adjacent files are merged, and rows are erased by rules. Offsets never change."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from leveret.segments import schema
from leveret.segments.columns import Rows, make_columns
from leveret.segments.erasure import CompiledRule, Counts
from leveret.segments.errors import SegmentDamaged
from leveret.segments.manifest import Segment
from leveret.segments.masking import apply_rule
from leveret.segments.reader import SegmentReader, StoredMessage, rebuild
from leveret.segments.writer import SegmentWriter
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.errors import EncodeError as EncodeError1

# Rows in memory at a time, besides the row group that is being written.
BATCH_ROWS = 4096


def merge(sources: Sequence[SegmentReader], writer: SegmentWriter) -> Segment:
    """Merge adjacent segments, in the order of their offsets, into one file. The sources stay open and unchanged.

    Raises:
        SegmentError: A source cannot be read or the file cannot be written; no file is left behind.
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


def rewrite(
    source: SegmentReader, rules: Sequence[CompiledRule], writer: SegmentWriter | None
) -> tuple[Segment | None, Counts]:
    """Apply rules to a segment. Only the first matching rule applies to a row.

    The new file covers all offsets of the source, even if rows were removed.

    Args:
        source: The segment.
        rules: Rules in order of precedence.
        writer: Writes the new file; None only counts.

    Returns:
        The new segment, None if no row changed or there is no writer; and the counts.

    Raises:
        SegmentError: As for `merge`.
    """
    counts = Counts()
    try:
        for batch in source.file_batches(BATCH_ROWS):
            changed = _apply_rules(batch, rules, counts, source.url)
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


def _apply_rules(
    batch: pa.RecordBatch, rules: Sequence[CompiledRule], counts: Counts, url: str
) -> list[StoredMessage] | None:
    """Return the rows after applying the rules, or None if no rule matches any row."""
    counts.rows += batch.num_rows
    by_row: dict[int, CompiledRule] = {}
    for rule in rules:
        for row in rule.rows(batch, counts):
            by_row.setdefault(row, rule)
    if not by_row:
        return None
    encodings = batch.column("content_encoding")
    found: list[StoredMessage] = []
    try:
        for number, stored in enumerate(rebuild(batch)):
            rule_of_row = by_row.get(number)
            kept = stored if rule_of_row is None else apply_rule(rule_of_row, stored, encodings[number].as_py(), counts)
            if kept is not None:
                found.append(kept)
    except (WireError, DecodeError, EncodeError, EncodeError1, ValueError, IndexError) as error:
        raise SegmentDamaged(url, f"a row cannot be rewritten: {error}") from error
    return found


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return {name: batch.column(name) for name in schema.FILE_COLUMNS}


def _rows(messages: list[StoredMessage]) -> Rows:
    return Rows(
        [item.offset for item in messages],
        [item.time for item in messages],
        [item.format for item in messages],
        [item.address for item in messages],
        [item.header for item in messages],
        [item.body for item in messages],
        [item.overlay or b"" for item in messages],
    )
