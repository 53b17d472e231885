"""The plan of a write, made by the driver and pickled into its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.spark.connection import Endpoint, endpoint_of
from leveret.spark.errors import OptionError
from leveret.spark.options import Settings

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
FAIL: Final = "fail"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead-letter"


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The plan of a write.

    Attributes:
        guarantee: As requested; None for exactly once if possible.
        streaming: Whether this is a `writeStream`, which its query (known to tasks) and `sink_name` identify.
        app: Identity of the writer, if set.
        version: Number of the write; None for that of the micro-batch.
        written: Whether it was committed before, so that nothing is left to do.
    """

    endpoint: Endpoint
    streaming: bool
    exchange: str | None
    routing_key: str | None
    guarantee: str | None
    sink_name: str | None
    app: str | None
    version: int | None
    max_in_flight: int
    max_rate: float | None
    max_message_bytes: int
    on_unroutable: str
    on_error: str
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    written: bool = False


def plan_sink(settings: Settings, streaming: bool, overwrite: bool) -> SinkPlan:
    """Plan a write. Raises OptionError for conflicting options."""
    if overwrite:
        raise OptionError(
            "the sink amqp cannot replace published messages; expected "
            + ("outputMode append or update" if streaming else "mode append")
        )
    app, version = settings.txn_app_id, settings.txn_version
    if streaming and (app is not None or version is not None):
        raise OptionError(
            "options txnAppId, txnVersion: only for batch writes and foreachBatch; a writeStream is "
            "identified by its query and batch (option sinkName distinguishes several sinks)"
        )
    if (app is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise OptionError(f"option {missing}: missing; set both txnAppId and txnVersion, or neither")
    if not streaming and settings.guarantee == EXACTLY_ONCE and app is None:
        raise OptionError(
            "option guarantee: exactly-once needs txnAppId and txnVersion in batch writes and foreachBatch, "
            "because Spark does not identify repeated writes"
        )
    for name, choice in (("onUnroutable", settings.on_unroutable), ("onError", settings.on_error)):
        if choice == DEAD_LETTER and settings.dead_letter_exchange is None and settings.dead_letter_routing_key is None:
            raise OptionError(f"option {name}: dead-letter needs deadLetterExchange or deadLetterRoutingKey")
    return SinkPlan(
        endpoint_of(settings),
        streaming,
        settings.exchange,
        settings.routing_key,
        settings.guarantee,
        settings.sink_name,
        app,
        version,
        settings.max_in_flight,
        settings.max_rate,
        settings.max_message_bytes,
        settings.on_unroutable,
        settings.on_error,
        settings.dead_letter_exchange,
        settings.dead_letter_routing_key,
    )
