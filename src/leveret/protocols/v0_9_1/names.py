"""Names of queues and exchanges as clients send them."""

from __future__ import annotations

from leveret.broker.vhost import Vhost


def without_line_ends(vhost: Vhost, name: str) -> str:
    """The name that declare and delete mean: RabbitMQ takes CR and LF out of it, wherever they stand. In strict mode they
    stay, so that such a name is refused."""
    if vhost.strict or ("\n" not in name and "\r" not in name):
        return name
    return name.replace("\n", "").replace("\r", "")
