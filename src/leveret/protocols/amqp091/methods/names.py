"""Names of queues and exchanges as clients send them."""

from __future__ import annotations

from leveret.broker.vhost import Vhost


def without_line_ends(vhost: Vhost, name: str) -> str:
    """Return a name for declare and delete without CR and LF, which RabbitMQ removes.

    In strict mode they stay, so that the name is refused.
    """
    if vhost.strict or ("\n" not in name and "\r" not in name):
        return name
    return name.replace("\n", "").replace("\r", "")
