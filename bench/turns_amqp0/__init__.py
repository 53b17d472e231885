"""Operations over AMQP 0-9-1 and 0-9, by subject: each module adds its own."""

from bench.turns_amqp0 import amqp09, batches, consuming, deep, many, overflow, queues, reading, routing, settling, streams

__all__ = [
    "amqp09",
    "batches",
    "consuming",
    "deep",
    "many",
    "overflow",
    "queues",
    "reading",
    "routing",
    "settling",
    "streams",
]
