"""The generic kind of flow: decoding, a transformation by the user, tables and exchanges."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import field

from leveret.spark.pipeline.checks import Problem, check_decode, check_outputs
from leveret.spark.pipeline.decoding.registry import RAW
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.model import Decode, ExchangeOutput, FlowSection, TableOutput, Transform
from leveret.spark.pipeline.transform import load_transform


class PlainFlow(FlowSection, frozen=True, kw_only=True, tag="flow"):
    decode: Decode = field(default_factory=Decode)
    transform: Transform | None = None
    tables: list[TableOutput] = []
    exchanges: list[ExchangeOutput] = []

    def check(self) -> Iterator[Problem]:
        yield from check_decode(self.decode)
        yield from check_outputs(self.tables, self.exchanges)
        transform = self.transform
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
            and self.capture.queue is not None
            and self.decode.on_error == "quarantine"
            and self.decode.format != RAW
        ):
            yield (
                ("transform", "scope"),
                (
                    'is "stream": messages that cannot be decoded are then read a second time, which a queue does not '
                    'support; capture a stream or an exchange, or set decode.on_error to "fail" or "drop"'
                ),
            )

    def build(self, name: str) -> Flow:
        transform = self.transform
        return Flow(
            name,
            self.capture,
            self.decode,
            None,
            load_transform(transform) if transform is not None else None,
            transform is not None and transform.scope == "stream",
            transform.output if transform is not None else "append",
            self.tables,
            self.exchanges,
            self.trigger,
        )
