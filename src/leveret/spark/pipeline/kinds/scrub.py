"""Scrubbing: masks personal data in messages by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leveret.security.patterns import Pattern
from leveret.spark.pipeline.checks import Problem, check_outputs
from leveret.spark.pipeline.decoding.arrow_functions import ArrowFunction, arrow_function
from leveret.spark.pipeline.decoding.body_format import ERROR, encoding_error
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.kinds.masking import BodyMasker, HeadersMasker, Mask, Rule, mask_of, mask_text
from leveret.spark.pipeline.model import Broker, Capture, Decode, ExchangeOutput, FlowSection, TableOutput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_MASKED = "__masked"


class ScrubFlow(FlowSection, frozen=True, kw_only=True, tag="scrub"):
    FILES = ("key_file",)
    LOCATIONS = ("quarantine",)

    rules: list[Rule]
    # File with the key of the hashes in its first line: equal values have equal hashes, which cannot be reversed by trial.
    key_file: str | None = None
    # Action for a message whose body cannot be masked: it is compressed, or not JSON although a rule names a field.
    on_error: Literal["quarantine", "fail", "drop"] = "quarantine"
    quarantine: str | None = None
    tables: list[TableOutput] = []
    exchanges: list[ExchangeOutput] = []
    trigger: float = 5.0

    def check(self) -> Iterator[Problem]:
        yield from check_outputs(self.tables, self.exchanges)
        if not self.rules:
            yield ("rules",), "is empty: nothing would be masked"
        for number, rule in enumerate(self.rules):
            at = ("rules", number)
            if sum(one is not None for one in (rule.field, rule.header, rule.property, rule.pattern)) != 1:
                yield at, "needs exactly one of field, header, property and pattern"
            if rule.pattern is not None:
                try:
                    Pattern(rule.pattern).replace(lambda found: found, "")
                except ValueError as error:
                    yield (*at, "pattern"), str(error)
            if rule.action == "hash" and self.key_file is None:
                yield (*at, "action"), 'is "hash", which needs key_file: hashes without a key can be reversed by trial'
        if _of_bodies(self.rules) and self.on_error == "quarantine" and self.quarantine is None:
            yield ("quarantine",), 'is not set, but on_error is "quarantine"; set it to a directory, or change on_error'

    def build(self, name: str) -> Flow:
        """Build a flow that masks messages. PipelineError if the key file is unreadable."""
        key = _read_key(self.key_file)
        # Masking headers and properties never fails.
        on_error = self.on_error if _of_bodies(self.rules) else "fail"
        return Flow(
            name,
            self.capture,
            Decode(on_error=on_error, quarantine=self.quarantine),
            lambda both: _mask_messages(both, self.rules, key),
            _use_masked_body,
            tables=self.tables,
            exchanges=self.exchanges,
            trigger=self.trigger,
        )


def scrub(
    spark: SparkSession,
    broker: Broker,
    capture: Capture,
    rules: Sequence[Rule],
    *,
    checkpoint: str,
    tables: Sequence[TableOutput] = (),
    exchanges: Sequence[ExchangeOutput] = (),
    key_file: str | None = None,
    quarantine: str | None = None,
    name: str = "scrub",
    once: bool = False,
    trigger: float = 5.0,
) -> list[StreamingQuery]:
    """Start writing every captured message with masked values, exactly once.

    Args:
        spark: The session.
        broker: The broker.
        capture: Source of the messages.
        rules: Masking rules.
        checkpoint: Directory of the query's state.
        tables: Tables to write the messages to.
        exchanges: Exchanges to publish the messages to.
        key_file: File with the key of the hashes in its first line.
        quarantine: Table of messages whose bodies cannot be masked; it contains their personal data.
        name: Name of the query.
        once: Process what is available now, then stop.
        trigger: Seconds between batches.
    """
    flow = ScrubFlow(
        capture=capture,
        rules=list(rules),
        key_file=key_file,
        quarantine=quarantine,
        on_error="quarantine" if quarantine else "fail",
        tables=list(tables),
        exchanges=list(exchanges),
        trigger=trigger,
    )
    return start_flow(spark, flow.build(name), broker, checkpoint, once)


def scrubbed(df: DataFrame, rules: Sequence[Rule], key: bytes = b"") -> DataFrame:
    """Mask the messages of a DataFrame. Sets `decode_error` if a body cannot be masked."""
    from pyspark.sql import functions as F

    masked = _mask_messages(df.withColumn(ERROR, F.lit(None).cast("string")), rules, key)
    return masked.withColumn("body", F.col(f"{_MASKED}.body")).drop(_MASKED)


def _of_bodies(rules: Sequence[Rule]) -> bool:
    return any(rule.field is not None or rule.pattern is not None for rule in rules)


def _use_masked_body(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("body", F.col(f"{_MASKED}.body")).drop(_MASKED)


def _mask_messages(both: DataFrame, rules: Sequence[Rule], key: bytes) -> DataFrame:
    """Add a struct with the masked body, mask headers in place, and set the error of bodies that cannot be masked."""
    from pyspark.sql import functions as F

    columns = set(both.columns)
    both = both.withColumn(_MASKED, _body_masker(rules, key)(F.col("body")))
    both = both.withColumn(ERROR, F.coalesce(F.col(ERROR), F.col(f"{_MASKED}.error")))
    if "content_encoding" in columns and _of_bodies(rules):
        both = both.withColumn(ERROR, F.coalesce(encoding_error(), F.col(ERROR)))
    masks = {rule.header: mask_of(rule, key) for rule in rules if rule.header is not None}
    if masks:
        masker = _text_masker(HeadersMasker([rule for rule in rules if rule.header is not None], key))
        if "headers_json" in columns:
            both = both.withColumn("headers_json", masker(F.col("headers_json")))
        if "headers" in columns:
            both = both.withColumn("headers", _map_masker(masks)(F.col("headers")))
        if "amqp10" in columns and "application_properties" in both.schema["amqp10"].dataType.names:  # type: ignore[attr-defined]
            inner = F.col("amqp10")
            both = both.withColumn(
                "amqp10", inner.withField("application_properties", masker(inner.getField("application_properties")))
            )
    for rule in rules:
        if rule.property is not None:
            if rule.property not in columns:
                raise PipelineError(f"scrub: property {rule.property!r} is not a column of the messages")
            masker = _text_masker(partial(mask_text, mask=mask_of(rule, key)))
            both = both.withColumn(rule.property, masker(F.col(rule.property)))
    return both


def _body_masker(rules: Sequence[Rule], key: bytes) -> ArrowFunction:
    import pyarrow as pa

    masker = BodyMasker(rules, key)
    result = pa.struct([("body", pa.binary()), ("error", pa.string())])

    def mask(bodies: pa.Array) -> pa.Array:
        masked: list[bytes | None] = []
        errors: list[str | None] = []
        for body in bodies.to_pylist():
            try:
                masked.append(None if body is None else masker(body))
                errors.append(None)
            except ValueError as error:
                masked.append(None)
                errors.append(f"not JSON, but a rule names a field: {error}")
        return pa.StructArray.from_arrays(
            [pa.array(masked, pa.binary()), pa.array(errors, pa.string())], fields=list(result)
        )

    return arrow_function(mask, "body binary, error string")


def _text_masker(masker: Callable[[str], str | None]) -> ArrowFunction:
    import pyarrow as pa

    def mask(texts: pa.Array) -> pa.Array:
        return pa.array([None if text is None else masker(text) for text in texts.to_pylist()], pa.string())

    return arrow_function(mask, "string")


def _map_masker(masks: dict[str, Mask]) -> ArrowFunction:
    import pyarrow as pa

    def mask(maps: pa.Array) -> pa.Array:
        found = []
        for entries in maps.to_pylist():
            if entries is not None:
                entries = [
                    (name, mask_text(value, masks[name]) if name in masks and value is not None else value)
                    for name, value in entries
                ]
                entries = [(name, value) for name, value in entries if value is not None or name not in masks]
            found.append(entries)
        return pa.array(found, pa.map_(pa.string(), pa.string()))

    return arrow_function(mask, "map<string,string>")


def _read_key(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise PipelineError(f"key_file {path} cannot be read: {error.strerror}") from None
    if not lines or len(lines[0]) < 16:
        raise PipelineError(
            f"key_file {path}: the first line has fewer than 16 bytes; expected a key, such as the output "
            "of `openssl rand -hex 32`"
        )
    return lines[0]
