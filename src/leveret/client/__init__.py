"""The client library: an async and a sync API over one sans-I/O engine.

`leveret.connect` and `leveret.sync.connect` open connections. This package contains the types that both share.
"""

from __future__ import annotations

from leveret.client.access import Access
from leveret.client.errors import (
    AccessRefused,
    AuthenticationFailed,
    BatchFailed,
    ChannelClosed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    ConsumerCancelled,
    Error,
    InvalidMessage,
    InvalidUrl,
    LinkClosed,
    Nacked,
    NotFound,
    NotSupported,
    PreconditionFailed,
    ProtocolMismatch,
    PublishFailed,
    Redirected,
    ResourceLocked,
    Returned,
    Timeout,
    TlsFailed,
    TransactionLost,
    Unpublished,
    VhostRefused,
)
from leveret.client.events import (
    Blocked,
    Closed,
    Connected,
    Disconnected,
    Event,
    Reconnecting,
    Recovered,
    RecoveryFailed,
    Unblocked,
)
from leveret.client.files import FileMessage
from leveret.client.parameters import Parameters
from leveret.client.properties import Properties
from leveret.client.url import parse_url, parse_urls

__all__ = [
    "Access",
    "AccessRefused",
    "AuthenticationFailed",
    "BatchFailed",
    "Blocked",
    "ChannelClosed",
    "Closed",
    "Connected",
    "ConnectionClosed",
    "ConnectionFailed",
    "ConnectionLost",
    "ConsumerCancelled",
    "Disconnected",
    "Error",
    "Event",
    "FileMessage",
    "InvalidMessage",
    "InvalidUrl",
    "LinkClosed",
    "Nacked",
    "NotFound",
    "NotSupported",
    "Parameters",
    "PreconditionFailed",
    "Properties",
    "ProtocolMismatch",
    "PublishFailed",
    "Reconnecting",
    "Recovered",
    "RecoveryFailed",
    "Redirected",
    "ResourceLocked",
    "Returned",
    "Timeout",
    "TlsFailed",
    "TransactionLost",
    "Unblocked",
    "Unpublished",
    "VhostRefused",
    "parse_url",
    "parse_urls",
]
