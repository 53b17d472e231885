"""Additions of a shovel to messages: properties, the headers of forwarding, and a timestamp."""

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


def amendments(definition: Definition, headers: Headers) -> Amend | None:
    """Return a function that returns the properties of a copy, or None if they are those of the message.

    Args:
        definition: The shovel.
        headers: What its definition's forward headers say.
    """
    if not (definition.publish_properties or definition.forward_headers or definition.timestamp_header):
        return None

    def amend(message: Message) -> Properties:
        properties = from_keywords(message.properties, dict(definition.publish_properties))
        added: Headers = {}
        if definition.forward_headers:
            earlier = (properties.headers or {}).get(FORWARDED)
            added[FORWARDED] = [headers, *(earlier if isinstance(earlier, list) else [])]
        if definition.timestamp_header:
            added[TIMESTAMP] = int(time.time())
        if added:
            properties.headers = {**(properties.headers or {}), **added}
        return properties

    return amend
