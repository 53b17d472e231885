"""Open: the client's parameters, its vhost, and the broker's reply (transport section 2.7.1)."""

from __future__ import annotations

import platform
from collections.abc import Container
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from leveret.protocols.amqp10.connection import exclusive_container
from leveret.protocols.amqp10.errors import ConnectionRefused, shorten
from leveret.protocols.amqp10.management import link_pair
from leveret.protocols.amqp10.messages import MAX_UINT
from leveret.protocols.amqp10.terminus import shared_subscription
from leveret.protocols.convert.values import plain
from leveret.protocols.record_batches import MIN_FRAME_SIZE, announcement
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.transport import Open
from leveret.wire.amqp10.values import Map, Value
from leveret.wire.record_batches import ADDRESS

if TYPE_CHECKING:
    from leveret.broker.values import FieldTable
    from leveret.protocols.amqp10.settings import Amqp10Settings
    from leveret.protocols.services import Services

DEFAULT_VHOST: Final = "/"
VHOST_PREFIX: Final = "vhost:"
PRODUCT: Final = "Leveret"
# Size of frames that have room for the names in an open.
ROOMY_FRAME_SIZE: Final = 2048
# Bytes of the reason for a refusal, so that an open fits the smallest frames.
MAX_REFUSAL_BYTES: Final = 200
CAPABILITIES: Final = (
    "ANONYMOUS-RELAY",
    "DELAYED_DELIVERY",
    link_pair.CAPABILITY,
    shared_subscription.CAPABILITY,
    exclusive_container.CAPABILITY,
)
# Property of an open before a close: the client must not consider the connection open.
ESTABLISHMENT_FAILED: Final = "amqp:connection-establishment-failed"


def check_channel(frame: Open) -> None:
    """Raise ConnectionRefused unless the client's open is on channel 0."""
    if frame.channel:
        raise ConnectionRefused(constants.NOT_ALLOWED, f"open on channel {frame.channel}; expected channel 0")


def frame_limit(frame: Open) -> int:
    """Return the client's max-frame-size. Raises ConnectionRefused if it is below the minimum."""
    if frame.max_frame_size < constants.MIN_MAX_FRAME_SIZE:
        raise ConnectionRefused(
            constants.INVALID_FIELD,
            f"max-frame-size is {frame.max_frame_size}, expected at least {constants.MIN_MAX_FRAME_SIZE}",
        )
    return frame.max_frame_size


def properties_of(frame: Open) -> FieldTable:
    """Return the client's properties."""
    if isinstance(frame.properties, (dict, Map)):
        properties = plain(frame.properties)
        if isinstance(properties, dict):
            return properties
    return {}


def vhost_of(frame: Open, vhosts: Container[str]) -> str:
    """Return the vhost of `vhost:NAME`, literal or percent-decoded; the default vhost for any other host name."""
    hostname = frame.hostname
    if hostname is None or not hostname.startswith(VHOST_PREFIX):
        return DEFAULT_VHOST
    name = hostname[len(VHOST_PREFIX) :]
    if name not in vhosts:
        decoded = unquote(name)
        if decoded in vhosts:
            name = decoded
    return name


def reply(services: Services, own: Amqp10Settings, max_frame_size: int, failed: bool, refusal: str) -> Open:
    """Return the broker's open.

    Args:
        services: What all connections share.
        own: The settings of the protocol.
        max_frame_size: The client's. The smallest frames have no room for long names, nor can record batches be used.
        failed: Whether a close follows.
        refusal: Why the client may not open the vhost, in place of product and version; "" if it may.
    """
    properties: dict[str, Value] = (
        {"product": shorten(refusal, MAX_REFUSAL_BYTES)} if refusal else {"product": own.product, "version": own.version}
    )
    if max_frame_size >= ROOMY_FRAME_SIZE:
        properties["platform"] = (
            f"{PRODUCT} {services.server_properties.get('version', '')} (Python {platform.python_version()})"
        )
        properties["node"] = services.broker.node_name
        properties["cluster_name"] = services.broker.cluster_name
    if max_frame_size >= MIN_FRAME_SIZE:
        properties.update(announcement(services.settings.max_message_size, ADDRESS))
    if failed:
        properties[ESTABLISHMENT_FAILED] = True
    timeout = min(int(own.idle_timeout * 500), MAX_UINT)
    return Open(
        services.broker.node_name,
        None,
        own.max_frame_size,
        own.sessions - 1,
        timeout or None,
        offered_capabilities=CAPABILITIES,
        properties=properties,
    )
