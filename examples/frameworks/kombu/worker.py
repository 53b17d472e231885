"""Process orders until SIGTERM.

python -m worker                in this directory, against the broker of AMQP_URL
"""

import logging
import signal

import orders
from kombu.mixins import ConsumerMixin

log = logging.getLogger("worker")


class Worker(ConsumerMixin):
    """Connects again when the connection is lost, and gets unacked orders once more."""

    def __init__(self, connection):
        self.connection = connection

    def get_consumers(self, consumer, channel):
        orders.failed(channel).declare()
        return [consumer([orders.orders], callbacks=[self.on_order], accept=["json"], prefetch_count=10)]

    def on_consume_ready(self, connection, channel, consumers, **kwargs):
        log.info("ready")

    def on_order(self, order, message):
        try:
            if order["amount"] <= 0:
                raise ValueError(f"amount {order['amount']}")
        except Exception as error:
            log.info("order %s failed: %s", order["id"], error)
            # Back to the queue, until its delivery limit.
            message.requeue()
        else:
            log.info("order %s done", order["id"])
            message.ack()

    def stop(self, *_):
        """End after the current order. The broker redelivers those that were prefetched."""
        self.should_stop = True


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with orders.connect() as connection:
        worker = Worker(connection)
        signal.signal(signal.SIGTERM, worker.stop)
        worker.run()
