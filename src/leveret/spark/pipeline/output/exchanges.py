"""Publishes batches to exchanges, exactly once: each is written under the query's name and the batch's number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Broker, ExchangeOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns that are published. Others are about the delivery of the message, or the user's.
PUBLISHED = (
    "exchange",
    "routing_key",
    "content_type",
    "content_encoding",
    "durable",
    "priority",
    "correlation_id",
    "reply_to",
    "ttl_ms",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "headers",
    "headers_json",
    "amqp10",
    "body",
)


def broker_options(broker: Broker) -> dict[str, str]:
    """Return the data source's options for the broker."""
    options = {"url": broker.url, **broker.options}
    if broker.password_file is not None:
        options["passwordFile"] = broker.password_file
    return options


def option_text(value: str | float) -> str:
    """Return a TOML value as a text for Spark's options."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def publishable(df: DataFrame, output: ExchangeOutput) -> DataFrame:
    """Select the rows and columns to publish. Raises PipelineError if there is no body or no address."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import BinaryType, StringType

    target = "the exchange" if output.exchange is None else f"exchange {output.exchange!r}"
    if output.where is not None:
        try:
            df = df.where(output.where)
        except PySparkException as error:
            raise PipelineError(f"{target}: where: {str(error).strip().splitlines()[0]}") from None
    types = {field.name: field.dataType for field in df.schema.fields}
    if not isinstance(types.get("body"), (BinaryType, StringType)):
        raise PipelineError(
            f"{target}: the rows need a column body of type binary or string; they have {', '.join(df.columns)}"
        )
    if isinstance(types["body"], StringType):
        df = df.withColumn("body", df["body"].cast("binary"))
    for column, option in (("exchange", output.exchange), ("routing_key", output.routing_key)):
        if option is not None:
            df = df.drop(column)
        elif column not in types:
            raise PipelineError(f"{target}: the rows have no column {column}; set {column}, or add the column")
    known = [field.name for field in df.schema.fields if field.name in PUBLISHED]
    return df.select(*known)


class ExchangeWriter:
    """Publishes the batches of one application to one exchange."""

    def __init__(self, output: ExchangeOutput, broker: Broker, application: str) -> None:
        self._output = output
        self._options = {**sink_options(output, broker), "txnAppId": application}

    def write(self, batch: DataFrame, number: int) -> bool:
        """Publish the batch, once, however often this is called. Returns True: the batch was read."""
        rows = publishable(batch, self._output)
        rows.write.format("amqp").options(**self._options).option("txnVersion", number).mode("append").save()
        return True


def sink_options(output: ExchangeOutput, broker: Broker) -> dict[str, str]:
    """Return the data source's options for an output."""
    options = {**broker_options(broker), **{name: option_text(value) for name, value in output.options.items()}}
    if output.exchange is not None:
        options["exchange"] = output.exchange
    if output.routing_key is not None:
        options["routingKey"] = output.routing_key
    return options
