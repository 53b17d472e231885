"""Options and columns of Spark's Kafka source and sink, and what to use instead.

docs/coming-from-kafka.md has the same table of options, which a test compares.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KafkaOption(NamedTuple):
    """An option of Kafka's.

    Attributes:
        name: As Kafka's users write it; one that ends with `*` is a prefix.
        instead: What to do here, in Markdown, as an imperative clause.
    """

    name: str
    instead: str


_SAME: Final = "keep it"
KAFKA_OPTIONS: Final = (
    KafkaOption("kafka.bootstrap.servers", "set `url` to `amqp://user:password@host:port/vhost`"),
    KafkaOption("subscribe", "set `streams`, which takes streams and super streams"),
    KafkaOption("subscribePattern", "set `streamPattern`"),
    KafkaOption("assign", "set `partitions`, which takes the same JSON, and `streams`"),
    KafkaOption("startingOffsets", _SAME),
    KafkaOption("endingOffsets", _SAME),
    KafkaOption("startingTimestamp", _SAME),
    KafkaOption("endingTimestamp", _SAME),
    KafkaOption("startingOffsetsByTimestamp", "set `startingTimestamp`, which takes times by stream"),
    KafkaOption("endingOffsetsByTimestamp", "set `endingTimestamp`, which takes times by stream"),
    KafkaOption("startingOffsetsByTimestampStrategy", _SAME),
    KafkaOption("failOnDataLoss", _SAME),
    KafkaOption("maxOffsetsPerTrigger", "set `maxMessagesPerTrigger`"),
    KafkaOption("minOffsetsPerTrigger", "set `minMessagesPerTrigger`"),
    KafkaOption("maxTriggerDelay", _SAME),
    KafkaOption("minPartitions", _SAME),
    KafkaOption("maxRecordsPerPartition", _SAME),
    KafkaOption("includeHeaders", "remove it: the column `headers` is always there, unless `columns` omits it"),
    KafkaOption("groupIdPrefix", "remove it, or set `consumerName` to see the progress of the query at the broker"),
    KafkaOption("kafka.group.id", "remove it, or set `consumerName` to see the progress of the query at the broker"),
    KafkaOption("kafkaConsumer.pollTimeoutMs", "remove it: a task waits for the broker for a minute"),
    KafkaOption("fetchOffset.numRetries", "remove it: a query tries to connect for a minute"),
    KafkaOption("fetchOffset.retryIntervalMs", "remove it: a query tries to connect for a minute"),
    KafkaOption("topic", "set `exchange` and `routingKey`; `routingKey` alone names a queue or a stream"),
    KafkaOption("kafka.security.protocol", "begin `url` with `amqps://` for TLS"),
    KafkaOption("kafka.sasl.*", "put the user into `url`, and set `passwordFile` or the variable `LEVERET_PASSWORD`"),
    KafkaOption("kafka.ssl.*", "set `tls.caFile`, `tls.certFile` and `tls.keyFile`"),
    KafkaOption("kafka.*", "remove it: there is no Kafka client to configure"),
)
# Columns of Kafka's sink, and those of this one.
KAFKA_COLUMNS: Final = {"key": "routing_key", "value": "body", "topic": "exchange"}


def instead_of(name: str) -> str | None:
    """Return what to do instead of setting an unknown option, as plain text; None if it is not one of Kafka's."""
    for option in KAFKA_OPTIONS:
        known = option.name.lower()
        if known == name.lower() or (known.endswith("*") and name.lower().startswith(known[:-1])):
            return option.instead.replace("`", "")
    return None
