"""RabbitMQ's direct reply-to: a queue that receives one client's replies and exists as long as its consumer.

The client's requests carry the name of the queue. Requests and replies may use different protocols.
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
    """Create a queue for direct replies with an unguessable name."""
    return vhost.add_reply_queue(
        f"{REPLY_TO}.{base64.urlsafe_b64encode(secrets.token_bytes(18)).decode()}", QueueSettings({}, {})
    )
