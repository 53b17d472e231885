"""Transactions: get a message, publish its result and acknowledge it, atomically.

Until `tx.commit`, messages published in a transaction are invisible, and messages acknowledged in it can be redelivered. If
the program or the broker crashes before the commit is on disk, the order is still in its queue and there is no invoice.
After the commit, the order is gone and the invoice exists.

    python examples/transactions.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import sys

import pika
from pika.adapters.blocking_connection import BlockingChannel

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
ORDERS, INVOICES = "example.orders", "example.invoices"
KEEP = pika.BasicProperties(delivery_mode=2)


def counts(channel: BlockingChannel) -> str:
    orders, invoices = (channel.queue_declare(queue, passive=True).method.message_count for queue in (ORDERS, INVOICES))
    return f"{orders} orders and {invoices} invoices are ready"


def begin(channel: BlockingChannel) -> None:
    """Get an order and publish its invoice, without committing."""
    method, _, body = channel.basic_get(ORDERS)
    channel.basic_publish("", INVOICES, b"invoice for " + body, KEEP)
    channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        for queue in (ORDERS, INVOICES):
            channel.queue_declare(queue, durable=True)
        channel.tx_select()
        channel.basic_publish("", ORDERS, b"order 1", KEEP)
        channel.tx_commit()
        print("begin:         ", counts(channel))

        begin(channel)
        print("not committed: ", counts(channel))
        channel.tx_rollback()
        channel.basic_recover(requeue=True)  # after the rollback the message is still unacked: requeue it
        print("rolled back:   ", counts(channel))

        begin(channel)
        channel.tx_commit()
        print("committed:     ", counts(channel))
        for queue in (ORDERS, INVOICES):
            channel.queue_delete(queue)
