"""AMQP 1.0 addresses of queues and exchanges."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from leveret.client.amqp10 import Address
from leveret.client.errors import InvalidMessage, NotSupported
from leveret.wire.amqp0.values import Arguments

MANAGEMENT: Final = "/management"
_QUEUES: Final = "/queues/"
_OLD_QUEUES: Final = ("/amq/queue/", "/queue/")
_MAJOR: Final = re.compile(r"\d+")


class Addresses:
    """An address format.

    Attributes:
        form: "v2" (RabbitMQ 4, Leveret), "v1" (RabbitMQ 3) or "plain".
        is_routing: Whether addresses of exchanges route messages, so that a released message was unroutable.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self.is_routing = form != "plain"

    def adopt(self, other: Addresses) -> None:
        """Use another format from now on."""
        self.form = other.form
        self.is_routing = other.is_routing

    def of_queue(self, name: str) -> str:
        """Return the address of a queue."""
        if isinstance(name, Address) or self.form == "plain":
            return str(name)
        if self.form == "v2":
            return _QUEUES + quoted(name)
        return _OLD_QUEUES[0] + name

    def of_exchange(self, exchange: str, routing_key: str) -> str:
        """Return the address for a publish. Raises `InvalidMessage` for names that the format cannot represent."""
        if isinstance(routing_key, Address):
            if exchange:
                raise InvalidMessage(f"both an exchange and the address {routing_key!r}; expected one of them")
            return str(routing_key)
        if not exchange:
            if not routing_key:
                raise InvalidMessage("neither an exchange nor a routing key; expected one of them over AMQP 1.0")
            return self.of_queue(routing_key)
        if self.form == "v2":
            return f"/exchanges/{quoted(exchange)}" + (f"/{quoted(routing_key)}" if routing_key else "")
        if self.form == "v1":
            return f"/exchange/{exchange}" + (f"/{routing_key}" if routing_key else "")
        return f"{exchange}/{routing_key}" if routing_key else exchange

    def queue_at(self, address: str) -> str:
        """Return the queue of an address, or the address itself if it does not name a queue."""
        if address.startswith(_QUEUES) and "/" not in address[len(_QUEUES) :]:
            return unquote(address[len(_QUEUES) :], errors="surrogateescape")
        for prefix in _OLD_QUEUES:
            if address.startswith(prefix):
                return address[len(prefix) :]
        return Address(address)

    def check_managed(self) -> None:
        """Raise `NotSupported` if the server has no management node."""
        if self.form != "v2":
            raise NotSupported(
                f"declaring and binding require a management node, which this server does not have (address"
                f" format {self.form}); expected existing queues, or a server with {MANAGEMENT}"
            )


def quoted(name: str) -> str:
    """Return a name percent-encoded, as one segment of an address."""
    return quote(name, safe="", errors="surrogateescape")


def choose(option: str, properties: Arguments) -> Addresses:
    """Return the address format of a server, from the option `addresses` or from the properties of its `open`."""
    if option != "auto":
        return Addresses(option)
    product = str(properties.get("product", ""))
    if product == "RabbitMQ":
        major = _MAJOR.match(str(properties.get("version", "")))
        return Addresses("v2" if major is None or int(major[0]) >= 4 else "v1")
    return Addresses("v2" if product == "Leveret" else "plain")
