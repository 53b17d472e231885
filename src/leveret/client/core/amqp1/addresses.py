"""What names of queues and exchanges become over AMQP 1.0."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, unquote

from leveret.client.amqp1 import Address
from leveret.client.errors import InvalidMessage, NotSupported

MANAGEMENT: Final = "/management"
_QUEUES: Final = "/queues/"
_OLD_QUEUES: Final = ("/amq/queue/", "/queue/")
_MAJOR: Final = re.compile(r"\d+")


class Addresses:
    """One of the three forms.

    form        "v2" (RabbitMQ 4, Leveret), "v1" (RabbitMQ 3) or "plain"
    is_routing  an address of an exchange is one: a message that comes back released had no queue
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self.is_routing = form != "plain"

    def of_queue(self, name: str) -> str:
        if isinstance(name, Address) or self.form == "plain":
            return str(name)
        if self.form == "v2":
            return _QUEUES + quoted(name)
        return _OLD_QUEUES[0] + name

    def of_exchange(self, exchange: str, routing_key: str) -> str:
        """Where a publish goes to. `InvalidMessage` for names that the form has no address for."""
        if isinstance(routing_key, Address):
            if exchange:
                raise InvalidMessage(f"an exchange beside the address {routing_key!r}; expected one of them")
            return str(routing_key)
        if not exchange:
            if not routing_key:
                raise InvalidMessage("neither an exchange nor a routing key: there is no address for it over AMQP 1.0")
            return self.of_queue(routing_key)
        if self.form == "v2":
            return f"/exchanges/{quoted(exchange)}" + (f"/{quoted(routing_key)}" if routing_key else "")
        if self.form == "v1":
            return f"/exchange/{exchange}" + (f"/{routing_key}" if routing_key else "")
        return f"{exchange}/{routing_key}" if routing_key else exchange

    def queue_at(self, address: str) -> str:
        """The queue that the address means, or the address, which stands for itself."""
        if address.startswith(_QUEUES) and "/" not in address[len(_QUEUES) :]:
            return unquote(address[len(_QUEUES) :], errors="surrogateescape")
        for prefix in _OLD_QUEUES:
            if address.startswith(prefix):
                return address[len(prefix) :]
        return Address(address)

    def check_managed(self) -> None:
        if self.form != "v2":
            raise NotSupported(f"declaring and binding need a management node, which this peer does not have (its addresses"
                               f" are {self.form}); expected queues that exist, and a peer with {MANAGEMENT}")


def quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


def choose(option: str, properties: dict[str, Any]) -> Addresses:
    """The form that a peer has by what it says of itself, unless the option says it."""
    if option != "auto":
        return Addresses(option)
    product = str(properties.get("product", ""))
    if product == "RabbitMQ":
        major = _MAJOR.match(str(properties.get("version", "")))
        return Addresses("v2" if major is None or int(major[0]) >= 4 else "v1")
    return Addresses("v2" if product == "Leveret" else "plain")
