"""The name of this broker as a node, and as the cluster that consists of it."""

from __future__ import annotations

import socket


def node_name() -> str:
    """Return the name in RabbitMQ's form, which clients expect: `rabbit@` and the host name up to its first dot."""
    return f"rabbit@{socket.gethostname().partition('.')[0]}"
