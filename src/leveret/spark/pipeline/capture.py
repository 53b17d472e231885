"""Captures: the streaming DataFrame of a flow's messages and, for an exchange, the stream that is bound to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark import values
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.options import read_options
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Broker, Capture
from leveret.spark.pipeline.output.exchanges import broker_options, option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {"queue": "queue", "stream": "stream", "super_stream": "superStream", "stream_pattern": "streamPattern"}


def stream_of(capture: Capture, flow: str) -> str:
    """Return the name of the stream to declare for a captured exchange."""
    return capture.into or f"{flow}.{capture.exchange}"


def source_options(capture: Capture, broker: Broker, flow: str) -> dict[str, str]:
    """Return the options of the data source.

    Args:
        capture: The capture.
        broker: The broker.
        flow: Names of pipeline and flow, the default for the consumer's name or the lease.
    """
    options = broker_options(broker)
    name = capture.consumer or flow
    if capture.exchange is not None:
        options["stream"] = stream_of(capture, flow)
    for key, option in _OPTIONS.items():
        value = getattr(capture, key)
        if value is not None:
            options[option] = value
    if capture.queue is None:
        options |= {"consumerName": name, "startingOffsets": capture.starting_offsets}
    else:
        options["lease"] = name
    return options | {key: option_text(value) for key, value in capture.options.items()}


def declare(capture: Capture, broker: Broker, flow: str) -> None:
    """Declare and bind the stream of a captured exchange. Does nothing for other captures.

    Raises:
        PipelineError: The broker refused the request.
        BrokerUnreachable: The broker could not be reached.
    """
    if capture.exchange is None:
        return
    from leveret.client.errors import Error

    stream = stream_of(capture, flow)
    client = control_client(broker, f"pipeline {flow}")
    try:
        channel = client.channel()
        channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream", **capture.arguments})
        for key in capture.keys:
            channel.bind_queue(stream, capture.exchange, key)
    except Error as error:
        raise PipelineError(
            f"{flow}: capture: stream {stream!r} could not be declared and bound to exchange {capture.exchange!r}: {error}"
        ) from None
    finally:
        client.close()


def control_client(broker: Broker, name: str) -> ControlClient:
    """Return a client for requests to the pipeline's broker."""
    return ControlClient(endpoint_of(read_options(broker_options(broker))), f"leveret {name}")


def read_stream(spark: SparkSession, capture: Capture, broker: Broker, flow: str) -> DataFrame:
    """Return the messages as a streaming DataFrame."""
    return spark.readStream.format("amqp").options(**source_options(capture, broker, flow)).load()


def no_messages(spark: SparkSession, columns: str | float | None = None) -> DataFrame:
    """Return an empty DataFrame with the columns of messages.

    Args:
        spark: The session.
        columns: Like the data source's option; None for all.
    """
    from leveret.spark.schema import table_schema

    return spark.createDataFrame([], table_schema(None if columns is None else values.names(str(columns))))
