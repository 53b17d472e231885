"""Additions of a shovel to messages: properties, the headers of forwarding and of the origin, and a timestamp."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

from leveret.client.message import Message
from leveret.client.properties import Headers, Properties, from_keywords
from leveret.shovel.definition import Definition

# Returns the properties of the copy of a message.
Amend: TypeAlias = Callable[[Message], Properties]

FORWARDED: Final = "x-shovelled"
TIMESTAMP: Final = "x-shovelled-timestamp"
EXCHANGE: Final = "x-shovelled-exchange"
ROUTING_KEY: Final = "x-shovelled-routing-key"


def amendments(definition: Definition, headers: Headers) -> Amend | None:
    """Return a function that returns the properties of a copy, or None if they are those of the message.

    Args:
        definition: The shovel.
        headers: What its definition's forward headers say.
    """
    has_headers = definition.forward_headers or definition.timestamp_header or definition.origin_headers
    if not (definition.publish_properties or has_headers):
        return None

    def amend(message: Message) -> Properties:
        properties = from_keywords(message.properties, dict(definition.publish_properties))
        added: Headers = {}
        if definition.forward_headers:
            earlier = (properties.headers or {}).get(FORWARDED)
            added[FORWARDED] = [headers, *(earlier if isinstance(earlier, list) else [])]
        if definition.timestamp_header:
            added[TIMESTAMP] = int(time.time())
        if definition.origin_headers and EXCHANGE not in (properties.headers or {}):  # those of the first shovel stay
            added[EXCHANGE], added[ROUTING_KEY] = message.exchange, message.routing_key
        if added:
            properties.headers = {**(properties.headers or {}), **added}
        return properties

    return amend
