"""A shop's background jobs.

dramatiq actors --processes 1 --threads 4       in this directory, against the broker of AMQP_URL
"""

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

# `send` returns when the message is on disk.
broker = RabbitmqBroker(
    url=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"), confirm_delivery=True, max_priority=10
)
dramatiq.set_broker(broker)


class PaymentRefused(Exception):
    """Trying again does not help."""


@dramatiq.actor(queue_name="dramatiq-jobs", max_retries=2, min_backoff=50, max_backoff=200, throws=PaymentRefused)
def charge(order: str, amount: int) -> None:
    if amount <= 0:
        raise PaymentRefused(order)
    if amount > 1000:
        print(f"the bank does not answer for {order}", flush=True)
        raise ConnectionError("the bank does not answer")
    print(f"charged {order}", flush=True)


@dramatiq.actor(queue_name="dramatiq-jobs", max_age=3_600_000, time_limit=60_000)
def ship(order: str) -> None:
    print(f"shipped {order}", flush=True)
