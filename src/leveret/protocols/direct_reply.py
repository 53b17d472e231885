"""RabbitMQ's direct reply-to: a queue for the answers to one client, which nobody declares and which goes with its
consumer. Requests say its name, whatever protocol they and their answers are sent over.
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import QueueSettings

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost

REPLY_TO: Final = "amq.rabbitmq.reply-to"


def make_queue(vhost: Vhost) -> Queue:
    """A queue for direct replies, under a name that nobody guesses."""
    return vhost.add_reply_queue(f"{REPLY_TO}.{base64.urlsafe_b64encode(secrets.token_bytes(18)).decode()}",
                                 QueueSettings({}, {}))
